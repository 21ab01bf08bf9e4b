from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.testing.model_contract import PNG
from retinue.tools.mcp.content import CallResult, frame_untrusted, render_result

TEXT = {"type": "text", "text": "hello"}
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "content", "resource", "data", "structuredContent"]),
            inner | st.sampled_from(["text", "image", "resource", "resource_link"]),
            max_size=4,
        )
    ),
)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [TEXT, TEXT]}, "hello\nhello"),
        ({"content": []}, "[The server answered without content.]"),
        ({}, "[The server answered without content.]"),
        ({"content": [TEXT], "structuredContent": {"a": 1}}, 'hello\n{"a":1}'),
        # Repeated as text, for clients that know nothing of it: once is enough.
        (
            {"content": [{"type": "text", "text": '{ "a": 1 }'}], "structuredContent": {"a": 1}},
            '{ "a": 1 }',
        ),
        ({"content": [TEXT], "structuredContent": {"result": "hello"}}, "hello"),
        (
            {"content": [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}]},
            "[audio (audio/wav, 3 bytes), not shown]",
        ),
        (
            {"content": [{"type": "resource_link", "uri": "db://x", "name": "x"}]},
            "[resource db://x x: no description]",
        ),
        (
            {"content": [{"type": "smell", "of": "roses"}]},
            '[content of the unknown type \'smell\']\n{"type":"smell","of":"roses"}',
        ),
    ],
)
def test_content_blocks_as_text(result: dict[str, Any], text: str) -> None:
    assert render_result(result) == CallResult(text)


def test_error_flag_of_the_tool() -> None:
    assert render_result({"content": [TEXT], "isError": True}) == CallResult("hello", failed=True)


@given(st.dictionaries(st.sampled_from(["content", "structuredContent", "isError"]), anything))
def test_any_result_becomes_text(result: dict[str, Any]) -> None:
    assert render_result(result).text


@given(st.text())
def test_content_cannot_end_its_frame(text: str) -> None:
    first, *middle, last = frame_untrusted(text, "MCP server x").split("\n")
    tag = first.removeprefix("<").partition(" ")[0]
    assert last == f"</{tag}>"
    assert f"</{tag}>" not in "\n".join(middle)


def test_long_content_is_cut_at_a_character() -> None:
    text = frame_untrusted("ä" * 20_000, "MCP server x")
    assert "ä" * 8_000 in text
    assert "ä" * 8_001 not in text
    assert text.endswith("\n[the first 16,000 of 40,000 bytes; ask for less at once]")


def test_images_are_shown_and_other_data_is_described() -> None:
    data = base64.b64encode(PNG).decode()
    said = render_result(
        {
            "content": [
                {"type": "image", "mimeType": "image/png", "data": data},
                {"type": "resource", "resource": {"uri": "a://b", "blob": data}},
                {"type": "image", "mimeType": "image/bmp", "data": "Qk0="},
                {"type": "image", "mimeType": "image/png", "data": "%%"},
            ]
        }
    )
    assert [base64.b64decode(image.data) for image in said.images] == [PNG, PNG]
    assert said.text.splitlines() == [
        "[image 1 of this result (1×1 pixels)]",
        "[image 2 of this result (1×1 pixels)]",
        "[image (image/bmp, 2 bytes), not shown]",
        "[image (image/png, 1 bytes), not shown: it is no base64]",
    ]


def test_a_result_has_at_most_eight_images() -> None:
    block = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(PNG).decode()}
    said = render_result({"content": [block] * 9})
    assert len(said.images) == 8
    assert said.text.endswith(", not shown: there are more than 8]")
