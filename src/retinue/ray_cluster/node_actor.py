"""The actor that runs a host on a node of a Ray cluster.

Ray sends this code to the node by value, and it imports the standard library only: so it can say
what is wrong with the installation there.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Any

_HEAD = ">cI"
_HEAD_BYTES = struct.calcsize(_HEAD)
_MOST_BYTES = 16 << 20
"""Bytes from the host that may wait for the driver."""
_PART_BYTES = 4 << 20
_END_S = 4.0

ProcessKey = tuple[int, str]
"""A pid, and when its process was started: pids are used again."""


class HostActor:
    """Starts a host, and passes on what it and its run send to each other.

    Messages are numbered in both directions: Ray may report a call as failed although it was made,
    and the driver then repeats it.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._last_words = ""
        self._frames: deque[bytes] = deque()
        self._first = 1
        """The number of the first of the frames."""
        self._bytes = 0
        self._written = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._why = ""

    async def start(
        self, version: str, module: str, program: str, variables: dict[str, str], silent_s: float
    ) -> tuple[str, list[ProcessKey]]:
        """Start the process. Returns why it cannot, or the processes that it consists of.

        From its first message on, it is ended when it says nothing for `silent_s`: a host that is
        frozen does not end itself, and its commands continue.
        """
        try:
            from retinue.config.environment import Environment
            from retinue.processes import guard
            from retinue.version import VERSION
        except ImportError as error:
            return f"has no retinue for {sys.executable} ({error}); install {version} there", []
        if version != VERSION:
            return f"has retinue {VERSION}, and the run {version}; install the same", []
        ours, theirs = socket.socketpair()
        path = [entry for entry in sys.path if os.path.isabs(entry) and entry != "/"]
        given = json.dumps([path, module, theirs.fileno()])
        python = [sys.executable, "-I", "-S"]
        try:
            self._process = process = subprocess.Popen(  # noqa: ASYNC220 (a fork is short)
                [*python, guard.__file__, *python, "-c", program, given],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                env={**Environment.current().variables, **variables},
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        except OSError as error:
            return f"cannot start a process: {error}", []
        finally:
            theirs.close()
        hearing = threading.Thread(target=self._keep_last_words, daemon=True)
        hearing.start()
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._collecting = asyncio.ensure_future(self._collect(reader, silent_s))
        self._ending = asyncio.ensure_future(self._wait(process, hearing))
        return "", [process_key(os.getpid()), process_key(process.pid)]

    def _keep_last_words(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                sys.stderr.buffer.write(line)  # To the worker's log.
                self._last_words = line.decode("utf-8", "replace").strip() or self._last_words

    async def _collect(self, reader: asyncio.StreamReader, silent_s: float) -> None:
        timeout = None  # A host may take long to start.
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                try:
                    frame = await asyncio.wait_for(_read_frame(reader), timeout)
                except TimeoutError:
                    self._last_words = f"it was silent for {silent_s:g} s"
                    await self.end()
                    return
                timeout = silent_s
                self._frames.append(frame)
                self._bytes += len(frame)
                self._changed.set()
                while self._bytes > _MOST_BYTES:
                    self._room.clear()
                    await self._room.wait()

    async def _wait(self, process: Any, hearing: threading.Thread) -> None:
        """Wait for the guard, which ends when all that the host has started has ended."""
        await asyncio.to_thread(process.wait)
        await asyncio.wait([self._collecting])
        await asyncio.to_thread(hearing.join, 1.0)
        process.stdin.close()
        self._writer.close()
        self._why = self._last_words or "it said nothing"
        self._changed.set()

    async def read(self, after: int) -> tuple[int, list[bytes], str]:
        """Wait for frames with a number above `after`; those up to it are forgotten.

        Returns the number of the first, the frames, and the last words of a host that has ended.
        """
        while self._frames and self._first <= after:
            self._bytes -= len(self._frames.popleft())
            self._first += 1
        self._room.set()
        while not self._frames and not self._why:
            self._changed.clear()
            await self._changed.wait()
        part, size = [], 0
        for frame in self._frames:
            part.append(frame)
            size += len(frame)
            if size > _PART_BYTES:
                break
        return self._first, part, self._why if len(part) == len(self._frames) else ""

    async def write(self, number: int, data: bytes) -> None:
        """Pass data on to the host: the part with this number, once."""
        if number > self._written:
            self._written = number
            with suppress(OSError):
                self._writer.write(data)
                await self._writer.drain()

    async def end(self) -> bool:
        """End the host, and all that it has started. Returns whether it has ended."""
        if self._process is None:
            return True
        end_guard(self._process.pid)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(self._process.wait, _END_S), _END_S)
        return self._process.poll() is not None


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(_HEAD_BYTES)
    _, length = struct.unpack(_HEAD, head)
    return head + await reader.readexactly(length)


def end_processes(worker: ProcessKey, guard: ProcessKey) -> bool:
    """Kill what is left of a host on this node, frozen or not. Returns whether nothing is left."""
    for key, end in ((worker, _kill), (guard, end_guard)):
        try:
            fd = os.pidfd_open(key[0])
        except ProcessLookupError:
            continue
        try:
            if process_key(key[0]) == key:
                end(key[0])
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                if not poll.poll(_END_S * 1_000):
                    return False
        finally:
            os.close(fd)
    return True


def end_guard(pid: int) -> None:
    """Have a guard kill all that it guards."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)


def process_key(pid: int) -> ProcessKey:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return pid, stat.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        return pid, ""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
