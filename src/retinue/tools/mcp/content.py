"""Results of MCP tools as text and images for a model. Other binary content is described."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from retinue.domain.framing import frame
from retinue.domain.images import Image, is_image, read_image
from retinue.errors import ToolFailure
from retinue.tools.excerpt import MAX_BYTES

_MAX_IMAGES = 8
_MAX_FILE_BYTES = 20 * 1024 * 1024
_NO_CONTENT = "[The server answered without content.]"


class CallResult(msgspec.Struct, frozen=True):
    """Result of a call as text. `failed` is what the tool itself reports."""

    text: str
    failed: bool = False
    images: tuple[Image, ...] = ()


def render_result(result: Mapping[str, Any]) -> CallResult:
    """Convert the result of a `tools/call` request to text and images.

    Blocks; a large image takes half a second to be made smaller.
    """
    content = result.get("content")
    blocks = content if isinstance(content, Sequence) and not isinstance(content, str) else ()
    images: list[Image] = []
    parts = [_render_block(block, images) for block in blocks if isinstance(block, Mapping)]
    structured = result.get("structuredContent")
    if structured is not None and not _is_repeated_as_text(structured, blocks):
        parts.append(_json(structured))
    return CallResult(
        "\n".join(parts) or _NO_CONTENT,
        failed=result.get("isError") is True,
        images=tuple(images),
    )


def frame_untrusted(text: str, source: str) -> str:
    """Frame `text` as untrusted content, cut to MAX_BYTES."""
    data = text.encode("utf-8", "replace")
    note = ""
    if len(data) > MAX_BYTES:
        text = data[:MAX_BYTES].decode("utf-8", "ignore")
        note = f"\n[the first {MAX_BYTES:,} of {len(data):,} bytes; ask for less at once]"
    return frame(text, kind="untrusted", source=source) + note


def _render_block(block: Mapping[str, Any], images: list[Image]) -> str:
    """The text for a block. Images that models can be sent are added to `images`."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        shown = f"{kind} ({block.get('mimeType', 'unknown type')}"
        return _render_binary(shown, block.get("data"), images)
    if kind == "resource_link":
        about = ", ".join(str(block[key]) for key in ("title", "description") if block.get(key))
        name = f"{block.get('uri', '')} {block.get('name', '')}"
        return f"[resource {name}: {about or 'no description'}]"
    if kind == "resource" and isinstance(resource := block.get("resource"), Mapping):
        uri, mime = resource.get("uri", ""), resource.get("mimeType", "unknown type")
        if isinstance(resource.get("text"), str):
            return f"[resource {uri} ({mime})]\n{resource['text']}"
        return _render_binary(f"resource {uri} ({mime}", resource.get("blob"), images)
    return f"[content of the unknown type {str(kind)[:40]!r}]\n{_json(block)}"


def _render_binary(shown: str, data: Any, images: list[Image]) -> str:
    """`shown` begins with what the data is, and ends inside of a parenthesis."""
    size, why = _decoded_bytes(data), ""
    try:
        decoded = base64.b64decode(data, validate=True) if size <= _MAX_FILE_BYTES else b""
        if is_image(decoded):
            if len(images) == _MAX_IMAGES:
                raise ToolFailure(f"there are more than {_MAX_IMAGES}")
            images.append(image := read_image(f"{len(images) + 1} of this result", decoded))
            return f"[{image}]"
    except (ValueError, TypeError):
        why = ": it is no base64"
    except ToolFailure as failure:
        why = f": {failure}"
    return f"[{shown}, {size:,} bytes), not shown{why}]"


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
