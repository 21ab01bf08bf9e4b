"""A chat model of LangChain: python examples/models/langchain_model.py DIR TASK

Needs `pip install langchain-core`. The model here is LangChain's own fake; pass any chat model,
such as `ChatOpenAI(model="gpt-4.1")`, to `LangChainModel`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from langchain_core import messages as lc
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import FakeListChatModel

import retinue


class LangChainModel:
    """Any chat model of LangChain."""

    def __init__(self, model: BaseChatModel) -> None:
        self.name = f"langchain:{model.__class__.__name__}"
        self._model = model

    async def reply(
        self, request: retinue.Request, on_text: Callable[[str], None] | None = None
    ) -> retinue.Reply:
        options: dict[str, Any] = {}
        if request.tools:
            options["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": json.loads(bytes(tool.parameters)),
                    },
                }
                for tool in request.tools
            ]
        if request.max_output_tokens is not None:
            options["max_tokens"] = request.max_output_tokens
        answer = lc.AIMessageChunk("")
        async for chunk in self._model.astream(self._converted(request.messages), **options):
            if on_text is not None:
                on_text(str(chunk.text))
            answer += chunk
        return self._reply(request, answer)

    def _reply(self, request: retinue.Request, answer: lc.AIMessageChunk) -> retinue.Reply:
        text, thoughts = str(answer.text), None
        # A call whose arguments are no JSON is sent on: retinue tells the model what is wrong.
        made = [
            *((one["id"], one["name"], json.dumps(one["args"])) for one in answer.tool_calls),
            *((one["id"], one["name"], one["args"] or "") for one in answer.invalid_tool_calls),
        ]
        calls = tuple(
            retinue.ToolCall(call_id or f"call_{len(request.messages)}_{n}", name or "", arguments)
            for n, (call_id, name, arguments) in enumerate(made)
        )
        blocks = [
            json.dumps(one, ensure_ascii=False)
            for one in answer.content_blocks
            if one["type"] == "reasoning"
        ]
        if blocks and (text or calls):
            thoughts = retinue.Thoughts(self.name, tuple(map(retinue.Thought, blocks)))
        finish = retinue.Finish.TOOLS if calls else retinue.Finish.STOP
        reason = answer.response_metadata.get("finish_reason")
        return retinue.Reply(
            message=retinue.AssistantMessage(text, calls, thoughts),
            usage=_usage(answer) or retinue.Usage.estimate(request, text, calls),
            finish=retinue.Finish.LENGTH if reason in ("length", "max_tokens") else finish,
        )

    async def aclose(self) -> None:
        pass

    def _converted(self, messages: tuple[retinue.Message, ...]) -> list[lc.BaseMessage]:
        found: list[lc.BaseMessage] = []
        for message in messages:
            match message:
                case retinue.SystemMessage(content=text):
                    found.append(lc.SystemMessage(text))
                case retinue.UserMessage(content=text, images=images):
                    found.append(lc.HumanMessage(_content(text, images)))
                case retinue.ToolMessage(call_id=call_id, content=text, images=images):
                    found.append(lc.ToolMessage(_content(text, images), tool_call_id=call_id))
                case retinue.AssistantMessage(content=text, calls=calls, thoughts=thoughts):
                    blocks: list[Any] = []
                    if thoughts is not None and thoughts.by == self.name:
                        blocks = [json.loads(one.block) for one in thoughts.blocks]
                    said = [*blocks, {"type": "text", "text": text}] if blocks else text
                    made = [
                        lc.ToolCall(name=call.name, args=_arguments(call.arguments), id=call.id)
                        for call in calls
                    ]
                    found.append(lc.AIMessage(said, tool_calls=made))
        return found


def _arguments(text: str) -> dict[str, Any]:
    """Arguments as LangChain takes them back: an object, also if the model wrote none."""
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    return found if isinstance(found, dict) else {"arguments": found}


def _usage(answer: lc.AIMessageChunk) -> retinue.Usage | None:
    used = answer.usage_metadata
    if used is None:
        return None
    details = used.get("input_token_details", {})
    return retinue.Usage(
        used["input_tokens"],
        details.get("cache_read", 0),
        used["output_tokens"],
        tokens_written=details.get("cache_creation", 0),
    )


def _content(text: str, images: tuple[retinue.Image, ...]) -> Any:
    shown = [
        {"type": "image", "base64": image.data, "mime_type": image.media_type} for image in images
    ]
    return [{"type": "text", "text": text}, *shown] if shown else text


async def main(directory: str, task: str) -> None:
    model = LangChainModel(FakeListChatModel(responses=["It is a fake answer."]))
    async with retinue.open(directory, model=model) as rt:
        result = await rt.spawn("researcher", task)
    print(result.response if result.ok else f"{result.status}: {result.error}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("Usage: python examples/models/langchain_model.py DIR TASK")
    asyncio.run(main(*sys.argv[1:]))
