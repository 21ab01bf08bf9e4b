"""The file format of recordings: one JSON object per line, appended during a run.

The first line is a header. After it, each line is one exchange: which agent asked which model what,
and the reply or failure. Repeated content is written once: tools have lines of their own, and so do
facts about models from their servers, and images. The messages of an exchange are those after the
messages of the exchange that it `follows`. The command that was recorded comes last. A second
recording in the same file begins with its own header.

A line is written at once when an exchange is over, so a recording that was cut off lacks only its
last exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from retinue.domain.images import Image
from retinue.domain.messages import Message, Reply, Request, ToolMessage, ToolSpec, UserMessage
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
    """A server's description of a model; its window decides how much of a conversation is sent."""

    name: str
    served: ServedModel


class ImageLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="image"):
    """The data of an image. Messages have its hash in place of it."""

    sha256: str
    data: str


class CommandLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="command"):
    """The command that was recorded, without the options that choose the model."""

    arguments: tuple[str, ...]
    exit_code: int


class RecordedFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error of a model: its class, its message, and its other attributes."""

    kind: str
    message: str
    fields: dict[str, Any] = {}


class Exchange(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="exchange", omit_defaults=True
):
    """One call of a model. Without reply and failure, the call was cancelled."""

    id: int
    agent: str
    """The path of the agent, such as `root/researcher.1`."""
    model: str
    at_s: float
    """When the call began, in seconds since the beginning of the recording."""
    took_s: float
    follows: int | None = None
    messages: tuple[Message, ...]
    tools: int | None = None
    schema: str | None = None
    max_output_tokens: int | None = None
    reply: Reply | None = None
    failure: RecordedFailure | None = None
    said: str = ""
    """The text that was streamed, if there is no reply that holds it."""
    pieces: tuple[tuple[float, int], ...] = ()
    """The pieces of the stream: seconds since the call began, and number of characters."""


class LoadedExchange(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange that was read from a file, with its line number and its whole request."""

    line: int
    exchange: Exchange
    request: Request


class Recording(msgspec.Struct, frozen=True):
    """The content of a file; exchanges are in the order in which they ended."""

    exchanges: list[LoadedExchange] = []
    served: dict[str, ServedModel] = {}
    commands: list[CommandLine] = []


_decode = msgspec.json.Decoder(
    Header | ServedLine | ToolSet | ImageLine | Exchange | CommandLine
).decode


def map_images(
    messages: tuple[Message, ...], change: Callable[[Image], Image]
) -> tuple[Message, ...]:
    """The messages with each image changed."""
    return tuple(
        msgspec.structs.replace(message, images=tuple(map(change, message.images)))
        if isinstance(message, UserMessage | ToolMessage) and message.images
        else message
        for message in messages
    )


def with_hash(image: Image) -> Image:
    """The image with its hash in place of its data, which is large and must not be redacted."""
    return msgspec.structs.replace(image, data=image.sha256)


def read_recording(path: str | Path) -> Recording:
    """Read a recording. Raises ConfigError."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"The recording {str(path)!r} cannot be read: {why}.") from None
    reader = _RecordingReader(str(path))
    for number, line in enumerate(lines, start=1):
        if line.strip():
            reader.add_line(number, line)
    return reader.finish()


class _RecordingReader:
    def __init__(self, path: str) -> None:
        self._path = path
        self._opened = False
        self._recording = Recording()
        self._broken: int | None = None
        self._tools: dict[int | None, tuple[ToolSpec, ...]] = {}
        self._messages: dict[int | None, tuple[Message, ...]] = {}
        self._images: dict[str, str] = {}

    def add_line(self, number: int, line: bytes) -> None:
        try:
            found = _decode(line)
        except (msgspec.DecodeError, RecursionError):
            # Perhaps the end of a recording that was cut off; the next line shows.
            self._broken = self._broken or number
            return
        if isinstance(found, Header):
            self._open(found)
        elif not self._opened:
            raise self._not_a_recording()
        elif self._broken is not None:
            raise self._damaged(self._broken)
        elif isinstance(found, ServedLine):
            self._recording.served.setdefault(found.name, found.served)
        elif isinstance(found, CommandLine):
            self._recording.commands.append(found)
        elif isinstance(found, ToolSet):
            self._tools[found.id] = found.tools
        elif isinstance(found, ImageLine):
            self._images[found.sha256] = found.data
        else:
            self._add(number, found)

    def finish(self) -> Recording:
        if not self._opened:
            raise self._not_a_recording()
        return self._recording

    def _open(self, opening: Header) -> None:
        if opening.format != FORMAT:
            raise ConfigError(
                f"The recording {self._path!r} is of format {opening.format}, by retinue"
                f" {opening.retinue}; this is retinue {VERSION}, which reads format {FORMAT}."
            )
        self._opened, self._broken = True, None
        self._tools, self._messages, self._images = {None: ()}, {None: ()}, {}

    def _add(self, number: int, exchange: Exchange) -> None:
        earlier = self._messages.get(exchange.follows)
        tools = self._tools.get(exchange.tools)
        if earlier is None or tools is None:
            raise self._damaged(number)
        try:
            new = map_images(exchange.messages, self._with_data)
        except KeyError:
            raise self._damaged(number) from None
        messages = self._messages[exchange.id] = earlier + new
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

    def _with_data(self, image: Image) -> Image:
        return msgspec.structs.replace(image, data=self._images[image.data])

    def _not_a_recording(self) -> ConfigError:
        return ConfigError(f"{self._path!r} is not a recording; make one with --record.")

    def _damaged(self, number: int) -> ConfigError:
        return ConfigError(
            f"Line {number} of the recording {self._path!r} is damaged; record it again."
        )
