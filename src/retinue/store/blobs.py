"""Large strings of payloads, kept apart: each once, compressed, under the hash of what it holds.

A child's opening, the files it reads and what commands print are most of a journal, and siblings
share much of them. A payload without its large strings is still JSON that SQL can look into.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

LARGE_BYTES = 1024
# With level 6 a tenth less, for twice the time. The usual window and memory make no difference to
# the size of a few KiB, and take twice the time to be set up.
_LEVEL, _WINDOW_BITS, _MEMORY_LEVEL = 1, 14, 7

Places = list[tuple[int, str]]
"""Where in the bytes that are left a string goes back to, and its hash."""


class Cut(NamedTuple):
    """A payload, and the strings that were taken out of it, by their hashes."""

    payload: bytes
    places: Places
    strings: dict[str, bytes]


def cut(payload: bytes) -> Cut:
    """Take the large strings out of JSON, as they are written there."""
    kept: list[bytes] = []
    places: Places = []
    strings: dict[str, bytes] = {}
    # Without what is escaped, each quote begins a string or ends one. An expression would take ten
    # times as long.
    plain = payload.replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0")
    start = end = size = 0
    for number, part in enumerate(plain.split(b'"')):
        if number % 2 and len(part) >= LARGE_BYTES:
            string = payload[start : start + len(part)]
            digest = hashlib.sha256(string).hexdigest()
            strings[digest] = string
            kept.append(payload[end:start])
            size += start - end
            places.append((size, digest))
            end = start + len(part)
        start += len(part) + 1
    return Cut(b"".join((*kept, payload[end:])), places, strings)


def joined(payload: bytes, places: Places, strings: Mapping[str, bytes]) -> bytes:
    """The payload as it was. KeyError for the hash of a string that is not there."""
    parts: list[bytes] = []
    end = 0
    for place, digest in places:
        parts += (payload[end:place], strings[digest])
        end = place
    return b"".join((*parts, payload[end:]))


def pack(string: bytes) -> bytes:
    press = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL)
    return press.compress(string) + press.flush()


def unpack(digest: str, data: object) -> bytes | None:
    """The string of that hash; None if the data is not what was kept."""
    try:
        string = zlib.decompress(data) if isinstance(data, bytes) else b""
    except zlib.error:
        return None
    return string if hashlib.sha256(string).hexdigest() == digest else None


def write_places(places: Places) -> str | None:
    return msgspec.json.encode(places).decode() if places else None


def read_places(text: str) -> Places:
    """Raises msgspec.DecodeError for what `write_places` has not written."""
    return msgspec.json.decode(text, type=Places)
