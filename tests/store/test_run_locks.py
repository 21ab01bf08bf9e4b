"""Reaching the process that works on a run, and knowing whether it is there."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retinue.errors import RunError
from retinue.store.run_locks import FileRunLocks

HOLD = """
import sys
from pathlib import Path
from retinue.store.run_locks import FileRunLocks

run_lock = FileRunLocks(Path(sys.argv[1])).acquire("k3f9")
print("held", flush=True)
for line in sys.stdin:
    print(*run_lock.received(), sep="|", flush=True)
run_lock.release()
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


def received(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().rstrip("\n")


def test_message_reaches_the_process_that_holds_the_lock(folder: Path) -> None:
    run_locks = FileRunLocks(folder)
    with another(folder) as process:
        assert run_locks.is_held("k3f9")
        assert received(process) == ""
        assert run_locks.send("k3f9", "cancel a1")
        assert run_locks.send("k3f9", "cancel ä2")
        assert received(process) == "cancel a1|cancel ä2"
        assert received(process) == ""
        assert run_locks.send("k3f9", "cancel a3")
        assert received(process) == "cancel a3"


def test_is_held_sends_no_message(folder: Path) -> None:
    with another(folder) as process:
        assert FileRunLocks(folder).is_held("k3f9")
        assert received(process) == ""


def test_lock_of_a_killed_process_is_free(folder: Path) -> None:
    run_locks = FileRunLocks(folder)
    with another(folder) as process:
        run_locks.send("k3f9", "cancel a1")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (folder / "k3f9").exists(), "it could not clear up after itself"
        assert not run_locks.is_held("k3f9")
        assert not run_locks.send("k3f9", "cancel a1")
        # Who takes it over is reached, and hears nothing of what was said before.
        run_lock = run_locks.acquire("k3f9")
        assert FileRunLocks(folder).send("k3f9", "cancel a2")
        assert list(run_lock.received()) == ["cancel a2"]
        run_lock.release()


def test_only_one_process_holds_a_run(folder: Path) -> None:
    run_locks = FileRunLocks(folder)
    with another(folder) as process:
        with pytest.raises(RunError) as refused:
            run_locks.acquire("k3f9")
        assert str(refused.value) == (
            "Another process works on run k3f9; `retinue watch k3f9` follows it, and"
            " `retinue cancel k3f9` stops it."
        )
        assert not run_locks.send("k3f8", "cancel a1")
        assert received(process) == "", "the first is not disturbed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        run_lock = run_locks.acquire("k3f9")
        with pytest.raises(RunError, match="This process already works on run k3f9"):
            run_locks.acquire("k3f9")
        run_lock.release()
        run_locks.acquire("k3f9").release()


def test_a_slow_look_does_not_keep_others_from_acquiring(folder: Path) -> None:
    """Looking shares a lock, and the looking process may get no processor for long."""
    folder.mkdir(exist_ok=True)
    path = folder / "k3f9"
    path.touch()
    with path.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        waits = 0

        def sleep(_: float) -> None:
            nonlocal waits
            waits += 1
            if waits == 50:
                fcntl.flock(file, fcntl.LOCK_UN)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("retinue.store.run_locks.time.sleep", sleep)
            run_locks = FileRunLocks(folder)
            run_locks.acquire("k3f9").release()
    assert waits == 50


def test_is_held_does_not_keep_others_from_acquiring(folder: Path) -> None:
    """Looking locks the file for a moment, as a reader does."""
    run_locks, done = FileRunLocks(folder), threading.Event()

    def look() -> None:
        while not done.is_set():
            FileRunLocks(folder).is_held("k3f9")

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(200):
            run_locks.acquire("k3f9").release()
    finally:
        done.set()
        looking.join()


def test_release_removes_the_file(folder: Path) -> None:
    run_locks = FileRunLocks(folder)
    run_lock = run_locks.acquire("k3f9")
    assert FileRunLocks(folder).is_held("k3f9")
    run_lock.release()
    assert not run_locks.is_held("k3f9")
    assert not FileRunLocks(folder).is_held("k3f9")
    assert list(folder.iterdir()) == []


def test_no_lock_is_held_without_a_folder(folder: Path) -> None:
    assert not FileRunLocks(folder).is_held("k3f9")
    assert not FileRunLocks(folder).send("k3f9", "cancel a1")
    assert not folder.exists(), "asking makes nothing"


def test_half_a_line_is_not_received(folder: Path) -> None:
    run_lock = FileRunLocks(folder).acquire("k3f9")
    with (folder / "k3f9").open("ab", buffering=0) as file:
        file.write(b" cancel")
        assert list(run_lock.received()) == []
        file.write(b" a1\n")
        assert list(run_lock.received()) == ["cancel a1"]
    run_lock.release()


@pytest.mark.parametrize("what", ["file", "link"])
def test_acquire_works_where_no_file_can_be_created(
    tmp_path: Path, folder: Path, what: str
) -> None:
    if what == "file":
        folder.write_text("in the way")
    else:
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    run_locks = FileRunLocks(folder)
    run_lock = run_locks.acquire("k3f9")
    assert list(run_lock.received()) == []
    assert run_locks.is_held("k3f9"), "it knows what it does itself"
    assert not FileRunLocks(folder).send("k3f9", "cancel a1")
    run_lock.release()
    if what == "link":
        assert os.listdir(tmp_path / "elsewhere") == [], "nothing is written through a link"


def test_files_of_killed_processes_are_removed(folder: Path) -> None:
    folder.mkdir()
    (folder / "gone").write_text("cancel a0\n")
    with another(folder):
        run_lock = FileRunLocks(folder).acquire("mine")
        assert sorted(path.name for path in folder.iterdir()) == ["k3f9", "mine"]
        run_lock.release()


def test_only_messages_that_the_user_has_signed_are_received(tmp_path: Path) -> None:
    """A line can say yes for the user, and an agent might find a way to write one."""

    def sign(key: str) -> Callable[[str], str]:
        return lambda text: hashlib.sha256(f"{key} {text}".encode()).hexdigest()

    ours, others = FileRunLocks(tmp_path, sign("ours")), FileRunLocks(tmp_path, sign("others"))
    run_lock = ours.acquire("k3f9")
    assert others.send("k3f9", "yes")
    assert FileRunLocks(tmp_path).send("k3f9", "yes")
    assert FileRunLocks(tmp_path, sign("ours")).send("k3f9", "no")
    elsewhere = ours.signature("k3f8", "yes")
    with (tmp_path / "k3f9").open("a") as file:
        file.write(f"{elsewhere} yes\nyes\n\n")
    assert list(run_lock.received()) == ["no"]
    run_lock.release()
