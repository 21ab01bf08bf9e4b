from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.workspace.safe_open import (
    DIRECTORY,
    READ,
    Opener,
    best_opener,
    open_by_walking,
    open_with_openat2,
)


@pytest.fixture
def root_fd(root: Path) -> Iterator[int]:
    fd = os.open(root, DIRECTORY)
    yield fd
    os.close(fd)


def read(opening: Opener, root_fd: int, path: str, visited: list[str] | None = None) -> bytes:
    fd = opening(root_fd, path, READ, visit=None if visited is None else visited.append)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def test_opens_paths_beneath_the_root(opening: Opener, root: Path, root_fd: int) -> None:
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/c").write_text("found")
    assert read(opening, root_fd, "a/b/c") == b"found"


def test_link_is_an_error_without_visit(opening: Opener, root: Path, root_fd: int) -> None:
    (root / "real").mkdir()
    (root / "real/file").write_text("x")
    (root / "folder").symlink_to("real")
    (root / "file").symlink_to("real/file")
    for path in ("folder/file", "file"):
        with pytest.raises(OSError, match="symbolic links") as caught:
            read(opening, root_fd, path)
        assert caught.value.errno == errno.ELOOP
        visited: list[str] = []
        assert read(opening, root_fd, path, visited) == b"x"
        assert visited[-2:] == ["real", "real/file"]


@pytest.mark.parametrize("target", ["/etc/hostname", "../outside", "a/../../outside"])
def test_link_that_leads_outside(opening: Opener, root: Path, root_fd: int, target: str) -> None:
    (root / "a").mkdir()
    (root.parent / "outside").write_text("secret")
    (root / "link").symlink_to(target)
    with pytest.raises(OSError, match="link") as caught:
        read(opening, root_fd, "link", [])
    assert caught.value.errno == errno.EXDEV


def test_link_may_go_up_and_down_again(opening: Opener, root: Path, root_fd: int) -> None:
    (root / "a/b").mkdir(parents=True)
    (root / "top").write_text("x")
    (root / "a/b/link").symlink_to("../../a/./../top")
    assert read(opening, root_fd, "a/b/link", []) == b"x"


def test_link_cycle(opening: Opener, root: Path, root_fd: int) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        read(opening, root_fd, "a", [])


def test_no_descriptor_is_lost(opening: Opener, root: Path, root_fd: int) -> None:
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/c").write_text("x")
    (root / "a/out").symlink_to("/etc")
    (root / "loop").symlink_to("loop")
    (root / "l").symlink_to("a/b/../b/c")
    before = sorted(os.listdir("/dev/fd"))
    read(opening, root_fd, "l", [])
    for path in ("a/b/none", "a/out/x", "loop", "a/b/c/d"):
        with pytest.raises(OSError, match=r"Errno"):
            read(opening, root_fd, path, [])
    assert sorted(os.listdir("/dev/fd")) == before


def test_fifo_does_not_block(opening: Opener, root: Path, root_fd: int) -> None:
    os.mkfifo(root / "pipe")
    os.close(opening(root_fd, "pipe", READ))


def test_descriptors_are_not_inherited(opening: Opener, root: Path, root_fd: int) -> None:
    (root / "f").write_text("")
    fd = opening(root_fd, "f", READ)
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_walking_is_always_possible() -> None:
    assert best_opener() in (open_with_openat2, open_by_walking)
