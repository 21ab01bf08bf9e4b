"""Streams of a reply in any pieces and any order, for the tests of the readers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from retinue.domain.messages import Reply, Request, UserMessage
from retinue.models.http.reply import ReplyReader
from retinue.models.http.sse import EventParser

HI = Request(messages=(UserMessage("Hi."),))
WORDS = (
    "a",
    " and ",
    "\n\n",
    "{",
    '"',
    "\\",
    "é",
    "雪",
    "🙂",
    "\u2028",
    "data: ",
    "0",
    "\r",
    "x" * 40,
)
STREAMS = [pytest.param(200, id="200"), pytest.param(10_000, marks=pytest.mark.slow, id="10000")]
"""How many streams a test reads."""


def each_stream(count: int, check: Callable[[random.Random], None]) -> None:
    """Call `check` so many times, each with randomness of its own. A failure names its seed."""
    for seed in range(count):
        try:
            check(random.Random(seed))
        except BaseException as error:
            error.add_note(f"random.Random({seed})")
            raise


def some_text(chance: random.Random) -> str:
    return "".join(chance.choices(WORDS, k=chance.randint(1, 6)))


def pieces_of(text: str, chance: random.Random) -> Iterator[str]:
    while text:
        size = chance.randint(1, len(text))
        yield text[:size]
        text = text[size:]


def interleaved(streams: list[list[Any]], chance: random.Random) -> Iterator[Any]:
    """The events of all streams; those of one stream keep their order."""
    waiting = [list(stream) for stream in streams if stream]
    while waiting:
        chosen = chance.choice(waiting)
        yield chosen.pop(0)
        waiting = [stream for stream in waiting if stream]


def read_in_pieces(reader: ReplyReader[Any], body: bytes, chance: random.Random) -> Reply:
    """The reply that `reader` makes of a body that arrives in any pieces."""
    parser = EventParser()
    cuts = sorted({0, len(body), *(chance.randrange(len(body)) for _ in range(9))})
    for start, end in itertools.pairwise(cuts):
        assert reader.feed(parser.feed(body[start:end])) is None
    assert reader.problem() is None
    return reader.reply(HI, b"", 0.0)
