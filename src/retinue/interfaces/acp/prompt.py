"""A prompt of the editor: its blocks become the user's message and what is attached to it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from retinue.interfaces.json_rpc import INVALID_PARAMS, RpcError
from retinue.ports.person import ReadBuffer
from retinue.runtime.delegation.attachments import NamedData

ONLY_ATTACHMENTS = "See what is attached."
_EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}


class Prompt(msgspec.Struct, frozen=True):
    text: str
    files: tuple[str | NamedData, ...] = ()


async def read_prompt(blocks: Any, root: Path, read_buffer: ReadBuffer) -> Prompt:
    """The message in the blocks of a prompt. Raises RpcError.

    A file of the project is attached as the editor has it, with changes that are not saved.
    """
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise RpcError(INVALID_PARAMS, "A prompt is a list of content blocks.")
    text: list[str] = []
    files: list[str | NamedData] = []
    for block in blocks:
        match block:
            case {"type": "text", "text": str(words)}:
                text.append(words)
            case {"type": "image", "data": str(data), "mimeType": str(kind)}:
                files.append(_image(data, kind, len(files) + 1))
            case {"type": "resource_link", "uri": str(uri)}:
                path = _path(uri)
                text.append(uri if path is None else f"@{_name(path, root)}")
                if path is not None and path.is_file() and path.is_relative_to(root):
                    buffer = await read_buffer(str(path))
                    name = _name(path, root)
                    files.append(name if buffer is None else NamedData(name, buffer.encode()))
            case {"type": "resource", "resource": {"uri": str(uri)} as resource}:
                path = _path(uri)
                name = uri if path is None else _name(path, root)
                text.append(f"@{name}")
                files.append(NamedData(name, _content(resource)))
            case _:
                raise RpcError(
                    INVALID_PARAMS,
                    f"Cannot read a content block of type {block.get('type')!r}; there are: text,"
                    " image, resource_link, resource.",
                )
    return Prompt(_joined(text).strip() or (ONLY_ATTACHMENTS if files else ""), tuple(files))


def _joined(parts: Sequence[str]) -> str:
    """The parts of a message, with a space where a link would touch a word."""
    joined = ""
    for part in parts:
        touches = joined and part and not (joined[-1].isspace() or part[0].isspace())
        joined += f" {part}" if touches else part
    return joined


def _image(data: str, kind: str, number: int) -> NamedData:
    if kind not in _EXTENSIONS:
        known = ", ".join(_EXTENSIONS)
        raise RpcError(
            INVALID_PARAMS, f"Cannot read an image of type {kind!r}; there are: {known}."
        )
    return NamedData(f"image-{number}.{_EXTENSIONS[kind]}", _decoded(data))


def _content(resource: dict[str, Any]) -> bytes:
    match resource:
        case {"text": str(text)}:
            return text.encode("utf-8", "replace")
        case {"blob": str(blob)}:
            return _decoded(blob)
    raise RpcError(INVALID_PARAMS, "A resource has a text, or a blob in base64.")


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise RpcError(INVALID_PARAMS, "The data of a block is not base64.") from None


def _path(uri: str) -> Path | None:
    """The file that a URI or a path names; None for anything else."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if parts.scheme not in ("", "file") or "\0" in unquote(parts.path):
        return None
    path = Path(unquote(parts.path))
    return path if path.is_absolute() else None


def _name(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
