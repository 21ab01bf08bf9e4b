"""An OpenAI-compatible chat-completions server that knows one conversation.

It runs in a process of its own, so that its CPU is nobody's cost, and is a bare protocol with
answers encoded beforehand, so that it is never what a contestant waits for. It stops when its
standard input closes, and so cannot outlive the benchmark that started it.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import Any

from benchmarks.workload import (
    ANSWER,
    LEADER,
    MARKS,
    PLAIN,
    SCRIPTS,
    STREAM,
    STREAM_CHUNKS,
    TOOL_CALLS,
    Call,
    task,
)
from retinue.domain.messages import Usage
from retinue.models.scripted.model import ScriptedReply
from retinue.testing import responses_format

_TEXT_CHUNKS = 8
_LEAD = re.compile(rb"Lead (\d+) children from part (\d+)\.")


def _usage(position: int) -> dict[str, int]:
    prompt, completion = 1000 + 150 * position, 80 if position == TOOL_CALLS else 20
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _call_id(position: int) -> str:
    return f"call_bench_{position}"


def _envelope(model: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-bench",
        "object": kind,
        "created": 1_700_000_000,
        "model": model,
        **fields,
    }


def _whole(model: str, position: int, call: Call | None) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": ANSWER if call is None else None}
    if call is not None:
        function = {"name": call.tool, "arguments": json.dumps({call.argument: call.path})}
        message["tool_calls"] = [
            {"id": _call_id(position), "type": "function", "function": function}
        ]
    finish = "stop" if call is None else "tool_calls"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    reply = _envelope(model, "chat.completion", choices=[choice], usage=_usage(position))
    return _response(b"application/json", json.dumps(reply).encode())


def _deltas(position: int, call: Call | None) -> list[dict[str, Any]]:
    if call is None:
        words = ANSWER.split(" ")
        size = -(-len(words) // _TEXT_CHUNKS)
        pieces = [" ".join(words[i : i + size]) for i in range(0, len(words), size)]
        return [{"content": piece if i == 0 else f" {piece}"} for i, piece in enumerate(pieces)]
    arguments = json.dumps({call.argument: call.path})
    half = len(arguments) // 2
    opening = {
        "index": 0,
        "id": _call_id(position),
        "type": "function",
        "function": {"name": call.tool, "arguments": ""},
    }
    return [{"tool_calls": [opening]}] + [
        {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
        for piece in (arguments[:half], arguments[half:])
    ]


def _streamed(model: str, position: int, call: Call | None, *, with_usage: bool) -> bytes:
    finish = "stop" if call is None else "tool_calls"
    return _stream(model, _deltas(position, call), finish, position, with_usage=with_usage)


def _stream(
    model: str, deltas: list[dict[str, Any]], finish: str, position: int, *, with_usage: bool
) -> bytes:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return _envelope(model, "chat.completion.chunk", choices=[choice])

    chunks = [chunk({"role": "assistant", "content": "" if finish == "stop" else None})]
    chunks += [chunk(delta) for delta in deltas]
    chunks.append(chunk({}, finish))
    if with_usage:
        chunks.append(_envelope(model, "chat.completion.chunk", choices=[], usage=_usage(position)))
    events = [b"data: " + json.dumps(c, separators=(",", ":")).encode() + b"\n\n" for c in chunks]
    events.append(b"data: [DONE]\n\n")
    return _event_stream(events)


def _responses() -> bytes:
    """A stream of the Responses API with as many pieces of text as the other stream."""
    usage = Usage(1000, 0, STREAM_CHUNKS)
    reply = ScriptedReply(text="eleven chars" * STREAM_CHUNKS, usage=usage)
    *events, _ = responses_format.streamed(reply).split(b"\n\n")
    return _event_stream([event + b"\n\n" for event in events])


def _event_stream(events: list[bytes]) -> bytes:
    # One HTTP chunk per event, as real servers send them, in one write.
    body = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
        b"transfer-encoding: chunked\r\n\r\n" + body
    )


def _led(children: int, first: int, *, begun: bool) -> bytes:
    """The streamed reply of a model that gives every child its task in one go, and then is done."""
    if begun:
        return _streamed(LEADER, TOOL_CALLS, None, with_usage=True)
    calls = [
        {
            "index": index,
            "id": f"call_lead_{first + index}",
            "type": "function",
            "function": {
                "name": "spawn_agent",
                "arguments": json.dumps(
                    {"task": task(first + index), "role": "researcher", "model": "bench"}
                ),
            },
        }
        for index in range(children)
    ]
    deltas = [{"tool_calls": [call]} for call in calls]
    return _stream(LEADER, deltas, "tool_calls", 0, with_usage=True)


def _response(content_type: bytes, body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        content_type,
        len(body),
        body,
    )


def _json(value: Any, status: bytes = b"200 OK") -> bytes:
    return _response(b"application/json", json.dumps(value).encode(), status)


def _has(body: bytes, key: bytes, value: bytes) -> bool:
    return b'"%b":%b' % (key, value) in body or b'"%b": %b' % (key, value) in body


class Conversation:
    """The script's answers, encoded once, and the tally of what was asked."""

    def __init__(self) -> None:
        self._answers = {
            (model, position, streamed, with_usage): _streamed(
                model, position, call, with_usage=with_usage
            )
            if streamed
            else _whole(model, position, call)
            for model, calls in SCRIPTS.items()
            for position, call in enumerate([*calls, None])
            for streamed in (False, True)
            for with_usage in (False, True)
        }
        self._plain = _whole(PLAIN, TOOL_CALLS, None)
        words = [{"content": f"word {number} "} for number in range(STREAM_CHUNKS)]
        self._stream = _stream(STREAM, words, "stop", TOOL_CALLS, with_usage=True)
        self._responses = _responses()
        self._models = _json(
            {
                "object": "list",
                "data": [
                    {"id": model, "object": "model", "created": 0, "owned_by": "bench"}
                    for model in SCRIPTS
                ],
            }
        )
        self._missing = _json({"error": {"message": "no such page"}}, b"404 Not Found")
        self._requests = 0
        self._finished = 0
        self._body_bytes = 0

    def answer(self, target: bytes, body: bytes) -> bytes:
        if target.endswith(b"/chat/completions"):
            return self._complete(body)
        if target.endswith(b"/responses"):
            return self._responses
        if target.endswith(b"/models"):
            return self._models
        if target == b"/tally":
            return _json(
                {
                    "requests": self._requests,
                    "finished": self._finished,
                    "body_bytes": self._body_bytes,
                }
            )
        return self._missing

    def _complete(self, body: bytes) -> bytes:
        if lead := _LEAD.search(body):
            # Whoever leads a fan-out is no child, and not counted among them.
            return _led(int(lead[1]), int(lead[2]), begun=b'"role":"tool"' in body)
        if _has(body, b"model", b'"%b"' % PLAIN.encode()):
            return self._plain
        if _has(body, b"model", b'"%b"' % STREAM.encode()):
            return self._stream
        self._requests += 1
        self._body_bytes += len(body)
        # The bodies are searched, not parsed: parsing would double the cost of a request.
        position = body.count(b'"role":"tool"') + body.count(b'"role": "tool"')
        position = min(position, TOOL_CALLS)
        if position == TOOL_CALLS and all(mark in body for mark in MARKS):
            self._finished += 1
        return self._answers[
            "bench-ls" if _has(body, b"model", b'"bench-ls"') else "bench",
            position,
            _has(body, b"stream", b"true"),
            _has(body, b"include_usage", b"true"),
        ]


class HttpProtocol(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, as much of it as model clients use."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._buffer = self._buffer + data if self._buffer else data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end]
            lowered = head.lower()
            if b"\r\ntransfer-encoding:" in lowered:
                self._transport.write(_json({"error": "send a length"}, b"411 Length Required"))
                self._transport.close()
                return
            _, named, rest = lowered.partition(b"\r\ncontent-length:")
            length = int(rest.split(b"\r\n", 1)[0]) if named else 0
            start = end + 4
            if len(self._buffer) < start + length:
                return
            body = self._buffer[start : start + length]
            self._buffer = self._buffer[start + length :]
            target = head.split(b" ", 2)[1]
            self._transport.write(self._conversation.answer(target, body))


async def serve() -> None:
    loop = asyncio.get_running_loop()
    conversation = Conversation()
    # A fan-out opens all of its connections at once; the default backlog would refuse some.
    server = await loop.create_server(
        lambda: HttpProtocol(conversation), "127.0.0.1", 0, backlog=4096
    )
    async with server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await loop.run_in_executor(None, sys.stdin.buffer.read)


if __name__ == "__main__":
    asyncio.run(serve())
