"""A model of pydantic-ai: python examples/models/pydantic_ai_model.py DIR TASK

Needs `pip install pydantic-ai-slim`. The model is "test", which needs no key; any other name of
pydantic-ai works: PYDANTIC_AI_MODEL=openai:gpt-4.1.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Callable, Sequence

from pydantic import TypeAdapter
from pydantic_ai import messages as ai
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

import retinue

THINKING = TypeAdapter(ai.ThinkingPart)


class PydanticAiModel:
    """Any model of pydantic-ai."""

    def __init__(self, model: Model | str) -> None:
        self._model = infer_model(model)
        self.name = f"pydantic-ai:{self._model.model_name}"

    async def reply(
        self, request: retinue.Request, on_text: Callable[[str], None] | None = None
    ) -> retinue.Reply:
        tools = [
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=json.loads(bytes(tool.parameters)),
            )
            for tool in request.tools
        ]
        settings = ModelSettings()
        if request.max_output_tokens is not None:
            settings["max_tokens"] = request.max_output_tokens
        try:
            async with model_request_stream(
                self._model,
                self._converted(request.messages),
                model_settings=settings,
                model_request_parameters=ModelRequestParameters(function_tools=tools),
            ) as stream:
                async for event in stream:
                    match event:
                        case (
                            ai.PartStartEvent(part=ai.TextPart(content=text))
                            | ai.PartDeltaEvent(delta=ai.TextPartDelta(content_delta=text))
                        ) if on_text is not None:
                            on_text(text)
                answer = stream.get()
        except ModelAPIError as error:
            raise retinue.errors.ProviderError(str(error)) from error
        return self._reply(request, answer)

    def _reply(self, request: retinue.Request, answer: ai.ModelResponse) -> retinue.Reply:
        calls = tuple(
            retinue.ToolCall(part.tool_call_id, part.tool_name, part.args_as_json_str())
            for part in answer.parts
            if isinstance(part, ai.ToolCallPart)
        )
        text, thoughts = answer.text or "", None
        blocks = [THINKING.dump_json(p).decode() for p in answer.parts if p.part_kind == "thinking"]
        if blocks and (text or calls):
            thoughts = retinue.Thoughts(self.name, tuple(map(retinue.Thought, blocks)))
        used = answer.usage
        usage = retinue.Usage(
            used.input_tokens,
            used.cache_read_tokens,
            used.output_tokens,
            tokens_written=used.cache_write_tokens,
        )
        if not used.has_values():
            usage = retinue.Usage.estimate(request, text, calls)
        finish = retinue.Finish.TOOLS if calls else retinue.Finish.STOP
        return retinue.Reply(
            message=retinue.AssistantMessage(text, calls, thoughts),
            usage=usage,
            finish=retinue.Finish.LENGTH if answer.finish_reason == "length" else finish,
        )

    async def aclose(self) -> None:
        pass

    def _converted(self, messages: tuple[retinue.Message, ...]) -> list[ai.ModelMessage]:
        names: dict[str, str] = {}
        found: list[ai.ModelMessage] = []
        for message in messages:
            match message:
                case retinue.SystemMessage(content=text):
                    found.append(ai.ModelRequest(parts=[ai.SystemPromptPart(text)]))
                case retinue.UserMessage(content=text, images=images):
                    found.append(ai.ModelRequest(parts=[ai.UserPromptPart(_content(text, images))]))
                case retinue.AssistantMessage(content=text, calls=calls, thoughts=thoughts):
                    names |= {call.id: call.name for call in calls}
                    parts: list[ai.ModelResponsePart] = []
                    if thoughts is not None and thoughts.by == self.name:
                        parts += [THINKING.validate_json(one.block) for one in thoughts.blocks]
                    parts += [ai.TextPart(text)] if text else []
                    parts += [ai.ToolCallPart(call.name, call.arguments, call.id) for call in calls]
                    found.append(ai.ModelResponse(parts=parts))
                case retinue.ToolMessage(call_id=call_id, content=text, images=images):
                    part = ai.ToolReturnPart(names[call_id], _content(text, images), call_id)
                    found.append(ai.ModelRequest(parts=[part]))
        return found


def _content(text: str, images: tuple[retinue.Image, ...]) -> str | Sequence[ai.UserContent]:
    if not images:
        return text
    shown = [
        ai.BinaryContent(base64.b64decode(one.data), media_type=one.media_type) for one in images
    ]
    return [text, *shown]


async def main(directory: str, task: str) -> None:
    model = PydanticAiModel(os.environ.get("PYDANTIC_AI_MODEL", "test"))
    async with retinue.open(directory, model=model) as rt:
        result = await rt.spawn("researcher", task, tools=["list_dir"])
    print(result.response if result.ok else f"{result.status}: {result.error}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("Usage: python examples/models/pydantic_ai_model.py DIR TASK")
    asyncio.run(main(*sys.argv[1:]))
