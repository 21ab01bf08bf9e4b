"""Large strings of payloads, stored apart: each once, compressed, under the hash of its content.

A child's opening messages, the files it reads and the output of commands are most of a journal, and
siblings share much of them. A payload without its large strings is still JSON that SQL can query.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

LARGE_BYTES = 1024
# Level 6 saves a tenth of the size for twice the time. The default window and memory level do not
# change the size of a few KiB, and take twice the time to set up.
_LEVEL, _WINDOW_BITS, _MEMORY_LEVEL = 1, 14, 7

BlobRefs = list[tuple[int, str]]
"""For each string that was taken out: its offset in the remaining bytes, and its hash."""


class Extracted(NamedTuple):
    """A payload without its large strings, and those strings by their hashes."""

    payload: bytes
    refs: BlobRefs
    strings: dict[str, bytes]


def extract(payload: bytes) -> Extracted:
    """Take the large strings out of JSON, in their escaped form."""
    kept: list[bytes] = []
    refs: BlobRefs = []
    strings: dict[str, bytes] = {}
    # With escapes blanked out, each quote starts or ends a string. A regular expression would take
    # ten times as long.
    plain = payload.replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0")
    start = end = size = 0
    for number, part in enumerate(plain.split(b'"')):
        if number % 2 and len(part) >= LARGE_BYTES:
            string = payload[start : start + len(part)]
            digest = hashlib.sha256(string).hexdigest()
            strings[digest] = string
            kept.append(payload[end:start])
            size += start - end
            refs.append((size, digest))
            end = start + len(part)
        start += len(part) + 1
    return Extracted(b"".join((*kept, payload[end:])), refs, strings)


def restore(payload: bytes, refs: BlobRefs, strings: Mapping[str, bytes]) -> bytes:
    """The original payload. KeyError for the hash of a missing string."""
    parts: list[bytes] = []
    end = 0
    for offset, digest in refs:
        parts += (payload[end:offset], strings[digest])
        end = offset
    return b"".join((*parts, payload[end:]))


def compress(string: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL)
    return compressor.compress(string) + compressor.flush()


def decompress(digest: str, data: object) -> bytes | None:
    """The string with that hash; None if the data was changed."""
    try:
        string = zlib.decompress(data) if isinstance(data, bytes) else b""
    except zlib.error:
        return None
    return string if hashlib.sha256(string).hexdigest() == digest else None


def encode_refs(refs: BlobRefs) -> str | None:
    return msgspec.json.encode(refs).decode() if refs else None


def decode_refs(text: str) -> BlobRefs:
    """Raises msgspec.DecodeError for text that `encode_refs` did not write."""
    return msgspec.json.decode(text, type=BlobRefs)
