"""Reaching the process that works on a run, and knowing whether it is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retinue.errors import RunError
from retinue.store.posts import FilePosts

HOLD = """
import sys
from pathlib import Path
from retinue.store.posts import FilePosts

post = FilePosts(Path(sys.argv[1])).take("k3f9")
print("held", flush=True)
for line in sys.stdin:
    print(*post.heard(), sep="|", flush=True)
post.leave()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "live"


@contextmanager
def another(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which works on the run k3f9."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().rstrip("\n")


def test_another_process_is_reached(folder: Path) -> None:
    posts = FilePosts(folder)
    with another(folder) as process:
        assert posts.held("k3f9")
        assert heard(process) == ""
        assert posts.send("k3f9", "cancel a1")
        assert posts.send("k3f9", "cancel ä2")
        assert heard(process) == "cancel a1|cancel ä2"
        assert heard(process) == ""
        assert posts.send("k3f9", "cancel a3")
        assert heard(process) == "cancel a3"


def test_asking_whether_somebody_is_there_says_nothing(folder: Path) -> None:
    with another(folder) as process:
        assert FilePosts(folder).held("k3f9")
        assert heard(process) == ""


def test_a_process_that_was_killed_is_gone(folder: Path) -> None:
    posts = FilePosts(folder)
    with another(folder) as process:
        posts.send("k3f9", "cancel a1")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (folder / "k3f9").exists(), "it could not clear up after itself"
        assert not posts.held("k3f9")
        assert not posts.send("k3f9", "cancel a1")
        # Who takes it over is reached, and hears nothing of what was said before.
        post = posts.take("k3f9")
        assert FilePosts(folder).send("k3f9", "cancel a2")
        assert list(post.heard()) == ["cancel a2"]
        post.leave()


def test_a_run_has_one_owner_while_that_lives(folder: Path) -> None:
    posts = FilePosts(folder)
    with another(folder) as process:
        with pytest.raises(RunError) as refused:
            posts.take("k3f9")
        assert str(refused.value) == (
            "Another process works on run k3f9; `retinue watch k3f9` follows it, and"
            " `retinue cancel k3f9` stops it."
        )
        assert not posts.send("k3f8", "cancel a1")
        assert heard(process) == "", "the first is not disturbed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        post = posts.take("k3f9")
        with pytest.raises(RunError, match="Run k3f9 is being worked on already"):
            posts.take("k3f9")
        post.leave()
        posts.take("k3f9").leave()


def test_who_only_looks_keeps_nobody_out(folder: Path) -> None:
    """Looking locks the file for a moment, as a reader does."""
    posts, done = FilePosts(folder), threading.Event()

    def look() -> None:
        while not done.is_set():
            FilePosts(folder).held("k3f9")

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(200):
            posts.take("k3f9").leave()
    finally:
        done.set()
        looking.join()


def test_who_leaves_leaves_nothing(folder: Path) -> None:
    posts = FilePosts(folder)
    post = posts.take("k3f9")
    assert FilePosts(folder).held("k3f9")
    post.leave()
    assert not posts.held("k3f9")
    assert not FilePosts(folder).held("k3f9")
    assert list(folder.iterdir()) == []


def test_where_nothing_was_ever_run_nobody_is_there(folder: Path) -> None:
    assert not FilePosts(folder).held("k3f9")
    assert not FilePosts(folder).send("k3f9", "cancel a1")
    assert not folder.exists(), "asking makes nothing"


def test_a_line_is_heard_when_it_is_whole(folder: Path) -> None:
    post = FilePosts(folder).take("k3f9")
    with (folder / "k3f9").open("ab", buffering=0) as file:
        file.write(b"cancel")
        assert list(post.heard()) == []
        file.write(b" a1\n")
        assert list(post.heard()) == ["cancel a1"]
    post.leave()


@pytest.mark.parametrize("what", ["file", "link"])
def test_where_no_post_can_be_the_run_goes_on_unheard(
    tmp_path: Path, folder: Path, what: str
) -> None:
    if what == "file":
        folder.write_text("in the way")
    else:
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    posts = FilePosts(folder)
    post = posts.take("k3f9")
    assert list(post.heard()) == []
    assert posts.held("k3f9"), "it knows what it does itself"
    assert not FilePosts(folder).send("k3f9", "cancel a1")
    post.leave()
    if what == "link":
        assert os.listdir(tmp_path / "elsewhere") == [], "nothing is written through a link"


def test_what_a_killed_process_has_left_is_cleared_away(folder: Path) -> None:
    folder.mkdir()
    (folder / "gone").write_text("cancel a0\n")
    with another(folder):
        post = FilePosts(folder).take("mine")
        assert sorted(path.name for path in folder.iterdir()) == ["k3f9", "mine"]
        post.leave()
