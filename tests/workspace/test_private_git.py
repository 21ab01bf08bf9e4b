"""The lock on a project's files."""

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

from retinue.errors import WorkspaceError
from retinue.workspace import private_git
from retinue.workspace.private_git import PrivateGit
from retinue.workspace.user_repository import UserRepository

HOLD = """
import sys
from retinue.workspace.private_git import PrivateGit
from retinue.workspace.user_repository import UserRepository
with PrivateGit(sys.argv[1], UserRepository(top=sys.argv[1]), seal=str).lock():
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def private(tmp_path: Path) -> PrivateGit:
    return PrivateGit(str(tmp_path / "git"), UserRepository(top=str(tmp_path)), seal=str)


@contextmanager
def holder(private: PrivateGit) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock until its standard input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, private.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)


def test_stopped_holder_is_named(private: PrivateGit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_git, "STOPPED_PATIENCE_S", 0.0)
    with holder(private) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        with pytest.raises(WorkspaceError) as raised, private.lock():
            pass
    assert str(raised.value) == (
        f"Process {process.pid} is stopped and holds the lock on the files of this project"
        f" ({private.path}/lock). Continue the process (`fg`, or `kill -CONT {process.pid}`) or"
        " end it, then try again."
    )


def test_holder_that_works_is_waited_for(
    private: PrivateGit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_git, "STOPPED_PATIENCE_S", 0.0)
    locked = threading.Event()

    def lock() -> None:
        with private.lock():
            locked.set()

    with holder(private) as process:
        waiting = threading.Thread(target=lock)
        waiting.start()
        assert not locked.is_set()
        assert process.stdin is not None
        process.stdin.close()
        waiting.join()
    assert locked.is_set()


def test_patience_with_a_holder_ends(private: PrivateGit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_git, "LOCK_PATIENCE_S", 0.0)
    with (
        holder(private) as process,
        pytest.raises(WorkspaceError, match=f"^Process {process.pid} has held the lock on the "),
        private.lock(),
    ):
        pass
