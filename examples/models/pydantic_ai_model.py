"""A model of pydantic-ai: python examples/models/pydantic_ai_model.py DIR TASK

Needs `pip install pydantic-ai-slim`. The model is "test", which needs no key; any other name of
pydantic-ai works: PYDANTIC_AI_MODEL=openai:gpt-4.1.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable

from pydantic_ai import messages as ai
from pydantic_ai.direct import model_request
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.tools import ToolDefinition

import retinue


class PydanticAiModel:
    """Any model of pydantic-ai."""

    def __init__(self, model: str) -> None:
        self.name = f"pydantic-ai:{model}"
        self._model = infer_model(model)

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
        answer = await model_request(
            self._model,
            _converted(request.messages),
            model_request_parameters=ModelRequestParameters(function_tools=tools),
        )
        text = "".join(part.content for part in answer.parts if isinstance(part, ai.TextPart))
        calls = tuple(
            retinue.ToolCall(part.tool_call_id, part.tool_name, part.args_as_json_str())
            for part in answer.parts
            if isinstance(part, ai.ToolCallPart)
        )
        if on_text is not None:
            on_text(text)
        return retinue.Reply(
            message=retinue.AssistantMessage(text, calls),
            usage=retinue.Usage(answer.usage.input_tokens, 0, answer.usage.output_tokens),
            finish=retinue.Finish.TOOLS if calls else retinue.Finish.STOP,
        )

    async def aclose(self) -> None:
        pass


def _converted(messages: tuple[retinue.Message, ...]) -> list[ai.ModelMessage]:
    names: dict[str, str] = {}
    found: list[ai.ModelMessage] = []
    for message in messages:
        match message:
            case retinue.SystemMessage(content=text):
                found.append(ai.ModelRequest(parts=[ai.SystemPromptPart(text)]))
            case retinue.UserMessage(content=text):
                found.append(ai.ModelRequest(parts=[ai.UserPromptPart(text)]))
            case retinue.AssistantMessage(content=text, calls=calls):
                names |= {call.id: call.name for call in calls}
                made = [ai.ToolCallPart(call.name, call.arguments, call.id) for call in calls]
                said = [ai.TextPart(text)] if text else []
                found.append(ai.ModelResponse(parts=[*said, *made]))
            case retinue.ToolMessage(call_id=call_id, content=text):
                part = ai.ToolReturnPart(names[call_id], text, call_id)
                found.append(ai.ModelRequest(parts=[part]))
    return found


async def main(directory: str, task: str) -> None:
    model = PydanticAiModel(os.environ.get("PYDANTIC_AI_MODEL", "test"))
    async with retinue.open(directory, model=model) as rt:
        result = await rt.spawn("researcher", task, tools=["list_dir"])
    print(result.response if result.ok else f"{result.status}: {result.error}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("Usage: python examples/models/pydantic_ai_model.py DIR TASK")
    asyncio.run(main(*sys.argv[1:]))
