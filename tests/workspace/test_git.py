from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.errors import WorkspaceError
from retinue.workspace.git import find_repository, run_git


def test_plain_folder_is_no_repository(root: Path) -> None:
    assert find_repository(str(root)) is None
    (root / ".git").write_text("not a pointer")
    assert find_repository(str(root)) is None


def test_failure_is_a_result(root: Path, make_repository: Callable[[Path], None]) -> None:
    make_repository(root)
    where = find_repository(str(root))
    assert where is not None
    done = run_git(where, ["cat-file", "-t", "nothing"])
    assert not done.ok
    assert b"nothing" in done.stderr


def test_input_is_passed(root: Path, make_repository: Callable[[Path], None]) -> None:
    make_repository(root)
    where = find_repository(str(root))
    assert where is not None
    done = run_git(where, ["hash-object", "--stdin"], stdin=b"hello\n")
    assert done.stdout == b"ce013625030ba8dba906f756967f9e9ca394464a\n"


def test_linked_worktree(
    root: Path, tmp_path: Path, make_repository: Callable[[Path], None]
) -> None:
    make_repository(root)
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    here = ["git", "-C", str(root)]
    subprocess.run([*here, *who, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    linked = tmp_path / "linked"
    subprocess.run([*here, "worktree", "add", "-q", str(linked)], check=True)
    (linked / "new").write_text("")
    where = find_repository(str(linked))
    assert where is not None
    assert run_git(where, ["ls-files", "--others"]).stdout == b"new\n"


def test_settings_in_the_tree_run_no_program(
    root: Path, make_repository: Callable[[Path], None]
) -> None:
    make_repository(root)
    planted = root.parent / "planted"
    config = ["git", "-C", str(root), "config"]
    subprocess.run([*config, "core.fsmonitor", f"touch {planted}; false"], check=True)
    subprocess.run([*config, "core.hooksPath", str(root)], check=True)
    hook = root / "post-index-change"
    hook.write_text(f"#!/bin/sh\ntouch {planted}\n")
    hook.chmod(0o755)
    where = find_repository(str(root))
    assert where is not None
    assert run_git(where, ["status", "--porcelain"]).ok
    assert run_git(where, ["ls-files", "--others"]).ok
    assert not planted.exists()


def test_missing_folder_is_an_error(
    tmp_path: Path, make_repository: Callable[[Path], None]
) -> None:
    gone = tmp_path / "gone"
    make_repository(gone)
    where = find_repository(str(gone))
    assert where is not None
    gone.rename(tmp_path / "moved")
    with pytest.raises(WorkspaceError, match="git cannot be started"):
        run_git(where, ["status"])
