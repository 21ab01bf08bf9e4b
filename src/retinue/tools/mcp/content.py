"""Results of MCP tools as text for a model. Images and other binary content are described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from retinue.domain.framing import frame
from retinue.tools.excerpt import MAX_BYTES

_NO_CONTENT = "[The server answered without content.]"


class CallResult(msgspec.Struct, frozen=True):
    """Result of a call as text. `failed` is what the tool itself reports."""

    text: str
    failed: bool = False


def render_result(result: Mapping[str, Any]) -> CallResult:
    """Convert the result of a `tools/call` request to text."""
    content = result.get("content")
    blocks = content if isinstance(content, Sequence) and not isinstance(content, str) else ()
    parts = [_render_block(block) for block in blocks if isinstance(block, Mapping)]
    structured = result.get("structuredContent")
    if structured is not None and not _is_repeated_as_text(structured, blocks):
        parts.append(_json(structured))
    return CallResult("\n".join(parts) or _NO_CONTENT, failed=result.get("isError") is True)


def frame_untrusted(text: str, source: str) -> str:
    """Frame `text` as untrusted content, cut to MAX_BYTES."""
    data = text.encode("utf-8", "replace")
    note = ""
    if len(data) > MAX_BYTES:
        text = data[:MAX_BYTES].decode("utf-8", "ignore")
        note = f"\n[the first {MAX_BYTES:,} of {len(data):,} bytes; ask for less at once]"
    return frame(text, kind="untrusted", source=source) + note


def _render_block(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        size = _decoded_bytes(block.get("data"))
        return f"[{kind} ({block.get('mimeType', 'unknown type')}, {size:,} bytes), not shown]"
    if kind == "resource_link":
        about = ", ".join(str(block[key]) for key in ("title", "description") if block.get(key))
        name = f"{block.get('uri', '')} {block.get('name', '')}"
        return f"[resource {name}: {about or 'no description'}]"
    if kind == "resource" and isinstance(resource := block.get("resource"), Mapping):
        uri, mime = resource.get("uri", ""), resource.get("mimeType", "unknown type")
        if isinstance(resource.get("text"), str):
            return f"[resource {uri} ({mime})]\n{resource['text']}"
        size = _decoded_bytes(resource.get("blob"))
        return f"[resource {uri} ({mime}, {size:,} bytes), not shown]"
    return f"[content of the unknown type {str(kind)[:40]!r}]\n{_json(block)}"


def _is_repeated_as_text(structured: Any, blocks: Sequence[Any]) -> bool:
    """Whether a text block repeats the structured content, as servers do for older clients."""
    for block in blocks:
        if isinstance(block, Mapping) and isinstance(text := block.get("text"), str):
            try:
                if msgspec.json.decode(text) == structured:
                    return True
            except (msgspec.DecodeError, RecursionError):
                continue
    # FastMCP wraps a plain value into an object.
    if isinstance(structured, Mapping) and structured.keys() == {"result"}:
        texts = [b.get("text") for b in blocks if isinstance(b, Mapping)]
        return "\n".join(map(str, texts)) == str(structured["result"])
    return False


def _decoded_bytes(data: Any) -> int:
    return len(data.rstrip("=")) * 3 // 4 if isinstance(data, str) else 0


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode("utf-8", "replace")
