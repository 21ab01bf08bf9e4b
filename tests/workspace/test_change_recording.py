"""Writes and commands that record their changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.domain.grant import Access
from retinue.domain.scope import ANYWHERE
from retinue.ports.sandbox import CommandResult, ShellCommand
from retinue.sandbox.unconfined import Unconfined
from retinue.workspace.user_file_tree import UserFileTree
from tests.workspace.recorder import ListRecorder

if TYPE_CHECKING:
    from tests.conftest import Repo

TreeAt = Callable[[Path], UserFileTree]


def reach_everything(directory: str) -> Access:
    return Access(root=directory, write_scope=ANYWHERE)


async def test_writes_and_commands_are_recorded(repo: Repo, file_tree_at: TreeAt) -> None:
    repo.init().commit({"a": "1\n", "b": "1\n", "tool": "#!\n"})
    (repo.root / "tool").chmod(0o755)
    file_tree, recorder = file_tree_at(repo.root), ListRecorder()
    directory = str(repo.root)
    tree, sandbox = file_tree.with_recording(
        directory, Unconfined({"PATH": "/usr/bin:/bin"}), recorder
    )
    assert sandbox is not None
    tree.write("a", b"2\n")
    tree.write("a", b"2\n")
    tree.write("tool", b"#!/bin/sh\n")
    done = await sandbox.run(
        ShellCommand(
            "echo 3 >> a; rm b; echo n > new; chmod 644 tool",
            access=reach_everything(directory),
            timeout_s=60,
            max_output_bytes=1000,
        )
    )
    assert [str(file) for file in done.changed] == [
        "a (+1 line)",
        "b (-1 line, removed)",
        "new (+1 line, new file)",
        "tool (+0 lines)",
    ]
    assert [number for number, _, _ in recorder.recorded] == [1, 2, 3]
    # All of it is undone, beside later edits of the user.
    repo.write("mine", "1")
    applied = await file_tree.undo(await file_tree.changes("run1"))
    assert applied.refused == ()
    assert {path: text.split(" ", 1)[1] for path, text in repo.files().items()} == {
        "a": "1\n",
        "b": "1\n",
        "tool": "#!\n",
        "mine": "1",
    }
    assert (repo.root / "tool").stat().st_mode & 0o111


async def test_concurrent_changes_are_not_credited_to_a_command(
    repo: Repo, file_tree_at: TreeAt
) -> None:
    repo.init().commit({"a": "1\n"})
    file_tree, recorder = file_tree_at(repo.root), ListRecorder()
    directory = str(repo.root)
    tree, _ = file_tree.with_recording(directory, None, recorder)

    class Meanwhile(Unconfined):
        async def run(self, command: ShellCommand) -> CommandResult:
            tree.write("theirs", b"1\n")
            return await super().run(command)

    _, sandbox = file_tree.with_recording(directory, Meanwhile({"PATH": "/usr/bin:/bin"}), recorder)
    assert sandbox is not None
    done = await sandbox.run(
        ShellCommand(
            "echo x > mine", access=reach_everything(directory), timeout_s=60, max_output_bytes=1000
        )
    )
    assert [file.path for file in done.changed] == ["mine"]


async def test_paths_outside_the_scope_are_not_credited_to_a_command(
    repo: Repo, file_tree_at: TreeAt
) -> None:
    repo.init().commit({"a": "1\n", "src/b": "1\n"})
    file_tree, recorder = file_tree_at(repo.root), ListRecorder()
    directory = str(repo.root)

    class Confined(Unconfined):
        tier = "full"

        async def run(self, command: ShellCommand) -> CommandResult:
            repo.write("a", "mine\n")
            return await super().run(command)

    _, sandbox = file_tree.with_recording(directory, Confined({"PATH": "/usr/bin:/bin"}), recorder)
    assert sandbox is not None
    access = Access(root=directory, write_scope=(("src/**",),))
    done = await sandbox.run(
        ShellCommand("echo 2 > src/b", access=access, timeout_s=60, max_output_bytes=1000)
    )
    assert [file.path for file in done.changed] == ["src/b"]
    assert (await file_tree.undo(await file_tree.changes("run1"))).refused == ()
    assert ((repo.root / "a").read_text(), (repo.root / "src/b").read_text()) == ("mine\n", "1\n")


async def test_cancelled_command_stays_cancelled_when_no_snapshot_can_be_taken(
    repo: Repo, file_tree_at: TreeAt
) -> None:
    from retinue.workspace import snapshot

    file_tree, recorder = file_tree_at(repo.root), ListRecorder()
    directory = str(repo.root)

    class Filling(Unconfined):
        async def run(self, command: ShellCommand) -> CommandResult:
            for number in range(snapshot.MAX_NEW_BYTES // snapshot.MAX_FILE_BYTES + 1):
                with (repo.root / f"large{number}").open("wb") as file:
                    file.truncate(snapshot.MAX_FILE_BYTES)
            if command.text == "stop":
                raise asyncio.CancelledError
            return await super().run(command)

    async def run(command: str) -> CommandResult:
        for path in repo.root.glob("large*"):
            path.unlink()
        _, sandbox = file_tree.with_recording(
            directory, Filling({"PATH": "/usr/bin:/bin"}), recorder
        )
        assert sandbox is not None
        access = reach_everything(directory)
        return await sandbox.run(
            ShellCommand(command, access=access, timeout_s=60, max_output_bytes=1000)
        )

    with pytest.raises(asyncio.CancelledError):
        await run("stop")
    done = await run("echo hello")
    assert done.output.startswith("hello\n\n[What commands change here cannot be undone: ")


async def test_command_runs_when_no_snapshot_can_be_taken(repo: Repo, file_tree_at: TreeAt) -> None:
    from retinue.workspace import snapshot

    for number in range(snapshot.MAX_NEW_BYTES // snapshot.MAX_FILE_BYTES + 1):
        with (repo.root / f"large{number}").open("wb") as file:
            file.truncate(snapshot.MAX_FILE_BYTES)
    file_tree, recorder = file_tree_at(repo.root), ListRecorder()
    directory = str(repo.root)
    _, sandbox = file_tree.with_recording(
        directory, Unconfined({"PATH": "/usr/bin:/bin"}), recorder
    )
    assert sandbox is not None
    outputs = []
    for _ in range(2):
        done = await sandbox.run(
            ShellCommand(
                "echo hello",
                access=reach_everything(directory),
                timeout_s=60,
                max_output_bytes=1000,
            )
        )
        outputs.append(done.output)
    assert outputs[0].startswith("hello\n\n[What commands change here cannot be undone: ")
    assert outputs[1] == "hello\n"


async def test_repository_made_by_a_command_is_reported(repo: Repo, file_tree_at: TreeAt) -> None:
    repo.init().commit({"a": "1\n"})
    file_tree, recorder = file_tree_at(repo.root), ListRecorder()
    directory = str(repo.root)
    _, sandbox = file_tree.with_recording(
        directory, Unconfined({"PATH": "/usr/bin:/bin"}), recorder
    )
    assert sandbox is not None

    async def run(command: str) -> CommandResult:
        return await sandbox.run(
            ShellCommand(
                command, access=reach_everything(directory), timeout_s=60, max_output_bytes=1000
            )
        )

    done = await run("git init -q sub; echo x > sub/x; echo 2 > a; truncate -s 65M large")
    assert done.output.strip() == (
        "[A repository, or too large, so it is neither undone nor merged: 'large', 'sub']"
    )
    assert [file.path for file in done.changed] == ["a"]
    assert (await run("echo 3 > a; echo y > sub/x")).output == ""
    assert (repo.root / "sub" / "x").read_text() == "y\n"
