from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.errors import ToolFailure
from retinue.workspace.directory import DirectoryWorkspace


def plant(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x\n")


def everything(tree: DirectoryWorkspace, under: str = ".") -> list[str]:
    found, more = tree.find("**", under=under, limit=1000)
    assert not more
    return found


def test_plain_folder(tree: DirectoryWorkspace, root: Path) -> None:
    plant(
        root, "b.py", "a/c.py", "a-b/c", ".env", "node_modules/x.js", "a/__pycache__/c.pyc",
        ".venv/bin/python", ".retinue/db", "sub/.git/config",
    )  # fmt: skip
    (root / "link").symlink_to("b.py")
    (root / "folder").symlink_to("a")
    assert everything(tree) == [".env", "a-b/c", "a/c.py", "b.py"]


def test_repository_lists_what_git_shows(
    tree: DirectoryWorkspace, root: Path, make_repository: Callable[[Path], None]
) -> None:
    make_repository(root)
    plant(
        root, "tracked.py", "deleted.py", "ignored_but_tracked.log", "a-b/c", "a/c.py",
        ".retinue/db", "größe.txt",
    )  # fmt: skip
    (root / "link").symlink_to("tracked.py")
    subprocess.run(["git", "-C", str(root), "add", "-f", "."], check=True)
    plant(root, ".gitignore", "untracked.py", "x.log", "build/y")
    (root / ".gitignore").write_text("*.log\nbuild/\n")
    (root / "deleted.py").unlink()
    assert everything(tree) == [
        ".gitignore",
        "a-b/c",
        "a/c.py",
        "größe.txt",
        "ignored_but_tracked.log",
        "tracked.py",
        "untracked.py",
    ]
    assert everything(tree, "a") == ["a/c.py"]


def test_ignored_folder_is_listed_when_named(
    tree: DirectoryWorkspace, root: Path, make_repository: Callable[[Path], None]
) -> None:
    make_repository(root)
    plant(root, "build/deep/x.js")
    (root / ".gitignore").write_text("build/\n")
    assert everything(tree, "build") == ["build/deep/x.js"]


def test_nested_repository_is_walked(
    tree: DirectoryWorkspace, root: Path, make_repository: Callable[[Path], None]
) -> None:
    make_repository(root)
    make_repository(root / "inner")
    plant(root, "a", "inner/b")
    assert everything(tree) == ["a", "inner/b"]


def test_folder_name_with_wildcards(
    tree: DirectoryWorkspace, root: Path, make_repository: Callable[[Path], None]
) -> None:
    make_repository(root)
    plant(root, ":(top)x/a", "[b]/c")
    assert everything(tree, ":(top)x") == [":(top)x/a"]
    assert everything(tree, "[b]") == ["[b]/c"]


def test_broken_repository_is_walked(tree: DirectoryWorkspace, root: Path) -> None:
    (root / ".git").mkdir()
    plant(root, "a")
    assert everything(tree) == ["a"]


def test_globs_match_from_the_folder_and_from_the_root(
    tree: DirectoryWorkspace, root: Path
) -> None:
    plant(root, "src/a.py", "src/sub/b.py", "c.py")
    for pattern in ("*.py", "**/*.py", "src/**/*.py", "{src,x}/**"):
        assert tree.find(pattern, under="src", limit=9) == (["src/a.py", "src/sub/b.py"], False)
    assert tree.find("sub/*.py", under="src", limit=9) == (["src/sub/b.py"], False)
    assert tree.find("*.py", under="src/a.py", limit=9) == (["src/a.py"], False)


def test_limit(tree: DirectoryWorkspace, root: Path) -> None:
    plant(root, "a", "b", "c")
    assert tree.find("*", under=".", limit=2) == (["a", "b"], True)
    assert tree.find("*", under=".", limit=3) == (["a", "b", "c"], False)


def test_missing_folder(tree: DirectoryWorkspace, root: Path) -> None:
    (root / "src").mkdir()
    (root / "link").symlink_to("src")
    with pytest.raises(ToolFailure) as caught:
        tree.find("*", under="scr", limit=9)
    assert str(caught.value) == "No file 'scr'. Did you mean 'src'?"
    with pytest.raises(ToolFailure) as caught:
        tree.find("*", under="link", limit=9)
    assert str(caught.value) == "'link' is a link; use 'src' instead."
    assert tree.find("*", under="src", limit=9) == ([], False)
