"""A connection between a run and a host: messages, and files between them, in frames."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from retinue.errors import WorkspaceError
from retinue.processes.removal import remove_folder
from retinue.threads import in_thread, in_thread_shielded

PIECE_BYTES = 256 * 1024
MAX_FRAME_BYTES = 256 * 1024 * 1024
"""A conversation with many images may be so long."""
_HEAD = struct.Struct(">cI")
_MESSAGE, _PIECE, _LAST_PIECE = b"M", b"P", b"L"
_NAME = re.compile(rb"[0-9A-Za-z][0-9A-Za-z.-]{0,120}")
_LEFT_AFTER_S = 7 * 86_400.0


class Connection:
    """One end of a connection. Implements `FileChannel`.

    A file is sent in pieces, so that messages need not wait for it. Received files are stored in
    `folder`.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, folder: str
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._folder = folder
        self._unsent: list[bytes] = []
        self._problems: dict[str, str] = {}
        """Why files could not be stored, by their names."""

    def send(self, message: bytes) -> None:
        # Messages of one step of the event loop are written together: a write costs most.
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._write)
        self._unsent.append(_frame(_MESSAGE, message))

    def _write(self) -> None:
        if not self._writer.is_closing():
            self._writer.write(b"".join(self._unsent))
        self._unsent.clear()

    def close(self) -> None:
        self._writer.close()

    @property
    def at_end(self) -> bool:
        """Whether the other end is gone, and `receive` has nothing more to return."""
        # After a reset, such as by an end that has not read everything, a reader is never `at_eof`.
        return self._reader.at_eof() or self._reader.exception() is not None

    async def drain(self) -> None:
        """Wait until the other end has taken most of what was sent. Raises OSError."""
        await asyncio.sleep(0)
        await self._writer.drain()

    async def receive(self) -> bytes:
        """The next message. Files before it are stored. IncompleteReadError at the end."""
        while True:
            kind, length = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
            if length > MAX_FRAME_BYTES:
                raise WorkspaceError(f"A message has {length:,} bytes, which is too much.")
            content = await self._reader.readexactly(length)
            if kind == _MESSAGE:
                return content
            name, _, piece = content.partition(b"\0")
            if not _NAME.fullmatch(name):
                raise WorkspaceError(f"{name[:80]!r} is no name of a file from a host.")
            await self._store(name.decode("ascii"), piece, last=kind == _LAST_PIECE)

    async def _store(self, name: str, piece: bytes, *, last: bool) -> None:
        path = os.path.join(self._folder, name)

        def store() -> None:
            # A connection may be open for longer than unused folders are kept.
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            with open(f"{path}.part", "ab") as file:
                file.write(piece)
            if last:
                os.replace(f"{path}.part", path)

        if name not in self._problems:
            try:
                await in_thread_shielded(store)
            except OSError as error:
                # The rest is read and forgotten: messages come after it.
                self._problems[name] = f"{self._folder} cannot be written ({error.strerror})."
                with suppress(OSError):
                    os.unlink(f"{path}.part")

    def received(self, name: str) -> str:
        """The path of a file that the other end has sent. Raises WorkspaceError."""
        if problem := self._problems.pop(name, ""):
            raise WorkspaceError(problem)
        path = os.path.join(self._folder, name)
        if not _NAME.fullmatch(os.fsencode(name)) or not os.path.isfile(path):
            raise WorkspaceError(f"The file {name!r} was not sent.")
        return path

    async def send_file(self, name: str, path: str) -> None:
        """Send a file. Raises OSError."""
        with await in_thread(lambda: open(path, "rb")) as file:
            piece = await in_thread(lambda: file.read(PIECE_BYTES))
            while True:
                following = b""
                if len(piece) == PIECE_BYTES:
                    following = await in_thread(lambda: file.read(PIECE_BYTES))
                self._write()  # Messages that were sent before arrive before.
                kind = _PIECE if following else _LAST_PIECE
                self._writer.write(_frame(kind, name.encode("ascii"), b"\0", piece))
                await self._writer.drain()
                if not following:
                    return
                piece = following


def message_frame(message: bytes) -> bytes:
    return _frame(_MESSAGE, message)


def read_message(opened: socket.socket) -> bytes:
    """The next message, and not a byte more. Blocks; raises OSError at the end."""

    def read(size: int) -> bytes:
        data = opened.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise ConnectionError("The connection was closed.")
        return data

    return read(_HEAD.unpack(read(_HEAD.size))[1])


def _frame(kind: bytes, *parts: bytes) -> bytes:
    return b"".join((_HEAD.pack(kind, sum(map(len, parts))), *parts))


@contextmanager
def transfer_folder(parent: str) -> Iterator[str]:
    """A folder below `parent` for the files of one connection; those of killed processes go."""
    os.makedirs(parent, mode=0o700, exist_ok=True)
    for entry in os.scandir(parent):
        with suppress(OSError):
            if time.time() - entry.stat().st_mtime > _LEFT_AFTER_S:
                remove_folder(entry.path)
    folder = tempfile.mkdtemp(dir=parent)
    try:
        yield folder
    finally:
        remove_folder(folder)
