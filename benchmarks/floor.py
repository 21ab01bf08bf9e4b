"""The floor: the HTTP traffic of a child from bare aiohttp and msgspec, with no agent in it.

It sends bodies of the size that retinue sends, reads the streamed answers into typed values, and
does nothing else: no tools run, no journal, no limits. Whatever costs more than this is ours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from benchmarks.contest import FanOut, Job, bounded, main
from benchmarks.workload import INSTRUCTIONS, MODEL_CALLS, NOTES, SCRIPTS, task


class Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str = ""


class ToolCallDelta(msgspec.Struct, frozen=True):
    index: int = 0
    id: str | None = None
    function: Function = Function()


class Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    tool_calls: list[ToolCallDelta] = []


class Choice(msgspec.Struct, frozen=True):
    delta: Delta
    finish_reason: str | None = None


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int


class Chunk(msgspec.Struct, frozen=True):
    choices: list[Choice] = []
    usage: Usage | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = True


class Request(msgspec.Struct, frozen=True):
    model: str
    messages: list[dict[str, Any]]
    tools: msgspec.Raw
    stream: bool = True
    stream_options: StreamOptions = StreamOptions()


def _schema(name: str) -> dict[str, Any]:
    """A tool's schema of about 270 bytes, the size of retinue's own: see `kB sent/child`."""
    path = {"type": "string", "description": "The file or folder"}
    limit = {"type": "integer"}
    parameters = {
        "type": "object",
        "properties": {"path": path, "limit": limit},
        "required": ["path"],
    }
    function = {"name": name, "description": "What it does. " * 4, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = msgspec.Raw(
    msgspec.json.encode(
        [_schema(n) for n in ("find", "grep", "list_dir", "read_file", "search", "stat")]
    )
)
# What the three tools would have said. Both marks of the files and the listing are in here, since
# the server counts a child as done only when it has seen them.
OBSERVATIONS = (NOTES["a.txt"], "\n".join(NOTES), NOTES["b.txt"])

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Chunk).decode


async def _ask(session: aiohttp.ClientSession, url: str, body: bytes) -> tuple[str, list[Function]]:
    """One model call: its text, and its tool calls as they were streamed, joined."""
    text: list[str] = []
    names: list[str] = []
    arguments: list[str] = []
    finished = False
    async with session.post(url, data=body) as response:
        response.raise_for_status()
        rest = b""
        async for data in response.content.iter_any():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if not line.startswith(b"data: "):
                    continue
                if line == b"data: [DONE]":
                    finished = True
                    continue
                for choice in _decode(line[6:]).choices:
                    if choice.delta.content:
                        text.append(choice.delta.content)
                    for call in choice.delta.tool_calls:
                        if call.function.name is not None:
                            names.append(call.function.name)
                        arguments.append(call.function.arguments)
    if not finished:
        raise RuntimeError("the stream ended before [DONE]")
    joined = "".join(arguments)
    return "".join(text), [Function(name=name, arguments=joined) for name in names]


@asynccontextmanager
async def floor(job: Job) -> AsyncIterator[FanOut]:
    url = f"{job.base_url}/chat/completions"
    headers = {"content-type": "application/json", "authorization": "Bearer bench"}
    connector = aiohttp.TCPConnector(limit=job.concurrency)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def child(number: int) -> bool:
            messages: list[dict[str, Any]] = [
                {"role": "system", "content": INSTRUCTIONS},
                {"role": "user", "content": task(number)},
            ]
            text = ""
            for position in range(MODEL_CALLS):
                request = Request(model="bench", messages=messages, tools=TOOLS)
                text, calls = await _ask(session, url, _encode(request))
                for call in calls:
                    call_id = f"call_{position}"
                    messages.append(
                        {
                            "role": "assistant",
                            "content": None,
                            "tool_calls": [{"id": call_id, "type": "function", "function": call}],
                        }
                    )
                    messages.append(
                        {
                            "role": "tool",
                            "tool_call_id": call_id,
                            "content": OBSERVATIONS[position],
                        }
                    )
            return bool(text) and len(messages) == 2 + 2 * len(SCRIPTS["bench"])

        async def fan_out(count: int) -> int:
            return await bounded(child, count, job.concurrency)

        yield fan_out


if __name__ == "__main__":
    main(floor)
