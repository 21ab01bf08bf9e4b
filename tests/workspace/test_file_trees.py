"""Work goes out into copies and comes back, as the runtime does it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.domain.reach import Reach
from retinue.domain.result import FileChange
from retinue.domain.scope import ANYWHERE
from retinue.errors import ToolFailure
from retinue.ports.sandbox import CommandResult
from retinue.sandbox.unconfined import Unconfined
from retinue.workspace.file_trees import AgentWorkingCopy, UserFileTree

if TYPE_CHECKING:
    from tests.conftest import Repo


class Log:
    """The steps of a run, as they are made."""

    run_id = "run1"

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.made_steps: list[tuple[int, str, list[str]]] = []

    def next_number(self) -> int:
        return next(self._numbers)

    def record(self, number: int, commit: str, files: tuple[FileChange, ...]) -> None:
        self.made_steps.append((number, commit, [str(file) for file in files]))


TreeAt = Callable[[Path], UserFileTree]


def all_of(directory: str) -> Reach:
    return Reach(root=directory, write_scope=ANYWHERE)


async def copied(
    file_tree: UserFileTree | AgentWorkingCopy, base: str, repo: Repo, name: str
) -> AgentWorkingCopy:
    return await file_tree.copy(base, name=name, directory=str(repo.root))


def write(file_tree: AgentWorkingCopy, repo: Repo, path: str, text: str) -> None:
    file_tree.workspace(str(repo.root)).write(path, text.encode())


async def test_two_children_and_an_edit_of_the_users(repo: Repo, file_tree_at: TreeAt) -> None:
    lines = "".join(f"{number}\n" for number in range(1, 20))
    repo.init().commit({"a": lines, "b": "1\n"})
    before = repo.git_dir()
    file_tree, log = file_tree_at(repo.root), Log()
    base = await file_tree.snapshot(None)
    first, second = [await copied(file_tree, base, repo, name) for name in ("c1", "c2")]
    write(first, repo, "a", lines.replace("2\n", "two\n", 1))
    write(second, repo, "b", "2\n")
    write(second, repo, "new/c", "3\n")
    head = base
    repo.write("a", lines.replace("18\n", "eighteen\n"))
    for copy in (first, second):
        proposal = await copy.propose(message="work")
        assert proposal.problems == ()
        merge = await file_tree.merge(head, proposal.commit, base=base, message="merge")
        assert merge.conflicts == ()
        applied = await file_tree.apply(head, merge.commit, log, message="merge")
        assert applied.refused == ()
        head = merge.commit
        await copy.remove()
    assert (repo.root / "a").read_text() == lines.replace("2\n", "two\n", 1).replace(
        "18\n", "eighteen\n"
    )
    assert (repo.root / "new" / "c").read_text() == "3\n"
    assert [(number, files) for number, _, files in log.made_steps] == [
        (1, ["a (+1/-1 lines)"]),
        (2, ["b (+1/-1 lines)", "new/c (+1 line, new file)"]),
    ]
    assert repo.git_dir() == before
    assert not (repo.home / "worktrees" / "c1").exists()


async def test_a_state_that_has_not_changed_is_the_same_commit(
    repo: Repo, file_tree_at: TreeAt
) -> None:
    repo.init().commit({"a": "1"})
    file_tree = file_tree_at(repo.root)
    base = await file_tree.snapshot(None)
    assert await file_tree.snapshot(base) == base
    repo.write("a", "2")
    later = await file_tree.snapshot(base)
    assert later != base
    assert await file_tree.snapshot(later) == later


async def test_a_conflict_between_children_names_the_file_and_both_versions(
    repo: Repo, file_tree_at: TreeAt
) -> None:
    repo.init().commit({"a": "1\n"})
    file_tree = file_tree_at(repo.root)
    base = await file_tree.snapshot(None)
    heads = []
    for number in (1, 2):
        copy = await copied(file_tree, base, repo, f"c{number}")
        write(copy, repo, "a", f"by {number}\n")
        heads.append((await copy.propose(message="work")).commit)
        await copy.remove()
    merge = await file_tree.merge(heads[0], heads[1], base=base, message="merge")
    (conflict,) = merge.conflicts
    assert conflict.path == "a"
    assert conflict.ours != conflict.theirs


async def test_an_edit_of_the_users_in_the_same_place_is_not_lost(
    repo: Repo, file_tree_at: TreeAt
) -> None:
    repo.init().commit({"a": "1\n", "b": "1\n"})
    file_tree, log = file_tree_at(repo.root), Log()
    base = await file_tree.snapshot(None)
    copy = await copied(file_tree, base, repo, "c1")
    write(copy, repo, "a", "theirs\n")
    write(copy, repo, "b", "theirs\n")
    proposal = await copy.propose(message="work")
    await copy.remove()
    repo.write("a", "mine\n")
    applied = await file_tree.apply(base, proposal.commit, log, message="merge")
    assert applied.refused == ("a",)
    assert ((repo.root / "a").read_text(), (repo.root / "b").read_text()) == ("mine\n", "1\n")
    assert log.made_steps == []


async def test_work_that_was_not_integrated_is_kept(repo: Repo, file_tree_at: TreeAt) -> None:
    from retinue.workspace.recorded_changes import list_changes, unified_diff

    repo.init().commit({"a": "1\n"})
    file_tree = file_tree_at(repo.root)
    base = await file_tree.snapshot(None)
    copy = await copied(file_tree, base, repo, "c1")
    write(copy, repo, "a", "2\n")
    proposal = await copy.propose(message="work")
    await copy.remove()
    await file_tree.keep_unmerged(
        base, proposal.commit, run_id="run1", agent_id="a1", message="failed"
    )
    private_git = repo.private_git()
    (one,) = list_changes(private_git)
    assert (one.run_id, one.kind, one.name) == ("run1", "kept", "a1")
    assert b"-1\n+2\n" in unified_diff(private_git, one.commit)


async def test_a_copy_of_a_copy_goes_into_the_copy(repo: Repo, file_tree_at: TreeAt) -> None:
    repo.init().commit({"a": "1\n", "b": "1\n"})
    file_tree = file_tree_at(repo.root)
    base = await file_tree.snapshot(None)
    child = await copied(file_tree, base, repo, "c1")
    write(child, repo, "a", "child\n")
    inner_base = await child.snapshot(None)
    grandchild = await copied(child, inner_base, repo, "c2")
    assert grandchild.workspace(str(repo.root)).read("a", max_bytes=99) == b"child\n"
    write(grandchild, repo, "b", "grandchild\n")
    inner = await grandchild.propose(message="work")
    applied = await child.apply(inner_base, inner.commit, None, message="merge")
    assert [file.path for file in applied.files] == ["b"]
    proposal = await child.propose(message="work")
    assert sorted(proposal.paths) == ["a", "b"]
    assert (repo.root / "b").read_text() == "1\n"


async def test_paths_are_told_from_where_the_agent_works(repo: Repo, file_tree_at: TreeAt) -> None:
    repo.init().commit({"packages/api/a": "1", "packages/api/sub/b": "1", "top": "1"})
    api = repo.root / "packages" / "api"
    file_tree = file_tree_at(api)
    base = await file_tree.snapshot(None)
    copy = await file_tree.copy(base, name="c1", directory=str(api))
    tree = copy.workspace(str(api))
    assert Path(tree.root).name == "api"
    tree.write("a", b"2")
    tree.write(f"{api}/sub/b", b"2")
    (Path(tree.root).parents[1] / "top").write_text("2")
    proposal = await copy.propose(message="work")
    assert sorted(proposal.paths) == ["../../top", "a", "sub/b"]
    with pytest.raises(ToolFailure, match="outside"):
        tree.read("../../top", max_bytes=9)
    found, _ = tree.find("**", under=".", limit=9)
    assert found == ["a", "sub/b"]


async def test_writes_and_commands_in_the_users_tree_become_steps(
    repo: Repo, file_tree_at: TreeAt
) -> None:
    repo.init().commit({"a": "1\n", "b": "1\n", "tool": "#!\n"})
    (repo.root / "tool").chmod(0o755)
    file_tree, log = file_tree_at(repo.root), Log()
    directory = str(repo.root)
    tree, sandbox = file_tree.with_recording(
        file_tree.workspace(directory), Unconfined({"PATH": "/usr/bin:/bin"}), directory, log
    )
    assert sandbox is not None
    tree.write("a", b"2\n")
    tree.write("a", b"2\n")
    tree.write("tool", b"#!/bin/sh\n")
    done = await sandbox.run(
        "echo 3 >> a; rm b; echo n > new; chmod 644 tool",
        reach=all_of(directory),
        timeout_s=60,
        max_output_bytes=1000,
    )
    assert [str(file) for file in done.changed] == [
        "a (+1 line)",
        "b (-1 line, removed)",
        "new (+1 line, new file)",
        "tool (+0 lines)",
    ]
    assert [number for number, _, _ in log.made_steps] == [1, 2, 3]
    # All of it is taken back, beside what the user did since.
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


async def test_a_command_is_not_blamed_for_what_others_do_meanwhile(
    repo: Repo, file_tree_at: TreeAt
) -> None:
    repo.init().commit({"a": "1\n"})
    file_tree, log = file_tree_at(repo.root), Log()
    directory = str(repo.root)
    tree, _ = file_tree.with_recording(file_tree.workspace(directory), None, directory, log)

    class Meanwhile(Unconfined):
        async def run(
            self, command: str, *, reach: Reach, timeout_s: float, max_output_bytes: int
        ) -> CommandResult:
            tree.write("theirs", b"1\n")
            return await super().run(
                command, reach=reach, timeout_s=timeout_s, max_output_bytes=max_output_bytes
            )

    _, sandbox = file_tree.with_recording(
        file_tree.workspace(directory), Meanwhile({"PATH": "/usr/bin:/bin"}), directory, log
    )
    assert sandbox is not None
    done = await sandbox.run(
        "echo x > mine", reach=all_of(directory), timeout_s=60, max_output_bytes=1000
    )
    assert [file.path for file in done.changed] == ["mine"]


async def test_a_confined_command_is_not_blamed_for_what_the_user_does_meanwhile(
    repo: Repo, file_tree_at: TreeAt
) -> None:
    repo.init().commit({"a": "1\n", "src/b": "1\n"})
    file_tree, log = file_tree_at(repo.root), Log()
    directory = str(repo.root)

    class Confined(Unconfined):
        tier = "full"

        async def run(
            self, command: str, *, reach: Reach, timeout_s: float, max_output_bytes: int
        ) -> CommandResult:
            repo.write("a", "mine\n")
            return await super().run(
                command, reach=reach, timeout_s=timeout_s, max_output_bytes=max_output_bytes
            )

    _, sandbox = file_tree.with_recording(
        file_tree.workspace(directory), Confined({"PATH": "/usr/bin:/bin"}), directory, log
    )
    assert sandbox is not None
    reach = Reach(root=directory, write_scope=(("src/**",),))
    done = await sandbox.run("echo 2 > src/b", reach=reach, timeout_s=60, max_output_bytes=1000)
    assert [file.path for file in done.changed] == ["src/b"]
    assert (await file_tree.undo(await file_tree.changes("run1"))).refused == ()
    assert ((repo.root / "a").read_text(), (repo.root / "src/b").read_text()) == ("mine\n", "1\n")


async def test_a_command_that_was_cancelled_stays_cancelled_when_the_tree_cannot_be_looked_at(
    repo: Repo, file_tree_at: TreeAt
) -> None:
    from retinue.workspace import snapshot

    file_tree, log = file_tree_at(repo.root), Log()
    directory = str(repo.root)

    class Filling(Unconfined):
        async def run(
            self, command: str, *, reach: Reach, timeout_s: float, max_output_bytes: int
        ) -> CommandResult:
            for number in range(snapshot.MAX_NEW_BYTES // snapshot.MAX_FILE_BYTES + 1):
                with (repo.root / f"large{number}").open("wb") as file:
                    file.truncate(snapshot.MAX_FILE_BYTES)
            if command == "stop":
                raise asyncio.CancelledError
            return await super().run(
                command, reach=reach, timeout_s=timeout_s, max_output_bytes=max_output_bytes
            )

    async def run(command: str) -> CommandResult:
        for path in repo.root.glob("large*"):
            path.unlink()
        _, sandbox = file_tree.with_recording(
            file_tree.workspace(directory), Filling({"PATH": "/usr/bin:/bin"}), directory, log
        )
        assert sandbox is not None
        reach = all_of(directory)
        return await sandbox.run(command, reach=reach, timeout_s=60, max_output_bytes=1000)

    with pytest.raises(asyncio.CancelledError):
        await run("stop")
    done = await run("echo hello")
    assert done.output.startswith("hello\n\n[What commands change here cannot be undone: ")


async def test_a_tree_that_cannot_be_looked_at_stops_no_command(
    repo: Repo, file_tree_at: TreeAt
) -> None:
    from retinue.workspace import snapshot

    for number in range(snapshot.MAX_NEW_BYTES // snapshot.MAX_FILE_BYTES + 1):
        with (repo.root / f"large{number}").open("wb") as file:
            file.truncate(snapshot.MAX_FILE_BYTES)
    file_tree, log = file_tree_at(repo.root), Log()
    directory = str(repo.root)
    _, sandbox = file_tree.with_recording(
        file_tree.workspace(directory), Unconfined({"PATH": "/usr/bin:/bin"}), directory, log
    )
    assert sandbox is not None
    outputs = []
    for _ in range(2):
        done = await sandbox.run(
            "echo hello", reach=all_of(directory), timeout_s=60, max_output_bytes=1000
        )
        outputs.append(done.output)
    assert outputs[0].startswith("hello\n\n[What commands change here cannot be undone: ")
    assert outputs[1] == "hello\n"


async def test_what_is_written_where_nobody_looks_is_a_problem_of_the_proposal(
    repo: Repo, file_tree_at: TreeAt, tmp_path: Path
) -> None:
    library = tmp_path / "library"
    repo.git("init", "-q", str(library))
    repo.git("commit", "-q", "--allow-empty", "-m", "x", at=library)
    repo.init().commit({"in/a": "1\n", "out/b": "1\n"})
    repo.git("submodule", "--quiet", "add", str(library), "in/sub")
    repo.commit()
    repo.git("sparse-checkout", "set", "in")
    file_tree = file_tree_at(repo.root)
    copy = await copied(file_tree, await file_tree.snapshot(None), repo, "c1")
    write(copy, repo, "in/a", "2\n")
    assert (await copy.propose(message="work")).problems == ()
    write(copy, repo, "in/sub/new", "2\n")
    write(copy, repo, "out/b", "2\n")
    assert (await copy.propose(message="work")).problems == tuple(
        f"'{path}' was written, but is a submodule or left out of your sparse checkout"
        for path in ("in/sub", "out/b")
    )
    await copy.remove()


async def test_where_there_are_no_copies(repo: Repo, file_tree_at: TreeAt) -> None:
    assert await file_tree_at(repo.root).why_no_copies() == "the project is no git repository"
    repo.init()
    assert await file_tree_at(repo.root).why_no_copies() == ""


async def test_a_repository_that_a_command_makes_is_told(repo: Repo, file_tree_at: TreeAt) -> None:
    repo.init().commit({"a": "1\n"})
    file_tree, log = file_tree_at(repo.root), Log()
    directory = str(repo.root)
    _, sandbox = file_tree.with_recording(
        file_tree.workspace(directory), Unconfined({"PATH": "/usr/bin:/bin"}), directory, log
    )
    assert sandbox is not None

    async def run(command: str) -> CommandResult:
        return await sandbox.run(
            command, reach=all_of(directory), timeout_s=60, max_output_bytes=1000
        )

    done = await run("git init -q sub; echo x > sub/x; echo 2 > a; truncate -s 65M large")
    assert done.output.strip() == (
        "[A repository, or too large, so it is neither undone nor merged: 'large', 'sub']"
    )
    assert [file.path for file in done.changed] == ["a"]
    assert (await run("echo 3 > a; echo y > sub/x")).output == ""
    assert (repo.root / "sub" / "x").read_text() == "y\n"
