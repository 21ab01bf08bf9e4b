"""Text that is piped to a command: its task, or an attachment of its task."""

from __future__ import annotations

import os
import select
import stat
import sys

import click

from retinue.errors import UsageError
from retinue.interfaces.cli.recorded_command import INPUT, RepeatedCommand

MAX_BYTES = 256 * 1024
NOTICE_S = 2.0


def with_standard_input(task: str | None) -> tuple[str | None, str]:
    """The task, and the piped text that goes along with it. The task `-` is the piped text.

    A terminal is not read, and neither is anything that may stay open for ever, such as a socket.
    """
    context = click.get_current_context()
    if context.find_object(RepeatedCommand) or (task != "-" and not _is_piped()):
        return task, ""
    text = _read()
    context.meta[INPUT] = bool(text)
    if task != "-":
        return task, f"Text from standard input:\n{text}" if text else ""
    if not text:
        raise UsageError("The task - is read from standard input, but that is empty.")
    return text, ""


def _is_piped() -> bool:
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read() -> str:
    file = sys.stdin.fileno()
    if not select.select([file], [], [], NOTICE_S)[0]:
        click.echo("retinue: reading standard input; </dev/null leaves it out", err=True)
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    text = data[:MAX_BYTES].decode(errors="replace").strip()
    if len(data) > MAX_BYTES:
        while sys.stdin.buffer.read(MAX_BYTES):
            pass  # The program that writes must not fail.
        text += f"\n[only the first {MAX_BYTES:,} bytes]"
    return text
