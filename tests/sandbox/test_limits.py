"""What a command is given from its first moment: limits, and somebody who ends it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.errors import WorkspaceError
from retinue.sandbox.bubblewrap import Bubblewrap
from retinue.sandbox.cgroups import cgroups
from retinue.sandbox.limits import ProcessLimits
from tests.sandbox.probe import SandboxProbe


async def test_limits_are_there_from_the_first_moment(probe: SandboxProbe) -> None:
    done = await probe.run("cat /proc/self/oom_score_adj; ulimit -f; cat /proc/self/limits")
    first, blocks, *limits = done.output.splitlines()
    assert first == "1000"
    assert int(blocks) * 512 == ProcessLimits().file_bytes
    # With 0 the kernel would start the host's program for memory that crashed, outside.
    assert next(line.split()[4:6] for line in limits if line.startswith("Max core")) == ["1", "1"]


EARLY = """
import asyncio, ctypes, os, shutil, signal, struct, time
from retinue.domain.reach import Reach
from retinue.domain.scope import ANYWHERE
from {module} import {name}
libc = ctypes.CDLL(None)
libc.prctl(36, 1, 0, 0, 0)  # Whose parent dies becomes ours.
# If too much is killed ever again, then nothing outside of this program: Landlock, signals alone.
libc.prctl(38, 1, 0, 0, 0)
libc.syscall(446, libc.syscall(444, struct.pack("=3Q", 0, 0, 2), 24, 0), 0)
arguments = dict(bwrap=shutil.which("bwrap"), cache={root!r}) if {name!r} == "Bubblewrap" else {{}}
reach = Reach(root={root!r}, write_scope=ANYWHERE)
begun, beginning = os.pipe()
def command():
    sandbox = {name}({{"PATH": "/usr/bin:/bin", "HOME": "/"}}, **arguments)
    os.write(beginning, b".")
    asyncio.run(sandbox.run("sleep 100", reach=reach, timeout_s=100, max_output_bytes=100))
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


async def test_a_parent_that_is_killed_at_once_leaves_nothing(probe: SandboxProbe) -> None:
    kind = type(probe.sandbox)
    program = EARLY.format(module=kind.__module__, name=kind.__name__, root=str(probe.root))
    asked = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=subprocess.PIPE
    )
    told, _ = await asked.communicate()
    assert told.endswith(b"all gone\n")


async def test_a_sandbox_that_cannot_be_told_of_is_no_sandbox(tmp_path: Path) -> None:
    """Bubblewrap in name only: it runs the command, and says nothing of how."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho --bind-fd no idea\n")
    fake.chmod(0o755)
    probe = SandboxProbe(Bubblewrap({"PATH": "/usr/bin:/bin"}, bwrap=str(fake)), tmp_path, tmp_path)
    with pytest.raises(WorkspaceError, match="The sandbox failed: --bind-fd no idea"):
        await probe.run("true")


PROGRAM = """
import asyncio, os, shutil, signal
from retinue.domain.reach import Reach
from retinue.domain.scope import NOWHERE
from retinue.errors import WorkspaceError
from retinue.sandbox.bubblewrap import Bubblewrap
async def main():
    sandbox = Bubblewrap({"PATH": "/usr/bin:/bin", "HOME": "/"}, bwrap=shutil.which("bwrap"))
    reach = Reach(root="/usr", write_scope=NOWHERE)
    for _ in range(2):
        await asyncio.gather(
            *(sandbox.run("true", reach=reach, timeout_s=60, max_output_bytes=9) for _ in "ab")
        )
asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"])
async def test_control_groups_are_cleared_away(end: str) -> None:
    if shutil.which("bwrap") is None or not cgroups(ProcessLimits()).limited:
        pytest.skip("no control groups can be made here")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM + end)
    await process.wait()
    name = f"retinue-{process.pid}-"
    while end and _groups(name):
        # Who is killed clears nothing away; the next one does, once the kernel is done with it.
        cgroups.cache_clear()
        cgroups(ProcessLimits())
        await asyncio.sleep(0.01)
    assert _groups(name) == []


def _groups(name: str) -> list[str]:
    folders = (folder for folder, _, _ in os.walk("/sys/fs/cgroup"))
    return [folder for folder in folders if os.path.basename(folder).startswith(name)]
