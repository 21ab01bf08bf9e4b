from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.messages import Request, UserMessage
from retinue.models.http.endpoint import Endpoint
from retinue.models.http.error_mapping import ErrorMapper
from retinue.models.http.sse import MAX_LINE_BYTES, EventParser, EventTooLarge
from retinue.models.openai.reply import ChatReplyReader
from retinue.models.scripted.model import ScriptedReply, call, calls, say
from retinue.testing.server import streamed

REQUEST = Request(messages=(UserMessage("Hi."),))


def split(*pieces: bytes) -> list[bytes]:
    splitter = EventParser()
    events = [event for piece in pieces for event in splitter.feed(piece)]
    return [event.strip() for event in (*events, *splitter.end())]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: 1\n\ndata: 2\n\n", [b"1", b"2"]),
        (b"data:1\r\n\r\ndata:2\r\n\r\n", [b"1", b"2"]),
        (b": ping\n\ndata: 1\n: ping\n\n", [b"1"]),
        (b"event: message\nid: 7\nretry: 10\ndata: 1\n\n", [b"1"]),
        (b'data: {"a":\ndata: 1}\n\n', [b'{"a":\n 1}']),
        (b"data: 1\n\ndata: 2", [b"1", b"2"]),
        (b"data: 1\n\ndata: 2\n", [b"1", b"2"]),
        (b"\xef\xbb\xbfdata: 1\n\n", [b"1"]),
        (b'data: {"a":1}\ndata: {"b":2}\n', [b'{"a":1}', b'{"b":2}']),
        (b"\n\n\n", []),
        (b"", []),
        (b"data\n\n", []),
    ],
)
def test_events_are_found(stream: bytes, expected: list[bytes]) -> None:
    assert split(stream) == expected
    assert split(*(stream[i : i + 1] for i in range(len(stream)))) == expected


def test_error_events_are_collected() -> None:
    splitter = EventParser()
    events = splitter.feed(b'event: error\ndata: {"m":1}\n\ndata: 1\n\nerror: {"m":2}\n\n')
    assert events == [b" 1"]
    assert [error.strip() for error in splitter.errors] == [b'{"m":1}', b'{"m":2}']


def test_unknown_lines_are_collected() -> None:
    splitter = EventParser()
    splitter.feed(b"Ollama is running\n")
    assert splitter.unknown_lines == [b"Ollama is running"]


@pytest.mark.parametrize("stream", [b"x", b"data: ", b"data: 1\ndata: "])
def test_line_size_limit(stream: bytes) -> None:
    splitter = EventParser()
    piece = b"x" * (1024 * 1024)
    with pytest.raises(EventTooLarge):  # noqa: PT012 - which feed fails depends on the stream
        splitter.feed(stream)
        for _ in range(MAX_LINE_BYTES // len(piece) + 1):
            splitter.feed(piece)


def test_event_size_limit() -> None:
    splitter = EventParser()
    piece = b"data: " + b"x" * (1024 * 1024) + b"\n"
    with pytest.raises(EventTooLarge):  # noqa: PT012
        for _ in range(MAX_LINE_BYTES // len(piece) + 2):
            splitter.feed(piece)


def new_reader() -> ChatReplyReader:
    return ChatReplyReader(ErrorMapper(Endpoint(base_url="http://127.0.0.1/v1", model="m")))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
CALLS = st.builds(
    lambda name, path: call(name, path=path), st.sampled_from(["read_file", "list_dir"]), TEXTS
)
ANSWERS = st.one_of(
    TEXTS.filter(bool).map(say),
    st.builds(
        lambda made, text: calls(*made, text=text), st.lists(CALLS, min_size=1, max_size=3), TEXTS
    ),
)


@given(answer=ANSWERS, newline=st.sampled_from([b"\n", b"\r\n"]), data=st.data())
def test_reply_is_independent_of_chunk_boundaries(
    answer: ScriptedReply, newline: bytes, data: st.DataObject
) -> None:
    body = streamed(answer).body.replace(b"\n", newline)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=40).map(sorted))
    edges = [0, *cuts, len(body)]
    pieces = [body[a:b] for a, b in pairwise(edges)]
    reader = new_reader()
    assert reader.feed(split(*pieces)) is None
    reply = reader.reply(REQUEST, b"", 0.0)
    assert reply.message.content == answer.text
    assert [(made.name, made.arguments) for made in reply.message.calls] == [
        (plan.name, plan.arguments) for plan in answer.calls
    ]


@given(st.binary(max_size=200))
def test_any_bytes_are_accepted(noise: bytes) -> None:
    new_reader().feed(split(noise))


LINES = [b"event: a", b"event: error", b"data: 1", b"data: {}", b"", b": ping", b"id: 7", b"x"]


@given(st.lists(st.sampled_from(LINES), max_size=24), st.integers(1, 30))
def test_pieces_of_any_size_make_the_same_events(lines: list[bytes], size: int) -> None:
    """Also of named events, which are read several at a time."""
    stream = b"".join(line + b"\n" for line in lines)
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    singly = [bytes([byte]) for byte in stream]
    found = []
    for given_pieces in (pieces, singly):
        parser = EventParser()
        events = [event for piece in given_pieces for event in parser.feed(piece)]
        found.append((events + parser.end(), parser.errors, parser.unknown_lines))
    assert found[0] == found[1]
