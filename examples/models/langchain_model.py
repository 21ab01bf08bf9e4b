"""A chat model of LangChain: python examples/models/langchain_model.py DIR TASK

Needs `pip install langchain-core`. The model here is LangChain's own fake; pass any chat model,
such as `ChatOpenAI(model="gpt-4.1")`, to `LangChainModel`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable

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
        tools = [
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
        model = self._model.bind(tools=tools) if tools else self._model
        answer = await model.ainvoke([_converted(message) for message in request.messages])
        text = str(answer.text)
        calls = tuple(
            retinue.ToolCall(call["id"] or f"call_{n}", call["name"], json.dumps(call["args"]))
            for n, call in enumerate(answer.tool_calls)
        )
        if on_text is not None:
            on_text(text)
        used = answer.usage_metadata
        usage = retinue.Usage(estimated=True)
        if used is not None:
            usage = retinue.Usage(used["input_tokens"], 0, used["output_tokens"])
        return retinue.Reply(
            message=retinue.AssistantMessage(text, calls),
            usage=usage,
            finish=retinue.Finish.TOOLS if calls else retinue.Finish.STOP,
        )

    async def aclose(self) -> None:
        pass


def _converted(message: retinue.Message) -> lc.BaseMessage:
    match message:
        case retinue.SystemMessage(content=text):
            return lc.SystemMessage(text)
        case retinue.UserMessage(content=text):
            return lc.HumanMessage(text)
        case retinue.ToolMessage(call_id=call_id, content=text):
            return lc.ToolMessage(text, tool_call_id=call_id)
        case retinue.AssistantMessage(content=text, calls=calls):
            made = [
                lc.tool_call(name=call.name, args=json.loads(call.arguments), id=call.id)
                for call in calls
            ]
            return lc.AIMessage(text, tool_calls=made)


async def main(directory: str, task: str) -> None:
    model = LangChainModel(FakeListChatModel(responses=["It is a fake answer."]))
    async with retinue.open(directory, model=model) as rt:
        result = await rt.spawn("researcher", task)
    print(result.response if result.ok else f"{result.status}: {result.error}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("Usage: python examples/models/langchain_model.py DIR TASK")
    asyncio.run(main(*sys.argv[1:]))
