"""What a model thought before it called tools, as chat completions carry it.

DeepSeek and others must be given it back with the results, under the name that it came with; chat
templates of local models (Qwen, gpt-oss) put it to use. Who does not want it says so, see `body`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from retinue.domain.messages import Thought, Thoughts

UNSET = msgspec.UNSET


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """Most servers have the first name for it, vLLM and Groq the second."""

    reasoning_content: str | msgspec.UnsetType = UNSET
    reasoning: str | msgspec.UnsetType = UNSET


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Reasoning).decode


def kept(pieces: Sequence[str], *, named: str, by: str) -> Thoughts | None:
    """The thoughts of a reply, to be sent back to the model of that name."""
    text = "".join(pieces)
    if not text:
        return None
    # Halves of surrogate pairs have no UTF-8.
    text = text.encode("utf-8", "replace").decode()
    return Thoughts(by, (Thought(_encode({named: text}).decode()),))


def given_back(thoughts: Thoughts) -> Reasoning:
    return _decode(thoughts.blocks[0].block)
