"""Reading history and uncommitted changes, in the user's tree and in a working copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retinue.domain.protected_paths import ProtectedPaths
from retinue.errors import ToolFailure
from retinue.ports.workspace import GitQuery
from retinue.workspace.user_file_tree import UserFileTree
from tests.workspace.test_git_hardening import script, settings

if TYPE_CHECKING:
    from tests.conftest import Repo

TreeAt = Callable[[Path], UserFileTree]


@pytest.fixture
def history(repo: Repo, file_tree_at: TreeAt) -> Callable[..., str]:
    def read(what: Any = "diff", **arguments: Any) -> str:
        tree = file_tree_at(repo.root)
        return tree.workspace(str(repo.root)).git(GitQuery(what=what, **arguments))

    return read


def test_diff_shows_changed_and_new_files(repo: Repo, history: Callable[..., str]) -> None:
    repo.init().commit({"a.py": "one\n"})
    assert history() == "[No changes.]"
    repo.write("a.py", "two\n")
    repo.write("new/b.py", "three\n")
    repo.git("add", "a.py")  # Staged or not makes no difference.
    shown = history()
    assert "-one\n+two" in shown
    assert "+three" in shown
    assert " 2 files changed, 2 insertions(+), 1 deletion(-)" in shown
    assert "+three" not in history(path="a.py")
    assert "??" in repo.git("status", "--short", "new"), "the user's index is untouched"


def test_diff_between_revisions(repo: Repo, history: Callable[..., str]) -> None:
    repo.init("-b", "main").commit({"a": "1\n"}).commit({"a": "2\n"})
    repo.git("branch", "old", "HEAD~1")
    repo.commit({"a": "3\n"})
    for revision in ("old..main", "old main", "old...main", "old", "HEAD~2"):
        assert "-1\n+3" in history(revision=revision)
    assert "-1\n+2" in history(revision="old..HEAD~1")


def test_log_show_and_blame(repo: Repo, history: Callable[..., str]) -> None:
    repo.init().commit({"src/a.py": "one\ntwo\n"})
    repo.write("src/a.py", "one\n2\n")
    repo.git("commit", "-qam", "Count in digits")
    repo.write("src/a.py", "one\n2\nthree\n")
    first, second = history("log").split("\n")
    assert first.endswith("user: Count in digits")
    assert second.endswith("user: x")
    assert history("log", path="no/such/file") == "[No commits.]"
    assert history("log", revision="HEAD~1..HEAD") == first
    shown = history("show")
    assert "Count in digits" in shown
    assert "-two\n+2" in shown
    assert history("show", revision="HEAD~1", path="src/a.py") == "one\ntwo"
    assert history("show", revision="HEAD:src/a.py") == "one\n2"
    lines = history("blame", path="src/a.py").split("\n")
    assert [line.split(" ", 1)[0] for line in lines[:2]] == [
        repo.git("rev-parse", revision)[:8] for revision in ("HEAD~1", "HEAD")
    ]
    assert lines[2] == "not committed 3: three"
    assert history("blame", path="src/a.py", start=2, end=2) == lines[1]


def test_messages_for_the_model(repo: Repo, history: Callable[..., str]) -> None:
    with pytest.raises(ToolFailure, match="no git repository"):
        history()
    repo.init()
    assert history("log") == "[No commits.]"
    repo.write("a", "1\n")
    assert "+1" in history(), "before the first commit, everything is new"
    repo.commit()
    for arguments, message in (
        ({"revision": "nope"}, "There is no revision 'nope' in this repository."),
        ({"revision": "--output=x"}, "is no revision"),
        ({"path": "../up"}, "leads outside the workspace"),
        ({"path": ".git/config"}, "off limits"),
        ({"what": "show", "revision": "HEAD:../up"}, "leads outside the workspace"),
        ({"what": "blame"}, "blame needs 'path', a file."),
        ({"what": "blame", "path": "b"}, "no such path b"),
    ):
        with pytest.raises(ToolFailure, match=message.replace("(", r"\(")):
            history(**arguments)


def test_output_is_cut(repo: Repo, history: Callable[..., str]) -> None:
    repo.init().commit({"a": "x\n"})
    repo.write("a", "line\n" * 100_000)
    shown = history()
    assert len(shown) < 17_000
    assert shown.endswith("there is more: name one file with 'path']")
    blamed = history("blame", path="a")
    assert len(blamed) < 17_000
    assert blamed.endswith("there are more: use start and end]")


async def test_copy_shows_the_work_of_its_agent(repo: Repo, file_tree_at: TreeAt) -> None:
    repo.init().commit({"a": "1\n"})
    repo.write("a", "2\n")
    tree = file_tree_at(repo.root)
    copy = await tree.copy(await tree.snapshot(None), name="c", directory=str(repo.root))
    workspace = copy.workspace(str(repo.root))
    assert workspace.git(GitQuery(what="diff")) == "[No changes.]"
    workspace.write("new", b"3\n")
    own = workspace.git(GitQuery(what="diff"))
    assert "+3" in own
    assert "+2" not in own, "the user's uncommitted edit is not the agent's work"
    assert "-1\n+2" in workspace.git(GitQuery(what="diff", revision="HEAD"))
    assert "user: x" in workspace.git(GitQuery(what="log"))
    await copy.remove()


def test_directory_inside_the_repository(repo: Repo, file_tree_at: TreeAt) -> None:
    repo.init().commit({"app/a": "1\n", "secret": "s\n"})
    repo.write("app/a", "2\n")
    repo.write("secret", "t\n")
    tree = file_tree_at(repo.root / "app")
    workspace = tree.workspace(str(repo.root / "app"))
    shown = workspace.git(GitQuery(what="diff"))
    assert "+2" in shown
    assert "secret" not in shown
    assert workspace.git(GitQuery(what="show", path="a")) == "1"


def test_paths_that_rules_forbid_to_read(repo: Repo, tmp_path: Path) -> None:
    repo.init().commit({"a": "1\n", "keys/k": "hidden\n"})
    repo.write("a", "2\n")
    repo.write("keys/k", "hidden too\n")
    (repo.root / ".retinue").mkdir()
    tree = UserFileTree(
        str(repo.root),
        state_folder=str(repo.root / ".retinue"),
        worktrees=str(tmp_path / "w"),
        home=str(repo.home),
        config_home=str(repo.config),
        seal=str,
        protected=ProtectedPaths(project=str(repo.root), unreadable=("keys/*",)),
    )
    workspace = tree.workspace(str(repo.root))
    for query in (GitQuery(what="diff"), GitQuery(what="show")):
        shown = workspace.git(query)
        assert "hidden" not in shown
        assert "files left out: the user's rules forbid reading them]" in shown
    for query in (
        GitQuery(what="show", revision="HEAD:keys/k"),
        GitQuery(what="blame", path="keys/k"),
    ):
        with pytest.raises(ToolFailure, match="off limits"):
            workspace.git(query)
    assert workspace.search("hidden", under=".", glob=None, limit=9) == ([], False)
    assert workspace.search("hidden", under="keys/k", glob=None, limit=9) == ([], False)


def test_repository_cannot_run_programs(
    repo: Repo, history: Callable[..., str], tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    evil = script(tmp_path, mark)
    repo.init().commit({"a": "1\n", ".gitattributes": "* diff=evil filter=evil\n"})
    config = repo.root / ".git" / "config"
    config.write_text(
        settings(evil).replace("[extensions]\n    partialClone = evil\n", "")
        + f"[log]\n    showSignature = true\n[gpg]\n    program = {evil}\n"
    )
    repo.write("a", "2\n")
    for what in ("diff", "log", "show"):
        history(what)
    history("blame", path="a")
    assert not mark.exists()


def test_shallow_clone(repo: Repo, file_tree_at: TreeAt, tmp_path: Path) -> None:
    repo.init().commit({"a": "1\n"}).commit({"a": "2\n"})
    clone = tmp_path / "clone"
    repo.git("clone", "-q", "--depth=1", f"file://{repo.root}", str(clone))
    tree = file_tree_at(clone)
    workspace = tree.workspace(str(clone))
    assert workspace.git(GitQuery(what="log")).count("\n") == 0
