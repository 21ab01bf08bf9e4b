"""A conversation in the format of Claude Code's transcripts, which some hooks read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from retinue.domain.hook_tools import hook_input, hook_names
from retinue.domain.messages import AssistantMessage, Message, ToolMessage, UserMessage


def transcript(messages: Sequence[Message], *, session: str, root: str, time: str) -> bytes:
    """One JSON object a line. The ids of the lines depend on session and position only."""
    lines: list[bytes] = []
    before: str | None = None
    for message in _as_told(messages, root):
        number = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{session}/{len(lines)}"))
        line = {
            "parentUuid": before,
            "isSidechain": False,
            "cwd": root,
            "sessionId": session,
            "type": message["role"],
            "message": message,
            "uuid": number,
            "timestamp": time,
        }
        lines.append(msgspec.json.encode(line) + b"\n")
        before = number
    return b"".join(lines)


def _as_told(messages: Sequence[Message], root: str) -> Iterator[dict[str, Any]]:
    for message in messages:
        match message:
            case UserMessage(content=content):
                yield {"role": "user", "content": content}
            case ToolMessage(call_id=id, content=content, failed=failed):
                result = {"tool_use_id": id, "type": "tool_result", "content": content}
                yield {"role": "user", "content": [result | ({"is_error": True} if failed else {})]}
            case AssistantMessage(content=content, calls=calls):
                parts: list[dict[str, Any]] = []
                if content:
                    parts.append({"type": "text", "text": content})
                for call in calls:
                    given = hook_input(call.name, _arguments(call.arguments), root)
                    name = hook_names(call.name)[0]
                    parts.append({"type": "tool_use", "id": call.id, "name": name, "input": given})
                yield {"role": "assistant", "content": parts}


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
