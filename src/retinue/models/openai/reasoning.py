"""What a model thought before it called tools, as chat completions carry it.

DeepSeek and others require it back with the results, in the field that it came in; chat templates
of local models (Qwen, gpt-oss) use it. For servers that refuse it, see `REASONING` in `request`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from retinue.domain.messages import Thought, Thoughts

UNSET = msgspec.UNSET


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """Most servers use the first field, vLLM and Groq the second."""

    reasoning_content: str | msgspec.UnsetType = UNSET
    reasoning: str | msgspec.UnsetType = UNSET


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Reasoning).decode


def encode_reasoning(pieces: Sequence[str], *, field: str, model_name: str) -> Thoughts | None:
    """The reasoning of a reply, to be sent back to the model of that name; None if it is empty."""
    text = "".join(pieces)
    if not text:
        return None
    # Halves of surrogate pairs have no UTF-8.
    text = text.encode("utf-8", "replace").decode()
    return Thoughts(model_name, (Thought(_encode({field: text}).decode()),))


def decode_reasoning(thoughts: Thoughts) -> Reasoning:
    return _decode(thoughts.blocks[0].block)
