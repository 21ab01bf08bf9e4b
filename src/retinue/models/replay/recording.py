"""A run's model traffic in a file: one JSON text a line, appended as it happens.

The first line says what the file is. After it, each line is one exchange: who asked which model
what, and what came of it. What would be told again and again is told once: tools have lines of
their own, and so has what a server says about its model; the messages of an exchange are those that
come after the messages of the one it `follows`. A second recording in the same file begins with a
first line of its own.

A line is written in one go when an exchange is over, so a recording that was cut off lacks its last
exchange and is good otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from retinue.domain.messages import Message, Reply, Request, ToolSpec
from retinue.domain.server_info import ServedModel
from retinue.errors import ConfigError
from retinue.version import VERSION

FORMAT = 1


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="recording"):
    format: int
    retinue: str


class ToolSet(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tools"):
    id: int
    tools: tuple[ToolSpec, ...]


class ServedLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="served"):
    """What a server said about a model, which decides how much of a conversation is sent."""

    name: str
    served: ServedModel


class RecordedFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error of a model: its class, its words, and what else it carries."""

    kind: str
    message: str
    fields: dict[str, Any] = {}


class Exchange(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="exchange", omit_defaults=True
):
    """One call of a model. With neither a reply nor a failure, it was given up by who asked."""

    id: int
    agent: str
    """The path of who asked, such as `root/researcher.1`."""
    model: str
    at_s: float
    """When it was asked, from the beginning of the recording."""
    took_s: float
    follows: int | None = None
    messages: tuple[Message, ...]
    tools: int | None = None
    schema: str | None = None
    max_output_tokens: int | None = None
    reply: Reply | None = None
    failure: RecordedFailure | None = None
    said: str = ""
    """What was streamed, where no reply holds it."""
    pieces: tuple[tuple[float, int], ...] = ()
    """The text as it was streamed: seconds from the asking, and how many characters."""


class LoadedExchange(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange as it is read: its line in the file, and all that was asked in it."""

    line: int
    exchange: Exchange
    request: Request


class Recording(msgspec.Struct, frozen=True):
    """What a file holds: the exchanges in the order in which they ended."""

    exchanges: list[LoadedExchange] = []
    served: dict[str, ServedModel] = {}


_decode = msgspec.json.Decoder(Header | ServedLine | ToolSet | Exchange).decode


def read_recording(path: str | Path) -> Recording:
    """The recording in a file. Raises ConfigError."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"The recording {str(path)!r} cannot be read: {why}.") from None
    reading = _Reading(str(path))
    for number, line in enumerate(lines, start=1):
        if line.strip():
            reading.take(number, line)
    return reading.end()


class _Reading:
    def __init__(self, path: str) -> None:
        self._path = path
        self._opened = False
        self._recording = Recording()
        self._broken: int | None = None
        self._tools: dict[int | None, tuple[ToolSpec, ...]] = {}
        self._messages: dict[int | None, tuple[Message, ...]] = {}

    def take(self, number: int, line: bytes) -> None:
        try:
            found = _decode(line)
        except msgspec.DecodeError:
            # Perhaps the end of a recording that was cut off. The next line tells.
            self._broken = self._broken or number
            return
        if isinstance(found, Header):
            self._open(found)
        elif not self._opened:
            raise self._not_one()
        elif self._broken is not None:
            raise self._damaged(self._broken)
        elif isinstance(found, ServedLine):
            self._recording.served.setdefault(found.name, found.served)
        elif isinstance(found, ToolSet):
            self._tools[found.id] = found.tools
        else:
            self._add(number, found)

    def end(self) -> Recording:
        if not self._opened:
            raise self._not_one()
        return self._recording

    def _open(self, opening: Header) -> None:
        if opening.format != FORMAT:
            raise ConfigError(
                f"The recording {self._path!r} is of format {opening.format}, by retinue"
                f" {opening.retinue}; this is retinue {VERSION}, which reads format {FORMAT}."
            )
        self._opened, self._broken = True, None
        self._tools, self._messages = {None: ()}, {None: ()}

    def _add(self, number: int, exchange: Exchange) -> None:
        earlier = self._messages.get(exchange.follows)
        tools = self._tools.get(exchange.tools)
        if earlier is None or tools is None:
            raise self._damaged(number)
        messages = self._messages[exchange.id] = earlier + exchange.messages
        request = Request(
            messages=messages,
            tools=tools,
            max_output_tokens=exchange.max_output_tokens,
            schema=exchange.schema,
            agent_path=exchange.agent,
        )
        self._recording.exchanges.append(
            LoadedExchange(line=number, exchange=exchange, request=request)
        )

    def _not_one(self) -> ConfigError:
        return ConfigError(f"{self._path!r} is not a recording; make one with --record.")

    def _damaged(self, number: int) -> ConfigError:
        return ConfigError(
            f"Line {number} of the recording {self._path!r} is damaged; record it anew."
        )
