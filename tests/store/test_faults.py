"""Everything that can be wrong with the file: one clear error each, and nothing half-written."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.errors import SchemaTooNew, StoreError, StoreLocked
from retinue.interfaces.cli.main import main
from retinue.store.database import PAGE_BYTES
from retinue.store.queries import migrations
from retinue.store.sqlite import SqliteStore
from tests.store.journal_writer import JournalWriter

ROOT = Path(__file__).parents[2]
FILL = (sys.executable, "-m", "tests.store.programs.fill")


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def refusal(path: Path, *, write: bool) -> StoreError:
    """The error of opening a file, which must not have changed it."""
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        SqliteStore(path, write=write, busy_timeout_s=0.01)
    assert path.read_bytes() == before
    return caught.value


# A file that is not ours, or not as it should be


@pytest.mark.parametrize("write", [True, False])
def test_a_database_of_a_newer_version(database: Path, write: bool) -> None:
    change(database, "PRAGMA user_version = 99")
    error = refusal(database, write=write)
    assert type(error) is SchemaTooNew
    assert str(error) == (
        f"{database} was written by a newer retinue"
        f" (schema 99, this one knows {len(migrations())}); upgrade retinue."
    )


@pytest.mark.parametrize("write", [True, False])
def test_a_database_of_another_program(tmp_path: Path, write: bool) -> None:
    path = tmp_path / "retinue.db"
    change(path, "CREATE TABLE bookmarks (url)", "PRAGMA user_version = 99")
    error = refusal(path, write=write)
    assert str(error) == f"{path} is a database of another program; move it."


@pytest.mark.parametrize("write", [True, False])
def test_a_file_that_is_no_database(tmp_path: Path, write: bool) -> None:
    path = tmp_path / "retinue.db"
    path.write_text("Dear diary,\n" * 1_000)
    error = refusal(path, write=write)
    assert type(error) is StoreError
    assert str(error) == f"{path} is damaged or not a database; restore it or move it away."


@pytest.mark.parametrize("write", [True, False])
def test_a_database_whose_pages_are_damaged(database: Path, write: bool) -> None:
    data = bytearray(database.read_bytes())
    # The tree of tables, behind the header of 100 bytes.
    data[100:PAGE_BYTES] = b"\xff" * (PAGE_BYTES - 100)
    database.write_bytes(data)
    error = refusal(database, write=write)
    assert str(error) == f"{database} is damaged or not a database; restore it or move it away."


@pytest.fixture
def damaged(database: Path, damage: Callable[[Path], None]) -> Path:
    """A database whose events cannot be read."""
    damage(database)
    return database


async def test_damage_that_is_met_while_reading(damaged: Path) -> None:
    store = SqliteStore(damaged, write=False)
    with pytest.raises(StoreError) as caught:
        await store.events("k3f9")
    await store.aclose()
    assert str(caught.value) == (
        f"{damaged} is damaged or not a database; restore it or move it away."
    )


@pytest.mark.parametrize("write", [True, False])
def test_a_directory_in_its_place(tmp_path: Path, write: bool) -> None:
    path = tmp_path / "retinue.db"
    path.mkdir()
    with pytest.raises(StoreError) as caught:
        SqliteStore(path, write=write)
    assert str(caught.value) == f"{path} is a directory, not a database; move it away."


def test_nothing_to_read_yet(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    message = f"There is no journal at {path} yet; run something first."
    with pytest.raises(StoreError) as caught:
        SqliteStore(path, write=False)
    assert str(caught.value) == message
    assert not path.exists()
    # Another process has made the file, and nothing in it yet.
    path.touch()
    assert str(refusal(path, write=False)) == message


async def test_an_empty_file_becomes_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    store = SqliteStore(path)
    JournalWriter(store, "k3f9").begin()
    await store.aclose()
    store = SqliteStore(path, write=False)
    assert [row.id for row in await store.runs()] == ["k3f9"]
    await store.aclose()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("PRAGMA user_version = 99", "was written by a newer retinue"),
        ("PRAGMA application_id = 7", "is a database of another program"),
    ],
)
def test_a_command_tells_it_in_one_line(
    tmp_path: Path,
    database: Path,
    statement: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / ".retinue").mkdir()
    path = shutil.copy(database, tmp_path / ".retinue")
    change(Path(path), statement)
    with pytest.raises(SystemExit) as caught:
        main(["runs", "-C", str(tmp_path)])
    assert caught.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"retinue: {path} {message}")
    assert err.count("\n") == 1


# A file that somebody else holds


@pytest.fixture
def holder(database: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        yield connection


async def test_a_locked_database(database: Path, holder: sqlite3.Connection) -> None:
    holder.execute("BEGIN IMMEDIATE")
    store = SqliteStore(database, busy_timeout_s=0.02)
    writer = JournalWriter(store, "x2")
    writer.begin()
    message = (
        f"{database} has been locked by another process for 0.02 s; end that process or try again."
    )
    with pytest.raises(StoreLocked) as caught:
        await store.flush()
    assert str(caught.value) == message
    # What was lost is not skipped: this store writes no more, also when it could.
    holder.execute("COMMIT")
    writer.note()
    with pytest.raises(StoreLocked):
        await store.aclose()
    store = SqliteStore(database)
    assert [row.id for row in await store.runs()] == ["k3f9"]
    JournalWriter(store, "x3").begin()
    await store.aclose()


async def test_a_thread_that_cannot_be_started(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of processes, nobody waits for a commit that never comes."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    store = SqliteStore(database)
    writer = JournalWriter(store, "x2")
    monkeypatch.setattr(threading.Thread, "start", start)
    writer.begin()
    with pytest.raises(StoreError, match=r"cannot be written: can't start new thread \(see `ulim"):
        await store.flush()
    with pytest.raises(StoreError, match="can't start new thread"):
        await store.aclose()


async def test_a_locked_database_can_be_read(database: Path, holder: sqlite3.Connection) -> None:
    holder.execute("BEGIN IMMEDIATE")
    store = SqliteStore(database, write=False, busy_timeout_s=0.0)
    assert len(await store.events("k3f9")) == 3
    await store.aclose()


@pytest.mark.parametrize("write", [True, False])
def test_a_database_that_is_held_alone(tmp_path: Path, write: bool) -> None:
    """As by a program that does not know of WAL."""
    path = tmp_path / "retinue.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreLocked) as caught:
            SqliteStore(path, write=write, busy_timeout_s=0.02)
    assert str(caught.value) == (
        f"{path} has been locked by another process for 0.02 s; end that process or try again."
    )


def test_a_new_database_that_another_is_making(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreLocked):
            SqliteStore(path, busy_timeout_s=0.02)


# No rights


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that everybody can reach, which pytest's own are not."""
    path = Path(tempfile.mkdtemp(prefix="retinue-test-"))
    path.chmod(0o755)
    yield path
    for directory in path.iterdir():
        directory.chmod(0o755)
    shutil.rmtree(path)


def test_files_and_folders_that_cannot_be_written(shared: Path, database: Path) -> None:
    paths = [shared / name / "retinue.db" for name in ("file", "folder", "empty", "closed")]
    for path in paths:
        path.parent.mkdir()
        if path.parent.name != "empty":
            shutil.copy(database, path)
    for path, folder_mode, mode in zip(
        paths, (0o777, 0o555, 0o555, 0o000), (0o444, 0o666, 0, 0o666), strict=True
    ):
        if path.exists():
            path.chmod(mode)
        path.parent.chmod(folder_mode)
    command = [sys.executable, "-m", "tests.store.programs.without_rights", *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "ok",
        f"StoreReadOnly: {paths[0]} cannot be written; check its rights and its folder's.",
        f"StoreReadOnly: {paths[1]} cannot be written; check its rights and its folder's.",
        f"StoreReadOnly: {paths[2]} cannot be opened; check that its folder can be written.",
        f"StoreReadOnly: {paths[3]} cannot be opened; check the rights of its folder.",
    ]
    paths[3].parent.chmod(0o755)
    for path in (paths[0], paths[1], paths[3]):
        assert path.read_bytes() == database.read_bytes()
    assert not paths[2].exists()


# No room


def fill(*command: str) -> list[dict[str, Any]]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [msgspec.json.decode(line) for line in done.stdout.splitlines()]


def can_mount(directory: Path) -> bool:
    mount = f"mount -t tmpfs tmpfs '{directory}'"
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    attempt = ["unshare", "-rm", "sh", "-c", mount]
    return subprocess.run(attempt, capture_output=True).returncode == 0


def test_a_full_disk(tmp_path: Path) -> None:
    """A small disk where one can be mounted, and else a limit on the size of files."""
    path = tmp_path / "retinue.db"
    message = f"No room left on the disk of {path}; free some and resume the run."
    if can_mount(tmp_path):
        full, closed, after, *new = fill("unshare", "-rm", *FILL, "tmpfs", str(tmp_path))
        assert (full["error"], full["message"]) == ("StoreFull", message)
        # However little room there is: it is told as that, and leaves nothing behind that hinders.
        assert {line["first"] for line in new} == {"ok", "StoreFull"}
        assert {line["then"] for line in new} == {"ok"}
    else:
        full, closed, after = fill(*FILL, "limit", str(tmp_path))
        assert full["message"].startswith(f"The disk of {path} fails or is full")
    assert closed["message"] == full["message"]
    assert after["events"] == after["acknowledged"] > 0


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"
    full, closed, after = fill(*FILL, "limit", str(tmp_path))
    assert full["message"] == f"The disk of {path} fails or is full (disk I/O error)."
    assert closed["message"] == full["message"]
    assert after["events"] == after["acknowledged"] > 0
