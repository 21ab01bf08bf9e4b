from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.models.http.decoding import EventDecoder
from retinue.models.openai.reply import (
    CallDelta,
    Choice,
    Chunk,
    Delta,
    FunctionDelta,
    UsageCount,
)

CHUNKS = EventDecoder(Chunk)

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
def test_any_json_is_decoded(value: Any) -> None:
    assert CHUNKS.decode(msgspec.json.encode(value)) is not None


@pytest.mark.parametrize("data", [b"", b"{", b'{"choices": [}', b"nonsense", b"[DONE]"])
def test_invalid_json_is_not_decoded(data: bytes) -> None:
    assert CHUNKS.decode(data) is None


def content_of(data: bytes) -> object:
    chunk = CHUNKS.decode(data)
    assert chunk is not None
    assert chunk.choices is not None
    assert chunk.choices[0].delta is not None
    return chunk.choices[0].delta.content


def test_invalid_utf8_is_replaced() -> None:
    assert content_of(b'{"choices":[{"delta":{"content":"a\xffb"}}]}') == "a\ufffdb"


def test_parts_of_a_text_are_joined() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "other"}, {"type": "text", "text": "lo"}]
    data = msgspec.json.encode({"choices": [{"delta": {"refusal": parts}}]})
    chunk = CHUNKS.decode(data)
    assert chunk is not None
    assert chunk.choices == [Choice(delta=Delta(refusal="Hello"))]


def test_numbers_and_single_items_in_other_forms() -> None:
    chunk = CHUNKS.decode(
        b'{"choices": [{"delta": {"tool_calls":'
        b' {"index": "1", "id": 7, "function": {"name": "x"}}}}],'
        b' "usage": {"prompt_tokens": 3.0, "completion_tokens": "4"}}'
    )
    assert chunk == Chunk(
        choices=[
            Choice(delta=Delta(tool_calls=[CallDelta(1, 7, FunctionDelta(name="x"))])),
        ],
        usage=UsageCount(prompt_tokens=3, completion_tokens=4),
    )
