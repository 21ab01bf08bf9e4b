"""What one model call costs: our client beside the barest one that is still correct.

Both call from one process, lap by lap in turn, so that a slow moment of the machine falls on both.
The cheapest lap of each counts: other programs can make a lap dearer, and nothing makes it cheaper.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.workload import INSTRUCTIONS, PLAIN, RESPONSES, STREAM, task
from retinue.domain.messages import Request, SystemMessage, UserMessage
from retinue.models.http.endpoint import Endpoint
from retinue.models.openai.model import OpenAIModel
from retinue.models.repair.model import RepairedModel
from retinue.models.responses.model import ResponsesModel

LAPS = 100
_AT_ONCE = 8
_CALLS = {PLAIN: 48, STREAM: 16, RESPONSES: 16}
"""How many make a lap: a few, so that some laps are not interrupted by other programs."""

OnText = Callable[[str], None]
Ask = Callable[[OnText], Awaitable[int]]
"""Makes one call, and answers how many tokens its reply had."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """CPU per call in microseconds."""

    model: str
    bare_us: float
    retinue_us: float

    @property
    def times_bare(self) -> float:
        return self.retinue_us / self.bare_us


def measure_calls(base_url: str, root: Path) -> tuple[Cost, ...]:
    """In a process of its own: it shall have nothing else to do, and nothing else to collect."""
    command = [sys.executable, "-m", "benchmarks.calls", base_url]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the calls ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout, type=tuple[Cost, ...])


class _Message(msgspec.Struct, frozen=True, gc=False):
    role: str
    content: str


class _StreamOptions(msgspec.Struct, frozen=True, gc=False):
    include_usage: bool = True


class _Body(msgspec.Struct, frozen=True, gc=False):
    model: str
    messages: list[_Message]
    stream: bool = True
    stream_options: _StreamOptions = _StreamOptions()


class _Text(msgspec.Struct, frozen=True, gc=False):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True, gc=False):
    delta: _Text | None = None
    message: _Text | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct, frozen=True, gc=False):
    prompt_tokens: int
    completion_tokens: int


class _Chunk(msgspec.Struct, frozen=True, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None


class _ResponsesBody(msgspec.Struct, frozen=True, gc=False):
    model: str
    input: list[_Message]
    instructions: str = INSTRUCTIONS
    stream: bool = True
    store: bool = False


class _ResponseUsage(msgspec.Struct, frozen=True, gc=False):
    input_tokens: int
    output_tokens: int


class _Response(msgspec.Struct, frozen=True, gc=False):
    usage: _ResponseUsage | None = None


class _Event(msgspec.Struct, frozen=True, gc=False):
    type: str
    delta: str | None = None
    response: _Response | None = None


_encode = msgspec.json.Encoder().encode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode = msgspec.json.Decoder(_Chunk).decode
_MESSAGES = [_Message("system", INSTRUCTIONS), _Message("user", task(1))]
_REQUEST = Request(messages=(SystemMessage(INSTRUCTIONS), UserMessage(task(1))))


def _session() -> aiohttp.ClientSession:
    """With what our own client tells aiohttp, so that it is not the settings that are compared."""
    return aiohttp.ClientSession(
        headers={
            "accept": "*/*",
            "accept-encoding": "identity",
            "authorization": "Bearer bench",
            "content-type": "application/json",
            "user-agent": "bench",
        },
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
    )


async def _plain(session: aiohttp.ClientSession, url: str, on_text: OnText) -> tuple[str, _Usage]:
    async with session.post(url, data=_encode(_Body(PLAIN, _MESSAGES))) as response:
        response.raise_for_status()
        chunk = _decode(await response.read())
    message = chunk.choices[0].message
    if message is None or message.content is None or chunk.usage is None:
        raise RuntimeError("the reply is not whole")
    on_text(message.content)
    return message.content, chunk.usage


async def _streamed(
    session: aiohttp.ClientSession, url: str, on_text: OnText
) -> tuple[str, _Usage]:
    text: list[str] = []
    usage: _Usage | None = None
    done = False
    async with session.post(url, data=_encode(_Body(STREAM, _MESSAGES))) as response:
        response.raise_for_status()
        rest = b""
        async for data in response.content.iter_any():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if not line.startswith(b"data: "):
                    continue
                if line == b"data: [DONE]":
                    done = True
                    continue
                chunk = _decode(line[6:])
                if chunk.usage is not None:
                    usage = chunk.usage
                for choice in chunk.choices:
                    if choice.delta is not None and choice.delta.content:
                        text.append(choice.delta.content)
                        on_text(choice.delta.content)
    if not done or usage is None:
        raise RuntimeError("the stream ended before [DONE]")
    return "".join(text), usage


async def _responded(
    session: aiohttp.ClientSession, url: str, on_text: OnText
) -> tuple[str, _Usage]:
    text: list[str] = []
    usage: _ResponseUsage | None = None
    async with session.post(
        url, data=_encode(_ResponsesBody(RESPONSES, _MESSAGES[1:]))
    ) as response:
        response.raise_for_status()
        rest = b""
        async for data in response.content.iter_any():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if not line.startswith(b"data: "):
                    continue
                event = _decode_event(line[6:])
                if event.type == "response.output_text.delta" and event.delta:
                    text.append(event.delta)
                    on_text(event.delta)
                elif event.type == "response.completed" and event.response is not None:
                    usage = event.response.usage
    if usage is None:
        raise RuntimeError("the stream ended before its response was complete")
    return "".join(text), _Usage(usage.input_tokens, usage.output_tokens)


_BAREST = {
    PLAIN: ("chat/completions", _plain),
    STREAM: ("chat/completions", _streamed),
    RESPONSES: ("responses", _responded),
}


async def _lap(ask: Ask, calls: int) -> float:
    """CPU per call in microseconds."""
    numbers = iter(range(calls))

    async def worker() -> None:
        for _ in numbers:
            heard: list[str] = []
            if not await ask(heard.append) or not heard:
                raise RuntimeError("an empty reply")

    before = time.process_time()
    async with asyncio.TaskGroup() as workers:
        for _ in range(_AT_ONCE):
            workers.create_task(worker())
    return 1e6 * (time.process_time() - before) / calls


async def _cost(base_url: str, name: str, calls: int) -> Cost:
    path, barest = _BAREST[name]
    url = f"{base_url}/{path}"
    client = ResponsesModel if name == RESPONSES else OpenAIModel
    endpoint = Endpoint(base_url=base_url, model=name, api_key="bench")
    # Repaired, as every model of a run is.
    async with _session() as session, aclosing(RepairedModel(client(endpoint))) as model:

        async def bare(on_text: OnText) -> int:
            return (await barest(session, url, on_text))[1].completion_tokens

        async def ours(on_text: OnText) -> int:
            return (await model.reply(_REQUEST, on_text)).usage.tokens_out

        for ask in (bare, ours):
            await _lap(ask, calls)  # opens the connections
        gc.freeze()
        pairs = [(await _lap(bare, calls), await _lap(ours, calls)) for _ in range(LAPS)]
    bare_us, retinue_us = (min(each) for each in zip(*pairs, strict=True))
    return Cost(model=name, bare_us=bare_us, retinue_us=retinue_us)


async def _costs(base_url: str) -> list[Cost]:
    return [await _cost(base_url, name, calls) for name, calls in _CALLS.items()]


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(_costs(sys.argv[1]))))
