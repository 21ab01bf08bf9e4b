"""Standard streams that never fail the work: they may be closed, or their disk may be full."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


@contextmanager
def safe_streams() -> Iterator[None]:
    """Open closed streams on /dev/null, and keep write errors until the end.

    If standard output has lost text, the process says so on standard error and exits with 1. If it
    is a pipe whose reader is gone, it still raises BrokenPipeError. Streams that a caller has
    replaced stay.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            # Otherwise the next file, such as the journal, would get this number.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - until the process ends
    output = None
    if sys.stdout is sys.__stdout__:
        sys.stdout, output = _safe(sys.__stdout__, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr, _ = _safe(sys.__stderr__, 2)
    try:
        yield
    except SystemExit as ended:
        with suppress(BrokenPipeError):
            sys.stdout.flush()
        if output is None or output.error is None or ended.code:
            raise
        reason = output.error.strerror
        sys.stderr.write(f"retinue: The output could not be written: {reason}.\n")
        raise SystemExit(1) from None


def take_output() -> int:
    """A descriptor of standard output. Whatever else is printed goes to standard error from now on.

    For protocols: nothing may get between their messages.
    """
    output = os.dup(1)
    os.dup2(2, 1)
    return output


class _Output(io.FileIO):
    """A file that drops what cannot be written, and keeps the first error."""

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if isinstance(error, BrokenPipeError) and self.fileno() == 1:
                raise
            self.error = self.error or error
            return memoryview(data).nbytes


def _safe(stream: TextIO | None, fd: int) -> tuple[io.TextIOWrapper, _Output]:
    raw = _Output(os.devnull if stream is None else fd, "wb", closefd=stream is None)
    text = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors=getattr(stream, "errors", "replace"),
        line_buffering=True,
    )
    return text, raw
