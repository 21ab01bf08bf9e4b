"""Scripted replies in the format of Anthropic's Messages API, for `retinue.testing.server`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from retinue.domain.messages import Finish
from retinue.models.scripted.model import ScriptedReply

PIECE_CHARS = 12


def streamed(answer: ScriptedReply) -> bytes:
    """The reply as a stream of events with a few characters each."""
    usage = _usage(answer)
    start: dict[str, Any] = {"type": "message", "role": "assistant", "content": []}
    if usage is not None:
        start["usage"] = {**usage, "output_tokens": 1}
    sent = [event("message_start", message=start), event("ping")]
    for index, block in enumerate(_blocks(answer)):
        sent += _block_events(index, block)
    delta = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
    ending: dict[str, Any] = {"delta": delta}
    if usage is not None:
        ending["usage"] = {"output_tokens": usage["output_tokens"]}
    sent += [event("message_delta", **ending), event("message_stop")]
    return b"".join(sent)


def whole(answer: ScriptedReply) -> dict[str, Any]:
    """The reply as one message, as from a server that does not stream."""
    made: dict[str, Any] = {
        "type": "message",
        "role": "assistant",
        "content": list(_blocks(answer)),
        "stop_reason": _stop_reason(answer),
    }
    usage = _usage(answer)
    return made if usage is None else {**made, "usage": usage}


def error(message: str, *, kind: str = "api_error") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_test"}


def event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (
        kind.encode(),
        msgspec.json.encode({"type": kind, **fields}),
    )


def forged(request: Any) -> str | None:
    """The place of the first thinking block whose text does not match its signature."""
    turns = request.get("messages") if isinstance(request, dict) else None
    for number, turn in enumerate(turns if isinstance(turns, list) else ()):
        content = turn.get("content") if isinstance(turn, dict) else None
        for place, block in enumerate(content if isinstance(content, list) else ()):
            if block.get("type") != "thinking":
                continue
            if block.get("signature") != _signature(str(block.get("thinking"))):
                return f"messages.{number}.content.{place}"
    return None


def _blocks(answer: ScriptedReply) -> Iterator[dict[str, Any]]:
    if answer.thought:
        signature = _signature(answer.thought)
        yield {"type": "thinking", "thinking": answer.thought, "signature": signature}
    if answer.text:
        yield {"type": "text", "text": answer.text}
    for number, plan in enumerate(answer.calls):
        arguments = msgspec.Raw(plan.arguments.encode())
        yield {"type": "tool_use", "id": f"toolu_{number}", "name": plan.name, "input": arguments}


def _block_events(index: int, block: dict[str, Any]) -> list[bytes]:
    deltas: Iterable[Mapping[str, Any]]
    match block["type"]:
        case "text":
            opening = {**block, "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in split(block["text"])]
        case "thinking":
            opening = {**block, "thinking": "", "signature": ""}
            deltas = [
                *({"type": "thinking_delta", "thinking": p} for p in split(block["thinking"])),
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case _:
            opening = {**block, "input": {}}
            pieces = split(bytes(block["input"]).decode())
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return [
        event("content_block_start", index=index, content_block=opening),
        *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
        event("content_block_stop", index=index),
    ]


def _signature(thought: str) -> str:
    return hashlib.sha256(thought.encode()).hexdigest()


def split(text: str) -> list[str]:
    return [text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS)]


def _stop_reason(answer: ScriptedReply) -> str:
    if answer.finish is Finish.LENGTH:
        return "max_tokens"
    return "tool_use" if answer.calls else "end_turn"


def _usage(answer: ScriptedReply) -> dict[str, int] | None:
    usage = answer.usage
    if usage is None:
        return None
    return {
        "input_tokens": usage.tokens_in - usage.tokens_cached - usage.tokens_written,
        "cache_read_input_tokens": usage.tokens_cached,
        "cache_creation_input_tokens": usage.tokens_written,
        "output_tokens": usage.tokens_out,
    }
