"""The examples that adapt models of pydantic-ai and LangChain pass the tests of every model."""

from __future__ import annotations

import asyncio
import re
import runpy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from retinue import AssistantMessage, Request, ToolCall, ToolMessage
from retinue.testing import ModelContract, ScriptedReply, say
from retinue.testing.model_contract import OPENING

pytestmark = pytest.mark.services
EXAMPLES = Path(__file__).parents[1] / "examples" / "models"


def pieces(text: str) -> list[str]:
    return re.findall(r"\s*\S+\s*", text)


class TestPydanticAiModel(ModelContract):
    @asynccontextmanager
    async def opened(self, *steps: ScriptedReply) -> AsyncIterator[Any]:
        pytest.importorskip("pydantic_ai")
        from pydantic_ai.models import StreamedResponse
        from pydantic_ai.models.test import TestModel
        from pydantic_ai.usage import RequestUsage

        script = iter(steps)

        class Streamed(StreamedResponse):  # type: ignore[misc]
            model_name = provider_name = "scripted"
            provider_url = timestamp = None
            step: ScriptedReply

            async def _get_event_iterator(self) -> AsyncIterator[Any]:
                step, parts = self.step, self._parts_manager
                if step.thought:
                    for event in parts.handle_thinking_delta(
                        vendor_part_id="thought", content=step.thought, signature="s"
                    ):
                        yield event
                for piece in pieces(step.text):
                    for event in parts.handle_text_delta(vendor_part_id="text", content=piece):
                        yield event
                    await asyncio.sleep(step.delay_s)
                for number, call in enumerate(step.calls):
                    yield parts.handle_tool_call_part(
                        vendor_part_id=number, tool_name=call.name, args=call.arguments
                    )
                if step.usage is not None:
                    self._usage = RequestUsage(
                        input_tokens=step.usage.tokens_in,
                        cache_read_tokens=step.usage.tokens_cached,
                        cache_write_tokens=step.usage.tokens_written,
                        output_tokens=step.usage.tokens_out,
                    )
                self.finish_reason = "length" if step.finish == "length" else "stop"

            async def close_stream(self) -> None:
                pass

        class Scripted(TestModel):  # type: ignore[misc]
            @asynccontextmanager
            async def request_stream(
                self, messages: Any, model_settings: Any, model_request_parameters: Any, *_: Any
            ) -> AsyncIterator[Any]:
                streamed = Streamed(model_request_parameters)
                streamed.step = next(script)
                yield streamed

        yield runpy.run_path(str(EXAMPLES / "pydantic_ai_model.py"))["PydanticAiModel"](Scripted())


class TestLangChainModel(ModelContract):
    @asynccontextmanager
    async def opened(self, *steps: ScriptedReply) -> AsyncIterator[Any]:
        pytest.importorskip("langchain_core")
        from langchain_core.language_models import BaseChatModel
        from langchain_core.messages import AIMessageChunk
        from langchain_core.outputs import ChatGenerationChunk

        script = iter(steps)

        class Scripted(BaseChatModel):  # type: ignore[misc]
            _llm_type = "scripted"

            def _generate(self, *_: Any, **__: Any) -> Any:
                raise NotImplementedError

            async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
                step = next(script)
                if step.thought:
                    thought = {"type": "reasoning", "reasoning": step.thought, "index": 0}
                    yield ChatGenerationChunk(message=AIMessageChunk([thought]))
                for piece in pieces(step.text):
                    text = {"type": "text", "text": piece, "index": 1}
                    yield ChatGenerationChunk(message=AIMessageChunk([text]))
                    await asyncio.sleep(step.delay_s)
                chunks = [
                    {"name": one.name, "args": one.arguments, "id": f"call_{n}", "index": n}
                    for n, one in enumerate(step.calls)
                ]
                usage = step.usage and {
                    "input_tokens": step.usage.tokens_in,
                    "output_tokens": step.usage.tokens_out,
                    "total_tokens": step.usage.billed_tokens,
                    "input_token_details": {
                        "cache_read": step.usage.tokens_cached,
                        "cache_creation": step.usage.tokens_written,
                    },
                }
                last = AIMessageChunk(
                    "",
                    tool_call_chunks=chunks,
                    usage_metadata=usage,
                    response_metadata={"finish_reason": str(step.finish or "tool_calls")},
                    chunk_position="last",
                )
                yield ChatGenerationChunk(message=last)

        yield runpy.run_path(str(EXAMPLES / "langchain_model.py"))["LangChainModel"](Scripted())


@pytest.mark.parametrize("arguments", ["{", "[1]", '{"path": 1}'])
async def test_langchain_takes_calls_back_whatever_their_arguments(arguments: str) -> None:
    async with TestLangChainModel().opened(say("Once more.")) as model:
        made = AssistantMessage("", (ToolCall("c1", "read_file", arguments),))
        asked = (*OPENING, made, ToolMessage("c1", "[ERROR]", failed=True))
        assert (await model.reply(Request(messages=asked))).message.content == "Once more."
