from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import pytest

from retinue.domain.grant import Access
from retinue.domain.scope import NOWHERE
from retinue.errors import ToolFailure, WorkspaceError
from retinue.ports.sandbox import CommandResult, Sandbox, ShellCommand
from retinue.sandbox.unconfined import Unconfined

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


async def run(
    command: str, directory: Path, *, timeout_s: float = 30, max_output_bytes: int = 1000
) -> CommandResult:
    sandbox: Sandbox = Unconfined(ENVIRONMENT)
    assert sandbox.tier == "none"
    return await sandbox.run(
        ShellCommand(
            command,
            access=Access(root=str(directory), write_scope=NOWHERE),
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
        )
    )


def open_files() -> list[str]:
    gc.collect()  # Closes what an earlier test has left.
    return sorted(os.listdir("/dev/fd"))


async def test_output_and_exit_code(tmp_path: Path) -> None:
    done = await run("pwd; echo err >&2; exit 7", tmp_path)
    assert done == CommandResult(exit_code=7, output=f"{tmp_path}\nerr\n")


async def test_environment_is_only_what_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    done = await run("env", tmp_path)
    names = {line.split("=")[0] for line in done.output.splitlines()}
    assert names <= {"PATH", "LANG", "PWD", "OLDPWD", "SHLVL", "_"}


async def test_input_is_empty(tmp_path: Path) -> None:
    assert await run("cat", tmp_path) == CommandResult(exit_code=0, output="")


async def test_signal_is_a_result(tmp_path: Path) -> None:
    assert (await run("kill -TERM $$", tmp_path)).exit_code == -15


async def test_long_output_is_capped(tmp_path: Path) -> None:
    done = await run("head -c 3000000 /dev/zero; echo end", tmp_path)
    assert done.truncated_bytes == 2_999_004
    assert done.output.endswith("\0end\n")


async def test_time_limit_kills_the_group(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    # The pipe ends only when the last process that has it open is gone.
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    try:
        done = await run(
            "exec 3>alive; (trap '' TERM; sleep 60) & sleep 60", tmp_path, timeout_s=0.5
        )
        assert done == CommandResult(exit_code=-9, output="", timed_out=True)
        os.set_blocking(reader, True)
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


async def test_cancelling_kills_the_group(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    before = open_files()
    loop = asyncio.get_running_loop()
    started = asyncio.Event()
    loop.add_reader(reader, started.set)
    try:
        task = asyncio.create_task(run("exec 3>alive; echo x >&3; sleep 60 & wait", tmp_path))
        await started.wait()
        loop.remove_reader(reader)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        os.set_blocking(reader, True)
        assert os.read(reader, 10) == b"x\n"
        assert os.read(reader, 10) == b""
        assert open_files() == before
    finally:
        os.close(reader)


async def test_background_process_does_not_block_the_result(tmp_path: Path) -> None:
    # It leaves the group, so it keeps the output open and is not killed with the group.
    done = await run("setsid sh -c 'echo $$ >pid; exec sleep 60' & echo started", tmp_path)
    assert done.exit_code == 0
    assert "started" in done.output
    pid = tmp_path / "pid"
    if pid.exists() and pid.read_text().strip():
        os.kill(int(pid.read_text()), 9)


async def test_many_commands_at_once(tmp_path: Path) -> None:
    before = open_files()
    done = await asyncio.gather(*(run(f"echo {i}", tmp_path) for i in range(20)))
    assert [one.output for one in done] == [f"{i}\n" for i in range(20)]
    assert open_files() == before


async def test_invalid_commands_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolFailure, match="The command contains a NUL"):
        await run("echo \0", tmp_path)
    with pytest.raises(ToolFailure, match="The command is too long; write it to a file"):
        await run("x" * 3_000_000, tmp_path)
    with pytest.raises(WorkspaceError, match=r"No command can be run in .*: No such file"):
        await run("true", tmp_path / "none")
