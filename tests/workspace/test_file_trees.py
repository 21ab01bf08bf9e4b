"""The user's tree and the working copies of agents, with real repositories."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.errors import ToolFailure, WorkspaceError
from retinue.workspace.file_trees import AgentWorkingCopy
from retinue.workspace.user_file_tree import UserFileTree
from tests.workspace.recorder import ListRecorder

if TYPE_CHECKING:
    from tests.conftest import Repo

TreeAt = Callable[[Path], UserFileTree]


async def copy_of(
    file_tree: UserFileTree | AgentWorkingCopy, base: str, repo: Repo, name: str
) -> AgentWorkingCopy:
    return await file_tree.copy(base, name=name, directory=str(repo.root))


def write(file_tree: AgentWorkingCopy, repo: Repo, path: str, text: str) -> None:
    file_tree.workspace(str(repo.root)).write(path, text.encode())


async def test_two_children_are_merged_beside_an_edit_of_the_user(
    repo: Repo, file_tree_at: TreeAt
) -> None:
    lines = "".join(f"{number}\n" for number in range(1, 20))
    repo.init().commit({"a": lines, "b": "1\n"})
    before = repo.git_dir()
    file_tree, recorder = file_tree_at(repo.root), ListRecorder()
    base = await file_tree.snapshot(None)
    first, second = [await copy_of(file_tree, base, repo, name) for name in ("c1", "c2")]
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
        applied = await file_tree.apply(head, merge.commit, recorder, message="merge")
        assert applied.refused == ()
        head = merge.commit
        await copy.remove()
    assert (repo.root / "a").read_text() == lines.replace("2\n", "two\n", 1).replace(
        "18\n", "eighteen\n"
    )
    assert (repo.root / "new" / "c").read_text() == "3\n"
    assert [(number, files) for number, _, files in recorder.recorded] == [
        (1, ["a (+1/-1 lines)"]),
        (2, ["b (+1/-1 lines)", "new/c (+1 line, new file)"]),
    ]
    assert repo.git_dir() == before
    assert not (repo.home / "worktrees" / "c1").exists()


async def test_a_git_that_was_killed_locks_no_copy(repo: Repo, file_tree_at: TreeAt) -> None:
    """A host ends with its git. The copy is still there for the next one, and for the run."""
    repo.init().commit({"a": "1\n"})
    file_tree = file_tree_at(repo.root)
    copy = await copy_of(file_tree, await file_tree.snapshot(None), repo, "c1")
    write(copy, repo, "a", "2\n")
    (Path(copy.location.folder) / "index.lock").touch()
    snapshot = await copy.snapshot(None)
    proposal = await copy.propose(message="work")
    assert proposal.paths == ("a",)
    assert await file_tree.diff(snapshot, proposal.commit) == ""
    await copy.remove()


async def test_unchanged_files_give_the_same_snapshot(repo: Repo, file_tree_at: TreeAt) -> None:
    repo.init().commit({"a": "1"})
    file_tree = file_tree_at(repo.root)
    base = await file_tree.snapshot(None)
    assert await file_tree.snapshot(base) == base
    repo.write("a", "2")
    later = await file_tree.snapshot(base)
    assert later != base
    assert await file_tree.snapshot(later) == later


async def test_conflict_between_children_names_the_file_and_both_versions(
    repo: Repo, file_tree_at: TreeAt
) -> None:
    repo.init().commit({"a": "1\n"})
    file_tree = file_tree_at(repo.root)
    base = await file_tree.snapshot(None)
    heads = []
    for number in (1, 2):
        copy = await copy_of(file_tree, base, repo, f"c{number}")
        write(copy, repo, "a", f"by {number}\n")
        heads.append((await copy.propose(message="work")).commit)
        await copy.remove()
    merge = await file_tree.merge(heads[0], heads[1], base=base, message="merge")
    (conflict,) = merge.conflicts
    assert conflict.path == "a"
    assert conflict.ours != conflict.theirs


async def test_edit_of_the_user_in_the_same_place_is_kept(repo: Repo, file_tree_at: TreeAt) -> None:
    repo.init().commit({"a": "1\n", "b": "1\n"})
    file_tree, recorder = file_tree_at(repo.root), ListRecorder()
    base = await file_tree.snapshot(None)
    copy = await copy_of(file_tree, base, repo, "c1")
    write(copy, repo, "a", "theirs\n")
    write(copy, repo, "b", "theirs\n")
    proposal = await copy.propose(message="work")
    await copy.remove()
    repo.write("a", "mine\n")
    applied = await file_tree.apply(base, proposal.commit, recorder, message="merge")
    assert applied.refused == ("a",)
    assert ((repo.root / "a").read_text(), (repo.root / "b").read_text()) == ("mine\n", "1\n")
    assert recorder.recorded == []


async def test_unmerged_work_is_recorded(repo: Repo, file_tree_at: TreeAt) -> None:
    from retinue.workspace.recorded_changes import list_changes, unified_diff

    repo.init().commit({"a": "1\n"})
    file_tree = file_tree_at(repo.root)
    base = await file_tree.snapshot(None)
    copy = await copy_of(file_tree, base, repo, "c1")
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


async def test_copy_of_a_copy_is_merged_into_the_copy(repo: Repo, file_tree_at: TreeAt) -> None:
    repo.init().commit({"a": "1\n", "b": "1\n"})
    file_tree = file_tree_at(repo.root)
    base = await file_tree.snapshot(None)
    child = await copy_of(file_tree, base, repo, "c1")
    write(child, repo, "a", "child\n")
    inner_base = await child.snapshot(None)
    grandchild = await copy_of(child, inner_base, repo, "c2")
    assert grandchild.workspace(str(repo.root)).read("a", max_bytes=99) == b"child\n"
    write(grandchild, repo, "b", "grandchild\n")
    inner = await grandchild.propose(message="work")
    applied = await child.apply(inner_base, inner.commit, None, message="merge")
    assert [file.path for file in applied.files] == ["b"]
    proposal = await child.propose(message="work")
    assert sorted(proposal.paths) == ["a", "b"]
    assert (repo.root / "b").read_text() == "1\n"


async def test_paths_are_relative_to_the_directory_of_the_agent(
    repo: Repo, file_tree_at: TreeAt
) -> None:
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


async def test_writes_that_no_snapshot_includes_are_problems_of_the_proposal(
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
    copy = await copy_of(file_tree, await file_tree.snapshot(None), repo, "c1")
    write(copy, repo, "in/a", "2\n")
    assert (await copy.propose(message="work")).problems == ()
    write(copy, repo, "in/sub/new", "2\n")
    write(copy, repo, "out/b", "2\n")
    assert (await copy.propose(message="work")).problems == tuple(
        f"'{path}' was written, but is a submodule or left out of your sparse checkout"
        for path in ("in/sub", "out/b")
    )
    await copy.remove()


async def test_why_no_copies(repo: Repo, file_tree_at: TreeAt) -> None:
    assert await file_tree_at(repo.root).why_no_copies() == "the project is no git repository"
    repo.init()
    assert await file_tree_at(repo.root).why_no_copies() == ""


async def test_descriptors_of_a_removed_copy_are_closed_without_the_garbage_collector(
    repo: Repo, file_tree_at: TreeAt
) -> None:
    repo.init().commit({"a": "1\n"})
    file_tree = file_tree_at(repo.root)
    base = await file_tree.snapshot(None)
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/dev/fd"))
        for number in range(3):
            copy = await copy_of(file_tree, base, repo, f"c{number}")
            write(copy, repo, "a", "2\n")
            await copy.remove()
            del copy
        assert len(os.listdir("/dev/fd")) == before
    finally:
        gc.enable()


async def test_a_link_at_the_place_of_the_directory_leads_nowhere(
    repo: Repo, file_tree_at: TreeAt, tmp_path: Path
) -> None:
    """A link that another machine has put into the files of a parent."""
    repo.init().commit({"src/a": "1", "other/b": "2"})
    outside = tmp_path / "outside"
    outside.mkdir()
    file_tree, src = file_tree_at(repo.root), repo.root / "src"
    parent = await copy_of(file_tree, await file_tree.snapshot(None), repo, "parent")
    folder = Path(parent.workspace(str(repo.root)).root)
    (folder / "src" / "a").unlink()
    (folder / "src").rmdir()
    for target, leads_out in ((outside, True), (outside / "new", True), ("other", False)):
        (folder / "src").unlink(missing_ok=True)
        (folder / "src").symlink_to(target)
        child = await parent.copy(await parent.snapshot(None), name="child", directory=str(src))
        if leads_out:
            with pytest.raises(WorkspaceError, match="src leads out of the working copy"):
                child.workspace(str(src))
        else:
            assert child.workspace(str(src)).read("b", max_bytes=9) == b"2"
        await child.remove()
    assert not any(outside.iterdir())
    await parent.remove()
