from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.models.openai.chunks import decode_chunk
from retinue.models.openai.reply import Draft

FIELDS = [
    "choices",
    "delta",
    "message",
    "content",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "index",
    "id",
    "usage",
    "prompt_tokens",
    "timings",
    "error",
    "prompt_tokens_details",
    "finish_reason",
    "text",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_taken(value: Any) -> None:
    Draft().add(decode_chunk(msgspec.json.encode(value)))


@pytest.mark.parametrize("data", [b"", b"{", b'{"choices": [}', b"nonsense", b"[DONE]"])
def test_what_is_not_json_is_said(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_chunk(data)


def test_bytes_that_are_not_utf8_become_a_mark() -> None:
    chunk = decode_chunk(b'{"choices":[{"delta":{"content":"a\xffb"}}]}')
    assert chunk.choices is not None
    assert chunk.choices[0].delta is not None
    assert chunk.choices[0].delta.content == "a�b"


def test_content_in_parts_is_joined_without_the_thinking() -> None:
    content = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "Hel"},
        {"type": "text", "text": "lo"},
    ]
    chunk = decode_chunk(msgspec.json.encode({"choices": [{"delta": {"content": content}}]}))
    assert chunk.choices is not None
    assert chunk.choices[0].delta is not None
    assert chunk.choices[0].delta.content == "Hello"
