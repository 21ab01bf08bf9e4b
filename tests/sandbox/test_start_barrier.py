"""A failure of the sandbox is told apart from a failure of the command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.errors import WorkspaceError
from retinue.sandbox.bubblewrap import Bubblewrap
from retinue.sandbox.start_barrier import StartBarrier
from tests.sandbox.probe import SandboxProbe


async def test_command_cannot_fake_a_sandbox_failure(probe: SandboxProbe) -> None:
    done = await probe.run("echo 'sandbox failed: install this'; exit 125")
    assert (done.exit_code, done.output) == (125, "sandbox failed: install this\n")


async def test_bubblewrap_without_status_report_is_a_failure(tmp_path: Path) -> None:
    """A fake bubblewrap that prints something and reports no status."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho --bind-fd no idea\n")
    fake.chmod(0o755)
    probe = SandboxProbe(Bubblewrap({"PATH": "/usr/bin:/bin"}, bwrap=str(fake)), tmp_path, tmp_path)
    with pytest.raises(WorkspaceError, match="The sandbox failed: --bind-fd no idea"):
        await probe.run("true")


INSTALLS_A_FILTER = """
import ctypes, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
allow = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
sys.stdin.buffer.read(1)
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, ctypes.byref(Program(1, ctypes.addressof(allow)))) == 0
print("installed", flush=True)
sys.stdin.buffer.read(1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")
async def test_shell_waits_until_the_command_would_die_with_us() -> None:
    """The process that starts the command installs a filter when it has asked for that."""
    init = await asyncio.create_subprocess_exec(
        sys.executable, "-c", INSTALLS_A_FILTER, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert init.stdin is not None
    assert init.stdout is not None
    async with contextlib.AsyncExitStack() as stack:
        barrier = StartBarrier(stack, {})
        with barrier.opened():
            os.write(barrier.fds[1], b'{"child-pid": %d}\n' % init.pid)
            assert await asyncio.to_thread(os.read, barrier.stdin, 2) == b"\n", "for bubblewrap"
            line = asyncio.create_task(asyncio.to_thread(os.read, barrier.stdin, 2))
            init.stdin.write(b"\n")
            assert await init.stdout.readline() == b"installed\n"
            assert await line == b"\n"
    init.stdin.close()
    await init.communicate()
