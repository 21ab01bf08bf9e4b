"""No process of a command outlives the command, its time limit, or retinue."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.domain.scope import scope
from tests.sandbox.probe import SandboxProbe


async def test_time_limit_kills_daemons_too(probe: SandboxProbe, alive: tuple[str, int]) -> None:
    name, reader = alive
    daemon = (
        "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(100)"
    )
    done = await probe.run(
        f"exec 3>{name}; python3 -c '{daemon}'; setsid sleep 100 & nohup sleep 100 & sleep 100",
        write=scope("**"),
        timeout_s=3,
    )
    assert done.timed_out
    assert await asyncio.to_thread(_pipe_ended, reader)


async def test_background_processes_end_with_the_command(
    probe: SandboxProbe, alive: tuple[str, int]
) -> None:
    name, reader = alive
    done = await probe.run(
        f"exec 3>{name}; setsid sleep 100 >/dev/null 2>&1 & echo done", write=scope("**")
    )
    assert done.output == "done\n"
    assert await asyncio.to_thread(_pipe_ended, reader)


def _pipe_ended(reader: int) -> bool:
    """Whether a pipe ends within a second."""
    os.set_blocking(reader, True)
    ready, _, _ = select.select([reader], [], [], 1.0)
    return bool(ready) and os.read(reader, 1) == b""


async def test_commands_die_with_the_parent_process(
    probe: SandboxProbe, alive: tuple[str, int], tmp_path: Path
) -> None:
    name, reader = alive
    kind = type(probe.sandbox)
    program = f"""
import asyncio
from retinue.domain.grant import Access
from retinue.domain.scope import ANYWHERE
from retinue.ports.sandbox import ShellCommand
from {kind.__module__} import {kind.__name__}
from shutil import which
arguments = {{"bwrap": which("bwrap")}} if {kind.__name__!r} == "Bubblewrap" else {{}}
sandbox = {kind.__name__}({{"PATH": "/usr/bin:/bin", "HOME": "/"}}, **arguments)
access = Access(root={str(probe.root)!r}, write_scope=ANYWHERE)
command = "exec 3>{name}; setsid sleep 100 & echo x >started; sleep 100"
asyncio.run(sandbox.run(ShellCommand(command, access, 100, 100)))
"""
    (probe.root / "started").write_text("")
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    try:
        while (probe.root / "started").read_text() != "x\n":
            assert parent.returncode is None
            await asyncio.sleep(0.02)
    finally:
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
    assert await asyncio.to_thread(_pipe_ended, reader)


KILLED_EARLY = """
import asyncio, ctypes, os, shutil, signal, struct, time
from retinue.domain.grant import Access
from retinue.domain.scope import ANYWHERE
from retinue.ports.sandbox import ShellCommand
from {module} import {name}
libc = ctypes.CDLL(None)
libc.prctl(36, 1, 0, 0, 0)  # Adopt orphans.
# Landlock for signals: should a bug kill too much, nothing outside of this program is killed.
libc.prctl(38, 1, 0, 0, 0)
libc.syscall(446, libc.syscall(444, struct.pack("=3Q", 0, 0, 2), 24, 0), 0)
arguments = dict(bwrap=shutil.which("bwrap"), cache={root!r}) if {name!r} == "Bubblewrap" else {{}}
access = Access(root={root!r}, write_scope=ANYWHERE)
begun, beginning = os.pipe()
def command():
    sandbox = {name}({{"PATH": "/usr/bin:/bin", "HOME": "/"}}, **arguments)
    os.write(beginning, b".")
    asyncio.run(sandbox.run(ShellCommand("sleep 100", access, 100, 100)))
for delay in range(0, 60, 4):
    pid = os.fork()
    if pid == 0:
        command()
    os.read(begun, 1)
    time.sleep(delay / 1000)
    os.kill(pid, signal.SIGKILL)
deadline = time.monotonic() + 5
while time.monotonic() < deadline:
    try:
        if os.waitpid(-1, os.WNOHANG) == (0, 0):
            time.sleep(0.01)
    except ChildProcessError:
        print("all gone")
        break
"""


async def test_parent_killed_at_once_leaves_no_process(probe: SandboxProbe) -> None:
    kind = type(probe.sandbox)
    program = KILLED_EARLY.format(module=kind.__module__, name=kind.__name__, root=str(probe.root))
    asked = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=subprocess.PIPE
    )
    told, _ = await asked.communicate()
    assert told.endswith(b"all gone\n")


@pytest.mark.parametrize("number", ["KILL", "STOP", "TERM", "INT", "HUP"])
async def test_supervisor_cannot_be_signalled(
    probe: SandboxProbe, alive: tuple[str, int], number: str
) -> None:
    name, reader = alive
    done = await probe.run(
        f"exec 3<>{name}; setsid sleep 100 >/dev/null 2>&1 &"
        f" kill -{number} $PPID 2>/dev/null; kill -{number} 1 2>/dev/null; echo done",
        write=scope("**"),
    )
    assert done.output == "done\n"
    assert done.exit_code == 0
    assert await asyncio.to_thread(_pipe_ended, reader)
