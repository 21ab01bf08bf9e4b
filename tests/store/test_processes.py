"""Several processes on one database, and what is left when one of them is killed."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from retinue.domain.chain import verify
from retinue.domain.events import Event
from retinue.runtime.history.audit import audit, read_all
from retinue.store.sqlite import SqliteStore
from tests.store.journal_writer import JournalWriter

Start = Callable[..., "subprocess.Popen[str]"]


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


async def test_two_processes_open_a_new_database_at_the_same_moment(
    tmp_path: Path, start: Start
) -> None:
    processes = [start("open_each", name) for name in ("one", "two")]
    for number in range(20):
        path = tmp_path / f"{number}.db"
        for process in processes:
            tell(process, str(path))
        assert [line_of(process) for process in processes] == ["ok\n", "ok\n"]
        store = SqliteStore(path, write=False)
        assert sorted(row.id for row in await store.runs()) == ["one", "two"]
        await store.aclose()


async def test_another_process_follows_a_run_while_it_is_written(
    tmp_path: Path, start: Start
) -> None:
    path = tmp_path / "retinue.db"
    store = SqliteStore(path)
    writer = JournalWriter(store, "k3f9")
    written = [writer.begin()]
    await store.flush()
    follower = start("follow", path)
    seen: list[Event] = []

    async def see(count: int) -> None:
        for _ in range(count):
            line = await asyncio.to_thread(line_of, follower)
            seen.append(msgspec.json.decode(line, type=Event))

    await see(1)
    for size in (1, 3, 50, 1):
        written += [writer.note(str(n)) for n in range(size)]
        await store.flush()
        # It has seen all of this before more is written.
        await see(size)
    written += [writer.note("the last"), writer.finish()]
    await store.flush()
    await see(2)
    assert seen == written
    assert (await asyncio.to_thread(line_of, follower), follower.wait()) == ("", 0)
    await store.aclose()


@pytest.mark.parametrize(
    "lines",
    [1, 2, 5, 17, 80, 400, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 9, 33, 150))],
)
async def test_what_was_acknowledged_survives_a_kill(
    tmp_path: Path, start: Start, lines: int
) -> None:
    path = tmp_path / "retinue.db"
    process = start("write_forever", path)
    acknowledged = [int(line_of(process)) for _ in range(lines)]
    process.kill()
    assert process.stdout is not None
    # The last line may have been cut.
    rest = process.stdout.read().split("\n")[:-1]
    acknowledged += [int(line) for line in rest]
    process.wait()
    # First as a reader, who may change nothing; then as one who writes, and so tidies up.
    for write in (False, True):
        store = SqliteStore(path, write=write)
        row = await store.run("k3f9")
        events = await read_all(store, "k3f9")
        assert verify(events, head_seq=row.head_seq, head_hash=row.head_hash) >= max(acknowledged)
        assert (await audit(store, "k3f9")).events == len(events)
        await store.aclose()


async def test_a_follower_of_a_killed_writer_has_seen_what_was_acknowledged(
    tmp_path: Path, start: Start
) -> None:
    path = tmp_path / "retinue.db"
    writer = start("write_forever", path)
    acknowledged = int(line_of(writer))
    follower = start("follow", path)
    first = msgspec.json.decode(line_of(follower), type=Event)
    writer.kill()
    writer.wait()
    seqs = [first.seq]
    while seqs[-1] < acknowledged:
        seqs.append(msgspec.json.decode(line_of(follower), type=Event).seq)
    assert seqs == list(range(1, len(seqs) + 1))
    assert follower.poll() is None
