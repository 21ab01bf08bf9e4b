from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.messages import (
    AssistantMessage,
    Effect,
    Finish,
    Message,
    SystemMessage,
    Thought,
    Thoughts,
    Timing,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    estimate_tokens,
)

counts = st.integers(0, 10**9)
usages = st.builds(Usage, *[counts] * 4, estimated=st.booleans(), tokens_written=counts)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("é", 1), ("ééé", 2), ("😀", 1), ("😀a", 2)],
)
def test_four_bytes_are_a_token(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens
    assert estimate_tokens(text.encode()) == tokens


@given(st.text(st.characters()), st.text())
def test_estimates_round_up_and_add_up(a: str, b: str) -> None:
    size = len(a.encode("utf-8", "surrogatepass"))

    assert size <= 4 * estimate_tokens(a) < size + 4
    together = estimate_tokens(a + b)
    assert together <= estimate_tokens(a) + estimate_tokens(b) <= together + 1


def test_half_a_character_from_a_broken_stream_is_still_counted() -> None:
    assert estimate_tokens("\ud83d") == 1


@given(usages, usages, usages)
def test_usage_adds_up(a: Usage, b: Usage, c: Usage) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + Usage() == a
    assert (a + b).tokens == a.tokens + b.tokens
    assert (a + b).tokens_cached == a.tokens_cached + b.tokens_cached
    assert (a + b).tokens_written == a.tokens_written + b.tokens_written
    assert (a + b).estimated == (a.estimated or b.estimated)
    assert (a + b).cost_microusd == a.cost_microusd + b.cost_microusd


def test_cached_tokens_are_part_of_those_that_went_in() -> None:
    usage = Usage(tokens_in=100, tokens_cached=80, tokens_out=5, cost_microusd=1_500_000)

    assert usage.tokens == 105
    assert usage.cost_usd == 1.5


@pytest.mark.parametrize(
    ("message", "json"),
    [
        (SystemMessage("s"), b'{"role":"system","content":"s"}'),
        (UserMessage("u"), b'{"role":"user","content":"u"}'),
        (AssistantMessage("a"), b'{"role":"assistant","content":"a"}'),
        (
            AssistantMessage(calls=(ToolCall("1", "read", "{not json"),)),
            b'{"role":"assistant","calls":[{"id":"1","name":"read","arguments":"{not json"}]}',
        ),
        (
            AssistantMessage("a", thoughts=Thoughts("m", (Thought("{}"), Thought("[1]", 1, 2)))),
            b'{"role":"assistant","content":"a","thoughts":{"by":"m","blocks":[{"block":"{}"},'
            b'{"block":"[1]","after_text":1,"after_calls":2}]}}',
        ),
        (ToolMessage("1", "t"), b'{"role":"tool","call_id":"1","content":"t"}'),
        (
            ToolMessage("1", "t", failed=True),
            b'{"role":"tool","call_id":"1","content":"t","failed":true}',
        ),
    ],
)
def test_message_is_tagged_by_role(message: Message, json: bytes) -> None:
    assert msgspec.json.encode(message) == json
    assert msgspec.json.decode(json, type=Message) == message


def test_default_timing_is_not_encoded() -> None:
    assert msgspec.json.encode((Usage(), Timing())) == b"[{},{}]"


def test_stored_enum_values() -> None:
    assert list(Effect) == ["read", "write", "execute", "delegate", "remember", "external", "check"]
    assert list(Finish) == ["stop", "tools", "length"]
