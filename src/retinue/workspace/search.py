"""Searches files for a regular expression, with ripgrep or with a small Python process.

ripgrep opens files by path, so a folder that is swapped for a link at that moment leads it outside.
ripgrep therefore only says where to look: the text of each hit is read again through our own safe
open, and a hit whose text differs is dropped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO

from retinue.errors import ToolFailure
from retinue.ports.workspace import SearchMatch
from retinue.workspace import grep_process as grep
from retinue.workspace.file_names import printable

TIME_LIMIT_S = 20.0
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_PATTERN_CHARS = 2_000
_SNIFFED_BYTES = 8192
_COMPARED_BYTES = 1_000
_COLUMNS = 2_000
# Well below the limit of a command line.
_ARGUMENT_BYTES = 200_000
_PIPED_BYTES = 8 * 1024 * 1024

ReadFile = Callable[[str], bytes | None]
"""The bytes of a file, or None if it cannot or should not be read."""


class _TimedOut(Exception):
    """The time limit was reached."""


def search(
    pattern: str,
    paths: Iterable[str],
    *,
    root: str,
    read: ReadFile,
    limit: int,
    ripgrep: str | None,
    time_limit_s: float = TIME_LIMIT_S,
) -> tuple[list[SearchMatch], bool]:
    """The first `limit` matching lines, in the order of `paths`; and whether time was left."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ToolFailure(f"The pattern is longer than {MAX_PATTERN_CHARS:,} characters.")
    if "\0" in pattern:
        raise ToolFailure("The pattern contains a NUL character, which no text file has.")
    try:
        pattern.encode()
    except UnicodeEncodeError:
        raise ToolFailure("The pattern is not valid Unicode.") from None
    paths = list(paths)
    deadline = time.monotonic() + time_limit_s
    hits = _Hits(read, limit)
    try:
        if ripgrep is None or not _search_with_ripgrep(
            ripgrep, pattern, paths, root, hits, deadline
        ):
            _search_with_python(pattern, paths, hits, deadline)
    except _TimedOut:
        return hits.found, False
    return hits.found, True


class _Hits:
    """Collects hits, each with the text that our own safe open reads."""

    def __init__(self, read: ReadFile, limit: int) -> None:
        self._read = read
        self._limit = limit
        self._path: str | None = None
        self._lines: list[bytes] = []
        self.found: list[SearchMatch] = []

    @property
    def full(self) -> bool:
        return len(self.found) >= self._limit

    def content(self, path: str) -> bytes | None:
        """The bytes of a file if it is readable and text; otherwise None."""
        data = self._read(path)
        return None if data is None or b"\0" in data[:_SNIFFED_BYTES] else data

    def claim(self, path: str, number: int, claimed: bytes) -> None:
        """Add a hit of ripgrep, if the file really has that line."""
        if path != self._path:
            data = self.content(path)
            self._path, self._lines = path, [] if data is None else data.split(b"\n")
        if number > len(self._lines):
            return
        line = self._lines[number - 1].rstrip(b"\r")
        if line[:_COMPARED_BYTES] == claimed.rstrip(b"\r")[: min(len(line), _COMPARED_BYTES)]:
            self.take(path, number, line)

    def take(self, path: str, number: int, line: bytes) -> None:
        text = line[: 4 * _COLUMNS].decode("utf-8", "replace")[:_COLUMNS]
        self.found.append(SearchMatch(printable(path), number, text))


def _search_with_ripgrep(
    ripgrep: str, pattern: str, paths: list[str], root: str, hits: _Hits, deadline: float
) -> bool:
    """False if ripgrep cannot read the pattern: it has no look-around, for example."""
    command = [
        ripgrep, "--no-config", "--null", "--line-number", "--no-heading", "--with-filename",
        "--color=never", "--case-sensitive", "--crlf", "--encoding=none", "--no-messages",
        # One thread keeps the order of the files, so that results are reproducible.
        "--threads=1", f"--max-columns={_COLUMNS}", "--max-columns-preview", "-e", pattern, "--",
    ]  # fmt: skip
    # Without files, run it all the same: an invalid pattern must be reported.
    for batch in _batches(paths) if paths else [[os.devnull]]:
        with _process([*command, *batch], deadline, root=root) as process:
            assert process.stdout is not None
            for row in process.stdout:
                path, _, rest = row.rstrip(b"\n").partition(b"\0")
                number, colon, text = rest.partition(b":")
                # Other lines are remarks, such as about a binary file.
                if colon and number.isdigit():
                    hits.claim(os.fsdecode(path).removeprefix("./"), int(number), text)
                if hits.full:
                    return True
            failed = process.wait() == 2
        # Exit code 2 also means that a file has vanished, so test the pattern alone.
        if failed and not hits.found:
            with _process([*command, os.devnull], deadline, root=root) as process:
                if process.wait() == 2:
                    return False
    return True


def _search_with_python(pattern: str, paths: list[str], hits: _Hits, deadline: float) -> None:
    batch: dict[str, bytes] = {}
    size = 0
    for path in paths:
        data = hits.content(path)
        if data is not None:
            batch[path] = data
            size += len(data)
        if size >= _PIPED_BYTES:
            _match(pattern, batch, hits, deadline)
            batch, size = {}, 0
        if hits.full:
            return
    # Also for an empty batch: an invalid pattern must be reported.
    _match(pattern, batch, hits, deadline)


def _match(pattern: str, batch: dict[str, bytes], hits: _Hits, deadline: float) -> None:
    paths = list(batch)
    current, lines = -1, [b""]
    # Input from a file, since with a pipe each side could block the other.
    with tempfile.TemporaryFile() as questions:
        questions.write(json.dumps(pattern).encode() + b"\n")
        for data in batch.values():
            questions.write(b"%d\n" % len(data))
            questions.write(data)
        questions.seek(0)
        command = [sys.executable, "-I", "-S", "-W", "ignore", grep.__file__]
        with _process(command, deadline, stdin=questions) as process:
            assert process.stdout is not None
            for row in process.stdout:
                answer = json.loads(row)
                if isinstance(answer, dict):
                    wrong = f"The pattern is not a regular expression: {answer['error']}."
                    raise ToolFailure(
                        f"{wrong} Put a backslash before ( [ {{ . * + ? to search for the character"
                        " itself.",
                        shown=wrong,
                    )
                index, number = answer
                if index != current:
                    current, lines = index, batch[paths[index]].split(b"\n")
                hits.take(paths[index], number, lines[number - 1].rstrip(b"\r"))
                if hits.full:
                    return


@contextmanager
def _process(
    command: list[str],
    deadline: float,
    *,
    root: str | None = None,
    stdin: IO[bytes] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed at the end of the block, or at the deadline (_TimedOut)."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise _TimedOut
    late = threading.Event()
    with subprocess.Popen(
        command,
        stdin=stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=root,
        env={},
    ) as process:

        def expire() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(left_s, expire)
        timer.daemon = True
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()
    if late.is_set():
        raise _TimedOut


def _batches(paths: list[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for path in paths:
        # With ./ in front, no name is taken for an option or for standard input.
        batch.append(f"./{path}")
        size += 4 * len(path)
        if size > _ARGUMENT_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
