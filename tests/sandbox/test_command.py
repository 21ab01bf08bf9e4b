"""Checks before a command runs, and the disk monitor."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from retinue.domain.scope import ANYWHERE, scope
from retinue.errors import ToolFailure, WorkspaceError
from tests.sandbox.probe import SandboxProbe


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small disk cannot be made here")
    (path / "open").mkdir()
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


async def test_command_that_fills_the_disk_is_ended(probe: SandboxProbe, small_disk: Path) -> None:
    with pytest.raises(WorkspaceError, match=r"ended: the disk that .* is on is almost full"):
        await msgspec.structs.replace(probe, root=small_disk).run(
            "for n in 1 2 3; do head -c 11000000 /dev/zero >open/$n; done; sleep 100",
            write=scope("open/**"),
        )


async def test_deeply_nested_folders_are_removed(probe: SandboxProbe) -> None:
    done = await probe.python(
        """
import os
os.chdir(os.environ["TMPDIR"])
print(os.getcwd())
os.mkdir("closed", 0)
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
"""
    )
    assert done.exit_code == 0
    if not probe.full:
        assert not os.access(done.output.strip(), os.F_OK)


@pytest.fixture
def few_files(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "few"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m,nr_inodes=1000", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small disk cannot be made here")
    (path / "open").mkdir()
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


async def test_command_that_uses_up_all_inodes_is_ended(
    probe: SandboxProbe, few_files: Path
) -> None:
    with pytest.raises(WorkspaceError, match=r"ended: the disk that .* is on is almost full"):
        await msgspec.structs.replace(probe, root=few_files).run(
            "cd open; seq 2000 | xargs touch; sleep 100", write=scope("open/**")
        )


async def test_many_commands_at_once(probe: SandboxProbe) -> None:
    before = len(os.listdir("/dev/fd"))
    done = await asyncio.gather(*(probe.run(f"echo {n}", write=ANYWHERE) for n in range(8)))
    assert [one.output for one in done] == [f"{n}\n" for n in range(8)]
    assert len(os.listdir("/dev/fd")) <= before


async def test_invalid_commands_are_refused(probe: SandboxProbe) -> None:
    with pytest.raises(ToolFailure, match="The command contains a NUL"):
        await probe.run("echo \0")
    with pytest.raises(ToolFailure, match="The command is too long; write it to a file"):
        await probe.run("x" * 200_000)
    with pytest.raises(ToolFailure, match="The command is not valid Unicode"):
        await probe.run("echo \ud800")
    shutil.rmtree(probe.root)
    with pytest.raises(WorkspaceError, match=r"No command can be run in .*: No such file"):
        await probe.run("true")
