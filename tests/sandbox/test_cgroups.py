"""Control groups are removed when commands have ended."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys

import pytest

from retinue.sandbox.cgroups import cgroups
from retinue.sandbox.limits import ProcessLimits

RUN_COMMANDS = """
import asyncio, os, shutil, signal
from retinue.domain.grant import Access
from retinue.domain.scope import NOWHERE
from retinue.errors import WorkspaceError
from retinue.ports.sandbox import ShellCommand
from retinue.sandbox.bubblewrap import Bubblewrap
async def main():
    sandbox = Bubblewrap({"PATH": "/usr/bin:/bin", "HOME": "/"}, bwrap=shutil.which("bwrap"))
    access = Access(root="/usr", write_scope=NOWHERE)
    for _ in range(2):
        await asyncio.gather(
            *(sandbox.run(ShellCommand("true", access, 60, 9)) for _ in "ab")
        )
asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"])
async def test_control_groups_are_removed(end: str) -> None:
    if shutil.which("bwrap") is None or not cgroups(ProcessLimits()).limited:
        pytest.skip("no control groups can be made here")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", RUN_COMMANDS + end)
    assert await process.wait() == (-signal.SIGKILL if end else 0)
    name = f"retinue-{process.pid}-"
    while end and _groups(name):
        # A killed process removes nothing; the next process does, once the kernel lets it.
        cgroups.cache_clear()
        cgroups(ProcessLimits())
        await asyncio.sleep(0.01)
    assert _groups(name) == []


def _groups(name: str) -> list[str]:
    folders = (folder for folder, _, _ in os.walk("/sys/fs/cgroup"))
    return [folder for folder in folders if os.path.basename(folder).startswith(name)]
