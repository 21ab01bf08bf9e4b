"""Commits of a project on another machine: bundles in both directions, with real repositories."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.domain.protected_paths import NOTHING_PROTECTED
from retinue.errors import WorkspaceError
from retinue.ports.workspace import GitQuery
from retinue.workspace import project_mirror
from retinue.workspace.file_trees import AgentWorkingCopy
from retinue.workspace.project_mirror import ProjectMirror
from retinue.workspace.user_file_tree import UserFileTree

if TYPE_CHECKING:
    from tests.conftest import Repo

ODD = "a\u2028b\x85c"
"""A name of a branch, with characters that end lines outside of git."""
FILES, CHANGES = "refs/retinue/files", "refs/retinue/changes"


class Machines:
    """A project, and another machine that has only what bundles bring."""

    def __init__(self, repo: Repo, tree: UserFileTree, node: Path) -> None:
        self.repo = repo
        self.tree = tree
        self.node = node
        self.sizes: list[int] = []
        """Of the bundles, in bytes."""

    async def mirror(self) -> ProjectMirror:
        return ProjectMirror(
            await self.tree.facts(),
            projects=str(self.node / "projects"),
            worktrees=str(self.node / "worktrees"),
            project=str(self.repo.root),
            protected=NOTHING_PROTECTED,
        )

    async def bundle(self, mirror: ProjectMirror, commit: str) -> Path:
        """Bundle a commit for the mirror."""
        path = await self.tree.make_bundle({FILES: commit}, await mirror.received())
        self.sizes.append(os.stat(path).st_size)
        return Path(path)

    async def copy(self, mirror: ProjectMirror, commit: str, name: str = "c") -> AgentWorkingCopy:
        if not await mirror.has([commit]):
            await mirror.store(str(await self.bundle(mirror, commit)))
        return await mirror.copy(
            commit,
            name=name,
            directory=str(self.repo.root),
            content=commit,
            since=commit,
            before_history=lambda: None,
        )


@pytest.fixture
def machines(
    repo: Repo, file_tree_at: Callable[[Path], UserFileTree], tmp_path: Path
) -> Callable[[], Machines]:
    return lambda: Machines(repo, file_tree_at(repo.root), tmp_path / "node")


def files_of(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() and not path.is_symlink():
            continue
        if name.split("/")[0] not in (".git", ".retinue"):
            content = os.readlink(path) if path.is_symlink() else path.read_bytes().hex()
            found[name] = f"{path.lstat().st_mode:o} {content}"
    return found


async def test_a_copy_elsewhere_has_the_files_of_the_project(
    repo: Repo, machines: Callable[[], Machines]
) -> None:
    repo.init().commit({"a": "1\n", ".gitignore": "*.log\n", "folder/with space": "x"})
    repo.write("binary", bytes(range(256)) * 10)
    repo.write("large", os.urandom(3_000_000))
    repo.write("run", "#!/bin/sh\n").chmod(0o755)
    (repo.root / "link").symlink_to("folder/with space")
    repo.write(os.fsdecode(b"latin-\xe9"), "e")
    repo.write("out.log", "ignored")
    repo.write("a", "edited\n")
    both = machines()
    copy = await both.copy(await both.mirror(), await both.tree.snapshot(None))
    found = files_of(Path(copy.workspace(str(repo.root)).root))
    expected = files_of(repo.root)
    assert expected.pop("out.log")
    assert found == expected


async def test_git_reads_a_bundle(repo: Repo, machines: Callable[[], Machines]) -> None:
    repo.init().commit({"a": "1\n"})
    both = machines()
    commit = await both.tree.snapshot(None)
    path = await both.tree.make_bundle({FILES: commit}, [])
    assert f"{commit} {FILES}" in repo.git("bundle", "list-heads", path)
    other = repo.root.parent / "cloned"
    repo.git("init", "-q", str(other))
    repo.git("fetch", "-q", path, FILES, at=other)
    assert repo.git("show", "FETCH_HEAD:a", at=other) == "1\n"


@pytest.mark.parametrize("kind", ["sha1", "sha256"])
async def test_later_bundles_bring_what_is_new(
    repo: Repo, machines: Callable[[], Machines], kind: str
) -> None:
    repo.init(f"--object-format={kind}").commit({"a": "1\n"})
    repo.write("large", os.urandom(500_000))
    both = machines()
    mirror = await both.mirror()
    await both.copy(mirror, await both.tree.snapshot(None))
    repo.write("a", "2\n")
    # Another process of the same machine.
    copy = await both.copy(await both.mirror(), await both.tree.snapshot(None), "d")
    assert copy.workspace(str(repo.root)).read("a", max_bytes=10) == b"2\n"
    assert both.sizes[0] > 500_000
    assert both.sizes[1] < 1_000


async def test_work_comes_back(repo: Repo, machines: Callable[[], Machines]) -> None:
    repo.init().commit({"a": "1\n", "b": "1\n", "gone": "x", ".gitignore": "*.log\n"})
    both = machines()
    base = await both.tree.snapshot(None)
    ours = await both.tree.copy(base, name="ours", directory=str(repo.root))
    theirs = await both.copy(await both.mirror(), base)
    top = Path(theirs.workspace(str(repo.root)).root)
    (top / "a").write_text("2\n")
    (top / "gone").unlink()
    (top / "run").write_bytes(b"\0binary")
    (top / "run").chmod(0o755)
    (top / "link").symlink_to("/etc/passwd")  # It fails the agent when it proposes its work.
    (top / "out.log").write_text("ignored")
    commit = await theirs.snapshot(None)
    bundle = await theirs.make_bundle({CHANGES: commit}, [base])
    assert await both.tree.read_bundle(bundle) == {CHANGES: commit}
    await ours.advance(base, commit, base=base)
    expected = files_of(top)
    assert expected.pop("out.log")
    assert files_of(Path(ours.workspace(str(repo.root)).root)) == expected
    proposal = await ours.propose(message="work")
    assert {change.path for change in proposal.files} == {"a", "gone", "run", "link"}
    assert proposal.problems == ("'link' is a link to an absolute path, '/etc/passwd'",)


async def test_changes_of_both_sides_are_merged(
    repo: Repo, machines: Callable[[], Machines]
) -> None:
    repo.init().commit({"a": "1\n", "b": "1\n"})
    both = machines()
    base = await both.tree.snapshot(None)
    ours = await both.tree.copy(base, name="ours", directory=str(repo.root))
    theirs = await both.copy(await both.mirror(), base)
    ours.workspace(str(repo.root)).write("b", b"ours\n")
    theirs.workspace(str(repo.root)).write("a", b"theirs\n")
    commit = await theirs.snapshot(None)
    await both.tree.read_bundle(await theirs.make_bundle({CHANGES: commit}, [base]))
    await ours.advance(base, commit, base=base)
    top = Path(ours.workspace(str(repo.root)).root)
    assert ((top / "a").read_text(), (top / "b").read_text()) == ("theirs\n", "ours\n")
    theirs.workspace(str(repo.root)).write("b", b"theirs too\n")
    more = await theirs.snapshot(None)
    await both.tree.read_bundle(await theirs.make_bundle({CHANGES: more}, [commit]))
    with pytest.raises(WorkspaceError, match="changed at two places at once, which do not fit: b"):
        await ours.advance(commit, more, base=base)
    assert (top / "b").read_text() == "ours\n"


async def test_the_history_comes_with_its_names(
    repo: Repo, machines: Callable[[], Machines]
) -> None:
    repo.init("-b", "main").commit({"a": "1\n"}).commit({"a": "2\n"})
    repo.git("branch", "topic", "HEAD~1")
    repo.git("branch", ODD, "HEAD~1")
    repo.git("tag", "-a", "-m", "first", "v1")
    both = machines()
    mirror = await both.mirror()
    here, there = both.tree, await both.copy(mirror, await both.tree.snapshot(None))

    async def bring() -> None:
        refs = await here.history()
        have = [*(await mirror.history()).values(), *await mirror.received()]
        await mirror.store_history(await here.make_bundle(refs, have))

    def ask(tree: UserFileTree | AgentWorkingCopy, what: str, revision: str = "") -> str:
        query = GitQuery(what=what, revision=revision)  # type: ignore[arg-type]
        return tree.workspace(str(repo.root)).git(query)

    await bring()
    names = {"HEAD", "refs/heads/main", "refs/heads/topic", f"refs/heads/{ODD}", "refs/tags/v1"}
    assert set(await mirror.history()) == names
    for question in (("log",), ("log", "topic"), ("show", "v1"), ("diff", "topic..main")):
        assert ask(there, *question) == ask(here, *question)
    repo.git("branch", "-D", "topic")
    repo.commit({"a": "3\n"})
    await bring()
    assert set(await mirror.history()) == names - {"refs/heads/topic"}
    assert ask(there, "log") == ask(here, "log")


async def test_a_git_that_was_killed_locks_no_history(
    repo: Repo, machines: Callable[[], Machines]
) -> None:
    """It ends with its host. The mirror is there for all later hosts of the machine."""
    repo.init("-b", "main").commit({"a": "1\n"})
    both = machines()
    mirror, refs = await both.mirror(), await both.tree.history()
    bundle = await both.tree.make_bundle(refs, [])
    (git,) = both.node.glob("projects/*/git")
    for name in (*refs, "packed-refs"):
        (git / f"{name}.lock").touch()
    await mirror.store_history(bundle)
    assert await mirror.history() == refs


async def test_a_shallow_clone(repo: Repo, machines: Callable[[], Machines]) -> None:
    origin = repo.root.parent / "origin"
    repo.git("init", "-q", str(origin), at=repo.root.parent)
    for number in range(3):
        (origin / "a").write_text(f"{number}\n")
        repo.git("add", "-A", at=origin)
        repo.git("commit", "-q", "-m", f"number {number}", at=origin)
    repo.root.rmdir()
    repo.git("clone", "-q", "--depth=2", f"file://{origin}", str(repo.root), at=origin)
    both = machines()
    mirror = await both.mirror()
    there = await both.copy(mirror, await both.tree.snapshot(None))
    await mirror.store_history(await both.tree.make_bundle(await both.tree.history(), []))
    query = GitQuery(what="log")
    found = there.workspace(str(repo.root)).git(query)
    assert found == both.tree.workspace(str(repo.root)).git(query)
    assert "number 1" in found
    assert "number 0" not in found


async def test_ignored_files_are_those_of_the_user_on_both_machines(
    repo: Repo, machines: Callable[[], Machines]
) -> None:
    repo.init().commit({"a": "1\n"})
    (repo.config / "git").mkdir()
    (repo.config / "git" / "ignore").write_text("*.swp")
    (repo.root / ".git" / "info" / "exclude").write_text("notes\n")
    both = machines()
    commit = await both.tree.snapshot(None)
    there = await both.copy(await both.mirror(), commit)
    for name in (".a.swp", "notes"):
        there.workspace(str(repo.root)).write(name, b"x")
    assert await there.snapshot(None) == commit


async def test_submodules_stay_as_they_are(repo: Repo, machines: Callable[[], Machines]) -> None:
    module = repo.root.parent / "module"
    repo.git("init", "-q", str(module), at=repo.root.parent)
    (module / "m").write_text("m\n")
    repo.git("add", "-A", at=module)
    repo.git("commit", "-q", "-m", "m", at=module)
    repo.init().git("submodule", "--quiet", "add", str(module), "sub")
    repo.commit({"a": "1\n"})
    both = machines()
    commit = await both.tree.snapshot(None)
    there = await both.copy(await both.mirror(), commit)
    assert os.listdir(Path(there.workspace(str(repo.root)).root, "sub")) == []
    assert await there.snapshot(None) == commit


def test_clones_that_lack_files_cannot_be_sent(
    repo: Repo, file_tree_at: Callable[[Path], UserFileTree]
) -> None:
    repo.init().commit({"a/b": "1\n", "c/d": "2\n"})
    repo.git("sparse-checkout", "set", "a")
    assert _facts(file_tree_at(repo.root)) == (
        "the repository is a sparse checkout, which cannot be sent"
    )
    repo.git("sparse-checkout", "disable")
    assert _facts(file_tree_at(repo.root)) == ""
    repo.git("config", "core.repositoryformatversion", "1")
    repo.git("config", "extensions.partialclone", "origin")
    assert _facts(file_tree_at(repo.root)) == (
        "the repository is a partial clone, which cannot be sent"
    )


def _facts(tree: UserFileTree) -> str:
    import asyncio

    return asyncio.run(tree.facts()).problem


# Faults


async def test_damaged_bundles(repo: Repo, machines: Callable[[], Machines]) -> None:
    repo.init().commit({"a": "1\n"})
    for number in range(300):  # Stored as a pack.
        repo.write(f"f{number}", os.urandom(200))
    both = machines()
    mirror = await both.mirror()
    commit = await both.tree.snapshot(None)
    path = await both.bundle(mirror, commit)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for damaged, message in (
        (b"", "The bundle is damaged: it has no head."),
        (whole[:60], "The bundle is damaged: it has no head."),
        (whole[: len(whole) // 2], "The bundle is damaged, or the disk is full: git index-pack"),
        (bytes(flipped), "The bundle is damaged, or the disk is full: git index-pack"),
        (whole.replace(commit.encode(), b"0" * 40, 1), "The bundle is damaged"),
        (whole.replace(commit.encode(), b"+-index-output=x", 1), "'+-index-output=x' is no id of"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(WorkspaceError) as raised:
            await mirror.store(str(path))
        assert str(raised.value).startswith(message)
        assert not await mirror.has([commit])
    path.write_bytes(whole)
    await mirror.store(str(path))
    await both.copy(mirror, commit)


async def test_a_small_damaged_bundle(repo: Repo, machines: Callable[[], Machines]) -> None:
    repo.init().commit({"a": "1\n"})
    both = machines()
    mirror = await both.mirror()
    commit = await both.tree.snapshot(None)
    path = await both.bundle(mirror, commit)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(WorkspaceError, match="is damaged, or the disk is full: git unpack-objects"):
        await mirror.store(str(path))


async def test_a_bundle_whose_beginning_is_missing(
    repo: Repo, machines: Callable[[], Machines]
) -> None:
    repo.init().commit({"a": "1\n"})
    both = machines()
    first = await both.tree.snapshot(None)
    repo.write("a", "2\n")
    path = await both.tree.make_bundle({FILES: await both.tree.snapshot(None)}, [first])
    with pytest.raises(WorkspaceError, match=f"The bundle needs {first}, which is not here"):
        await (await both.mirror()).store(path)


async def test_a_bundle_that_leaves_something_out(
    repo: Repo, machines: Callable[[], Machines]
) -> None:
    repo.init().commit({"a": "1\n", "b": "2\n"})
    both = machines()
    commit = await both.tree.snapshot(None)
    git = repo.private_git()
    pack = git.run(["pack-objects", "--stdout", "-q"], stdin=f"{commit}\n".encode())
    path = repo.root.parent / "bundle"
    path.write_bytes(f"# v2 git bundle\n{commit} {FILES}\n\n".encode() + pack)
    with pytest.raises(WorkspaceError, match="The bundle is damaged"):
        await (await both.mirror()).store(str(path))


async def test_a_mirror_that_was_removed_is_made_again(
    repo: Repo, machines: Callable[[], Machines]
) -> None:
    repo.init().commit({"a": "1\n"})
    both = machines()
    commit = await both.tree.snapshot(None)
    await both.copy(await both.mirror(), commit)
    shutil.rmtree(next((both.node / "projects").iterdir()) / "git")
    mirror = await both.mirror()
    assert not await mirror.has([commit])
    assert await mirror.received() == []
    await both.copy(mirror, commit, "d")
    assert both.sizes[0] == both.sizes[1]


async def test_mirrors_that_nobody_uses_are_removed(
    repo: Repo, machines: Callable[[], Machines]
) -> None:
    repo.init().commit({"a": "1\n"})
    both = machines()
    projects = both.node / "projects"
    for name, age_s in (("old", 15 * 86_400), ("new", 86_400)):
        (projects / name).mkdir(parents=True)
        (projects / name / "in-use").touch()
        then = time.time() - age_s
        os.utime(projects / name / "in-use", (then, then))
    await both.mirror()
    assert {path.name for path in projects.iterdir()} == {"new", (await both.tree.facts()).id}


async def test_a_mirror_that_has_grown_is_made_anew_when_nobody_uses_it(
    repo: Repo, machines: Callable[[], Machines], monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.init().commit({"a": "1\n"})
    both = machines()
    commit = await both.tree.snapshot(None)
    monkeypatch.setattr(project_mirror, "MAX_BUNDLES", 0)
    used = await both.mirror()
    await both.copy(used, commit)
    second = await both.mirror()
    assert await second.has([commit]), "it is in use"
    second.close()
    used.close()
    assert not await (await both.mirror()).has([commit])


async def test_a_machine_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_mirror, "git_version", lambda: None)
    assert project_mirror.why_no_mirrors() == "git is not installed"
    monkeypatch.setattr(project_mirror, "git_version", lambda: (2, 30))
    assert project_mirror.why_no_mirrors() == "git 2.38 or newer is needed, and this is 2.30"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "node"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root mounts")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk(repo: Repo, machines: Callable[[], Machines], small_disk: Path) -> None:
    repo.init().commit({"a": "1\n"})
    repo.write("large", os.urandom(3_000_000))
    both = machines()
    assert both.node == small_disk
    with pytest.raises(WorkspaceError, match="No space left on device"):
        await both.copy(await both.mirror(), await both.tree.snapshot(None))
