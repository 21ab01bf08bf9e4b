"""Writes the exchanges with models into a file as they happen."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from retinue.domain.images import Image
from retinue.domain.messages import Message, Reply, Request, ToolSpec
from retinue.domain.server_info import ServedModel
from retinue.errors import ConfigError, ModelError, ProviderError, StoreError, UsageError
from retinue.models.replay.recording import (
    FORMAT,
    CommandLine,
    Exchange,
    Header,
    ImageLine,
    RecordedFailure,
    ServedLine,
    ToolSet,
    map_images,
    read_recording,
    with_hash,
)
from retinue.models.replay.redaction import Redaction
from retinue.ports.clock import Clock
from retinue.ports.model import Model
from retinue.version import VERSION

_encode = msgspec.json.Encoder().encode


class Recorder:
    """Appends to one file, which only its owner may read.

    A write error ends the recording and not the run; `close` reports it.
    """

    def __init__(self, path: str | Path, *, redaction: Redaction, clock: Clock) -> None:
        """Raises UsageError for a file that cannot be recorded to."""
        self.clock = clock
        self._path = str(path)
        self._redact = redaction.redact
        self._began_at = clock.monotonic()
        self._exchanges = 0
        self._tools: dict[str, int] = {}
        self._images: set[str] = set()
        self._latest: dict[str, tuple[int, tuple[Message, ...]]] = {}
        self._problem: str | None = None
        self._file = _open_file(self._path)
        self._write(Header(format=FORMAT, retinue=VERSION))

    def add(
        self,
        model: str,
        request: Request,
        *,
        began_at: float,
        streamed: Sequence[tuple[float, str]],
        reply: Reply | None,
        failure: RecordedFailure | None,
    ) -> None:
        """Write an exchange that is over. `streamed` are the pieces of text with their times."""
        self.add_exchange(
            Exchange(
                id=0,
                agent=request.agent_path,
                model=model,
                at_s=round(began_at - self._began_at, 3),
                took_s=round(self.clock.monotonic() - began_at, 3),
                messages=(),
                reply=reply,
                failure=failure,
                said="" if reply is not None else "".join(text for _, text in streamed),
                pieces=tuple((round(at - began_at, 3), len(text)) for at, text in streamed),
            ),
            request,
        )

    def add_exchange(self, exchange: Exchange, request: Request) -> None:
        """Write `exchange` as the answer to `request`, whatever request it answered before."""
        number = self._exchanges = self._exchanges + 1
        follows, known = self._latest.get(request.agent_path, (None, ()))
        if request.messages[: len(known)] != known:
            follows, known = None, ()
        self._latest[request.agent_path] = (number, request.messages)
        written = msgspec.structs.replace(
            exchange,
            id=number,
            agent=request.agent_path,
            follows=follows,
            messages=map_images(request.messages[len(known) :], self._recorded_image),
            tools=self._tool_set(request.tools) if request.tools else None,
            schema=request.schema,
            max_output_tokens=request.max_output_tokens,
        )
        self._write(self._redact(msgspec.to_builtins(written)))

    def add_served(self, name: str, served: ServedModel) -> None:
        """Write what a server says about a model."""
        line = ServedLine(name=name, served=served)
        self._write(self._redact(msgspec.to_builtins(line)))

    def close(self) -> None:
        """Raises StoreError if the file is incomplete."""
        os.close(self._file)
        if self._problem is not None:
            raise StoreError(
                f"The recording {self._path!r} is incomplete: {self._problem}. The run is not"
                " affected."
            )

    def _recorded_image(self, image: Image) -> Image:
        """The image with its hash in place of its data, which gets a line of its own once."""
        recorded = with_hash(image)
        if recorded.data not in self._images:
            self._images.add(recorded.data)
            self._write(ImageLine(sha256=recorded.data, data=image.data))
        return recorded

    def _tool_set(self, tools: tuple[ToolSpec, ...]) -> int:
        text = self._redact(_encode(tools).decode())
        if text not in self._tools:
            self._tools[text] = len(self._tools) + 1
            specs = msgspec.json.decode(text, type=tuple[ToolSpec, ...])
            self._write(ToolSet(id=self._tools[text], tools=specs))
        return self._tools[text]

    def _write(self, line: object) -> None:
        data = _encode(line) + b"\n"
        try:
            while data and self._problem is None:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._problem = error.strerror or str(error)


def append_command(path: str | Path, command: CommandLine, redaction: Redaction) -> None:
    """Add the command that was recorded to a closed recording."""
    with open(path, "ab") as file:
        file.write(_encode(redaction.redact(msgspec.to_builtins(command))) + b"\n")


class RecordedModel:
    def __init__(self, model: Model, recorder: Recorder) -> None:
        self.name = model.name
        self._model = model
        self._recorder = recorder

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        clock = self._recorder.clock
        began_at = clock.monotonic()
        streamed: list[tuple[float, str]] = []

        def collect(text: str) -> None:
            streamed.append((clock.monotonic(), text))
            if on_text is not None:
                on_text(text)

        reply: Reply | None = None
        failure: RecordedFailure | None = None
        try:
            reply = await self._model.reply(request, collect)
        except ModelError as error:
            failure = RecordedFailure(
                kind=type(error).__name__, message=str(error), fields=dict(vars(error))
            )
            raise
        except Exception as error:
            broke = f"{type(error).__name__}: {error}"
            failure = RecordedFailure(kind=ProviderError.__name__, message=broke)
            raise
        finally:
            # Also when the request is cancelled, without reply and failure.
            self._recorder.add(
                self.name,
                request,
                began_at=began_at,
                streamed=streamed,
                reply=reply,
                failure=failure,
            )
        return reply

    async def aclose(self) -> None:
        await self._model.aclose()


def _open_file(path: str) -> int:
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"Cannot record to {path!r}: {error.strerror}.") from None
    try:
        _check_existing(path, file)
    except BaseException:
        os.close(file)
        raise
    return file


def _check_existing(path: str, file: int) -> None:
    """Raises UsageError unless the file can be appended to."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UsageError(
            f"Cannot record to {path!r}: another run is being recorded there."
        ) from None
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        return
    try:
        read_recording(path)
    except ConfigError:
        raise UsageError(
            f"Cannot record to {path!r}: it holds something else, or a recording that cannot be"
            " continued. Name another file."
        ) from None
    with open(path, "rb") as existing:
        existing.seek(-1, os.SEEK_END)
        if existing.read() != b"\n":
            os.write(file, b"\n")
