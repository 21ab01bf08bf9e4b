"""Tampering with the file of a real run, by somebody who knows SQL and drops the triggers first."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import retinue
from retinue.config.environment import Environment
from retinue.domain.chain import link
from retinue.domain.events import Event
from retinue.domain.lifecycle import State
from retinue.errors import ChainBroken, StoreError, UnknownRun
from retinue.interfaces.cli.main import main
from retinue.models.scripted.model import call, say
from retinue.ports.store import AgentRow, RunRow
from retinue.runtime.history.audit import audit, read_all
from retinue.store.sqlite import SqliteStore
from tests.store.journal_writer import JournalWriter


class Project(msgspec.Struct, frozen=True):
    """A directory in which `run` was run, and `other` besides."""

    directory: Path
    run: str
    other: str
    events: int

    @property
    def database(self) -> Path:
        return self.directory / ".retinue" / "retinue.db"

    def copy(self, directory: Path) -> Project:
        # Hypothesis makes one copy after the other.
        shutil.rmtree(directory, ignore_errors=True)
        (directory / ".retinue").mkdir(parents=True)
        shutil.copyfile(self.database, directory / ".retinue" / "retinue.db")
        return msgspec.structs.replace(self, directory=directory)

    def tamper(self, *statements: str) -> None:
        with self.tampering() as tamper:
            tamper(*statements)

    @contextmanager
    def tampering(self) -> Iterator[Callable[..., None]]:
        """Tamper with the events as often as one likes: what was done before is taken back."""
        with closing(sqlite3.connect(self.database, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA ignore_check_constraints = ON")
            query = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
            for (trigger,) in connection.execute(query).fetchall():
                connection.execute(f"DROP TRIGGER {trigger}")
            connection.execute("CREATE TEMP TABLE written AS SELECT * FROM events")

            def tamper(*statements: str) -> None:
                connection.execute("BEGIN")
                connection.execute("DELETE FROM events")
                connection.execute("INSERT INTO events SELECT * FROM written")
                for statement in statements:
                    connection.execute(statement.replace("RUN", f"'{self.run}'"))
                connection.execute("COMMIT")

            yield tamper

    async def all_named(self, changes: Iterable[tuple[int, Sequence[str]]]) -> None:
        """An audit of the run names the event, for each of these statements."""
        with self.tampering() as tamper:
            store = SqliteStore(self.database, write=False)
            for seq, statements in changes:
                tamper(*statements)
                with pytest.raises(ChainBroken) as caught:
                    await audit(store, self.run)
                assert caught.value.seq == seq
            await store.aclose()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return asyncio.run(work(tmp_path_factory.mktemp("project")))


async def work(directory: Path) -> Project:
    (directory / "heron.txt").write_text("A heron.\n")
    model = retinue.ScriptedModel(
        {
            "Lead": [call("list_dir", path="."), say("There is a heron.")],
            "": [call("read_file", path="heron.txt"), say("Grüße from the heron.")],
        }
    )
    environment = Environment(variables={"HOME": f"{directory}-home"})
    async with retinue.open(directory, model=model, environment=environment, shell=False) as rt:
        done = await rt.run("Lead the way.")
        found = await rt.fan_out([("researcher", "Look."), ("reviewer", "Look again.")])
        run = found[0].run_id
    store = SqliteStore(directory / ".retinue" / "retinue.db", write=False)
    events = len(await read_all(store, run))
    await store.aclose()
    return Project(directory, run, done.id, events)


@pytest.fixture
def copied(project: Project, tmp_path: Path) -> Project:
    return project.copy(tmp_path / "copy")


Audited = Callable[[Project, str], tuple[int, str]]


@pytest.fixture
def audited(capsys: pytest.CaptureFixture[str]) -> Audited:
    """`retinue audit RUN -C DIR`: its exit code and what it printed."""

    def run(project: Project, run_id: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as caught:
            main(["audit", run_id, "-C", str(project.directory)])
        out, err = capsys.readouterr()
        assert err == ""
        assert isinstance(caught.value.code, int)
        return caught.value.code, out

    return run


@pytest.fixture
def names(audited: Audited) -> Callable[[Project], int]:
    """The event that an audit of the tampered run names."""

    def first_broken(project: Project) -> int:
        code, out = audited(project, project.run)
        found = re.match(r"BROKEN at event (-?\d+): \S", out)
        assert code == 1
        assert found is not None, out
        return int(found[1])

    return first_broken


Names = Callable[[Project], int]


def test_an_untouched_run_is_fine(project: Project, audited: Audited) -> None:
    code, out = audited(project, project.run)
    assert code == 0
    assert out.startswith(
        f"ok: {project.events} events and 3 contracts of run {project.run} are unchanged"
    )
    assert audited(project, project.run[:4])[0] == 0
    assert audited(project, project.other)[0] == 0


def test_dropping_the_triggers_is_no_change(copied: Project, audited: Audited) -> None:
    copied.tamper()
    assert audited(copied, copied.run)[0] == 0


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET summary = 'x' WHERE run_id = RUN",
        "UPDATE events SET payload = CAST(x'ff' AS TEXT) WHERE run_id = RUN",
        "DELETE FROM events WHERE run_id = RUN",
        "UPDATE sub_agents SET state = 'failed' WHERE run_id = RUN",
        "UPDATE runs SET head_seq = 1 WHERE id = RUN",
    ],
)
def test_what_was_done_to_one_run_is_not_said_of_another(
    copied: Project, statement: str, audited: Audited
) -> None:
    copied.tamper(statement)
    assert audited(copied, copied.run)[0] == 1
    assert audited(copied, copied.other)[0] == 0


def test_the_command_in_a_process_of_its_own(project: Project, copied: Project) -> None:
    copied.tamper("UPDATE events SET summary = 'x' WHERE run_id = RUN AND seq = 5")
    program = "from retinue.interfaces.cli.main import main; main()"
    for directory, code, said in (
        (project.directory, 0, f"ok: {project.events} events"),
        (copied.directory, 1, "BROKEN at event 5: Event 5 ("),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, "audit", project.run, "-C", directory],
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (code, "")
        assert done.stdout.startswith(said)


# Changes


OTHERS = {
    "run_id": ["'stranger'", "CAST(run_id AS BLOB)"],
    "seq": ["seq + 1000", "-seq", "0", "'x'", "seq + 0.5"],
    "agent_id": ["agent_id || 'x'", "''", "CAST(x'ff' AS TEXT)"],
    "parent_agent_id": ["CASE WHEN parent_agent_id IS NULL THEN '' END", "'a9'", "x'00'"],
    "attempt": ["attempt + 1", "'x'"],
    "epoch": ["epoch + 1", "-1", "1.5"],
    "time": ["time + 1e-6", "'soon'", "x'00'"],
    "type": ["upper(type)", "'run.begun'", "CAST(type AS BLOB)"],
    "version": ["version + 1", "'x'"],
    "summary": ["summary || ' '", "''", "CAST(summary AS BLOB)", "CAST(x'ff' AS TEXT)"],
    "payload": ["payload || ' '", "'{}'", "CAST(payload AS BLOB)", "CAST(x'ff' AS TEXT)"],
    "hash": ["substr(hash, 2) || '~'", "''", "CAST(hash AS BLOB)"],
    "blobs": ["'[]'", "'x'", "x'00'", "'[[0,\"ab\"]]'"],
}


def test_every_column_has_its_changes(project: Project) -> None:
    with closing(sqlite3.connect(project.database)) as connection:
        columns = connection.execute("SELECT name FROM pragma_table_info('events')").fetchall()
    assert {name for (name,) in columns} == OTHERS.keys()


@pytest.mark.parametrize(
    ("column", "value"), [(column, value) for column, some in OTHERS.items() for value in some]
)
async def test_any_change_of_any_event_is_named(copied: Project, column: str, value: str) -> None:
    update = f"UPDATE events SET {column} = {value} WHERE run_id = RUN AND seq = "
    await copied.all_named((seq, [f"{update}{seq}"]) for seq in range(1, copied.events + 1))


def test_a_blob_is_not_the_text_that_stands_for_it(copied: Project, names: Names) -> None:
    """JSON has no blobs, and an encoder that writes them in base64 would hash both alike."""
    query = "UPDATE events SET {} WHERE run_id = RUN AND seq = 2"
    with closing(sqlite3.connect(copied.database)) as connection:
        (head,) = connection.execute(
            "SELECT hash FROM events WHERE run_id = ? AND seq = 1", (copied.run,)
        ).fetchone()
    store = SqliteStore(copied.database, write=False)
    event = asyncio.run(_second(store, copied.run))
    digest = link(head, msgspec.structs.replace(event, summary="AAAA"))
    copied.tamper(query.format(f"summary = x'000000', hash = '{digest}'"))
    assert names(copied) == 2


async def _second(store: SqliteStore, run_id: str) -> Event:
    (event,) = await store.events(run_id, after=1, limit=1)
    await store.aclose()
    return event


async def test_every_event_that_is_deleted_is_missed(copied: Project) -> None:
    delete = "DELETE FROM events WHERE run_id = RUN AND seq = "
    await copied.all_named((seq, [f"{delete}{seq}"]) for seq in range(1, copied.events + 1))


@pytest.mark.parametrize("first", [1, 2, 10])
def test_a_tail_that_is_cut_is_missed(copied: Project, first: int, names: Names) -> None:
    copied.tamper(f"DELETE FROM events WHERE run_id = RUN AND seq >= {first}")
    assert names(copied) == first


def test_a_run_of_which_nothing_is_left_but_its_row(copied: Project, names: Names) -> None:
    zeros = "0" * 64
    copied.tamper(
        "DELETE FROM events WHERE run_id = RUN",
        "DELETE FROM sub_agents WHERE run_id = RUN",
        "UPDATE runs SET head_seq = 0, task = '', kind = '', started_at = 0, status = NULL,"
        f" finished_at = NULL, head_hash = '{zeros}' WHERE id = RUN",
    )
    assert names(copied) == 1


INSERT = (
    "INSERT INTO events (run_id, seq, agent_id, parent_agent_id, attempt, epoch, time, type,"
    " version, summary, payload, hash) SELECT run_id, {seq}, agent_id, parent_agent_id, attempt,"
    " epoch, time, type, version, summary, payload, hash FROM events"
    " WHERE run_id = RUN AND seq = 7"
)


async def test_an_event_that_is_put_between_is_named(copied: Project) -> None:
    def put_at(seq: int) -> list[str]:
        return [
            # In two steps, as numbers are unique.
            f"UPDATE events SET seq = seq + 10000 WHERE run_id = RUN AND seq >= {seq}",
            "UPDATE events SET seq = seq - 9999 WHERE seq > 10000",
            # A copy of an event, as a forger would begin with.
            INSERT.format(seq=seq).replace("seq = 7", "seq = 1" if seq > 1 else "seq = 9"),
        ]

    await copied.all_named((seq, put_at(seq)) for seq in range(1, copied.events + 1))


@pytest.mark.parametrize(
    ("seq", "named"), [("0", 0), ("-5", -5), ("2.5", 3), ("'x'", None), ("99999", None)]
)
def test_an_event_of_a_strange_number_is_seen(
    copied: Project, seq: str, named: int | None, names: Names
) -> None:
    copied.tamper(INSERT.format(seq=seq))
    assert names(copied) == (copied.events + 1 if named is None else named)


def test_an_event_that_fits_but_was_added_after_the_end_is_named(
    copied: Project, names: Names
) -> None:
    store = SqliteStore(copied.database, write=False)
    events = asyncio.run(_all(store, copied.run))
    last = events[-1]
    forged = msgspec.structs.replace(last, seq=last.seq + 1)
    digest = link(last.hash, forged)
    insert = INSERT.format(seq=forged.seq).replace("seq = 7", f"seq = {last.seq}")
    copied.tamper(insert.replace(" hash FROM", f" '{digest}' FROM"))
    assert names(copied) == forged.seq


async def _all(store: SqliteStore, run_id: str) -> list[Event]:
    events = await read_all(store, run_id)
    await store.aclose()
    return events


async def test_two_events_that_are_swapped_are_named(copied: Project) -> None:
    def swapped(one: int, two: int) -> list[str]:
        return [
            f"UPDATE events SET seq = 9999 WHERE run_id = RUN AND seq = {one}",
            f"UPDATE events SET seq = {one} WHERE run_id = RUN AND seq = {two}",
            f"UPDATE events SET seq = {two} WHERE run_id = RUN AND seq = 9999",
        ]

    pairs = [(1, copied.events), (3, 11), *((seq, seq + 1) for seq in range(1, copied.events))]
    await copied.all_named((one, swapped(one, two)) for one, two in pairs)


@settings(max_examples=25)
@given(data=st.data())
def test_of_several_changes_the_first_is_named(project: Project, data: st.DataObject) -> None:
    seqs = data.draw(st.sets(st.integers(1, project.events), min_size=1, max_size=4))
    copied = project.copy(project.directory / "several")
    changes = []
    for seq in seqs:
        column = data.draw(st.sampled_from(sorted(OTHERS.keys() - {"seq"})))
        value = data.draw(st.sampled_from(OTHERS[column]))
        changes.append(f"UPDATE events SET {column} = {value} WHERE run_id = RUN AND seq = {seq}")
    copied.tamper(*changes)
    with pytest.raises(ChainBroken) as caught:
        asyncio.run(_audit(copied, copied.run))
    assert caught.value.seq == min(seqs)


async def _audit(project: Project, run_id: str) -> None:
    store = SqliteStore(project.database, write=False)
    try:
        await audit(store, run_id)
    finally:
        await store.aclose()


# Rows


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("head_seq = head_seq + 1", 1),
        ("head_seq = head_seq - 1", 0),
        ("head_seq = 0", None),
        ("head_hash = substr(head_hash, 2) || '~'", 0),
        (f"head_hash = '{'0' * 64}'", 0),
    ],
)
def test_an_end_that_is_moved_is_seen(
    copied: Project, change: str, named: int | None, names: Names
) -> None:
    copied.tamper(f"UPDATE runs SET {change} WHERE id = RUN")
    assert names(copied) == (1 if named is None else copied.events + named)


@pytest.mark.parametrize(
    "change",
    [
        "status = 'error'",
        "status = 'fine'",
        "status = NULL, finished_at = NULL",
        "finished_at = finished_at + 1",
        "started_at = started_at - 1",
        "task = 'Something else.'",
        "kind = 'run'",
    ],
)
def test_a_row_that_says_something_else_of_a_run_is_seen(
    copied: Project, change: str, names: Names
) -> None:
    copied.tamper(f"UPDATE runs SET {change} WHERE id = RUN")
    assert names(copied) == copied.events


@pytest.mark.parametrize(
    "change",
    [
        "context_json = replace(context_json, 'Look', 'Leap')",
        "context_json = context_json || ' '",
        "context_json = '{}'",
        "path = 'root'",
        "role = 'lead'",
        "parent_agent_id = NULL",
        "parent_agent_id = 'a2'",
        "id = 'a7'",
        *(f"state = '{state}'" for state in State if state is not State.CLOSED),
    ],
)
def test_a_row_that_says_something_else_of_an_agent_is_seen(
    project: Project, copied: Project, change: str, names: Names
) -> None:
    new_agent = _birth(project, "a1")
    copied.tamper(f"UPDATE sub_agents SET {change} WHERE run_id = RUN AND id = 'a1'")
    assert names(copied) == new_agent


def test_an_agent_whose_row_is_gone_is_missed(
    project: Project, copied: Project, names: Names
) -> None:
    copied.tamper("DELETE FROM sub_agents WHERE run_id = RUN AND id = 'a2'")
    assert names(copied) == _birth(project, "a2")


def test_of_several_agents_the_first_is_named(
    project: Project, copied: Project, names: Names
) -> None:
    copied.tamper("UPDATE sub_agents SET role = 'x' WHERE run_id = RUN AND id <> 'a0'")
    assert names(copied) == _birth(project, "a1")


def test_an_agent_whom_no_event_created_is_seen(copied: Project, audited: Audited) -> None:
    copied.tamper(
        "INSERT INTO sub_agents (run_id, id, parent_agent_id, step_idx, path, role, state,"
        " context_json) SELECT run_id, 'a9', parent_agent_id, step_idx, path, role, state,"
        " context_json FROM sub_agents WHERE run_id = RUN AND id = 'a1'"
    )
    code, out = audited(copied, copied.run)
    assert code == 1
    assert "Agent a9 has a row, and no event created it." in out


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("runs", "task = CAST(task AS BLOB)"),
        ("runs", "task = CAST(x'ff' AS TEXT)"),
        ("runs", "started_at = 'then'"),
        ("runs", "head_seq = 'x'"),
        ("sub_agents", "context_json = CAST(context_json AS BLOB)"),
        ("sub_agents", "context_json = CAST(x'ff' AS TEXT)"),
        ("sub_agents", "state = 'merged'"),
        ("sub_agents", "state = x'00'"),
    ],
)
def test_a_row_of_another_kind_of_value_is_seen(
    copied: Project, table: str, change: str, audited: Audited
) -> None:
    column = "id" if table == "runs" else "run_id"
    copied.tamper(f"UPDATE {table} SET {change} WHERE {column} = RUN")
    code, out = audited(copied, copied.run)
    assert code == 1
    assert out.startswith("BROKEN at event 0: The row of ")
    assert audited(copied, copied.other)[0] == 0


def test_a_run_whose_row_is_gone_is_unknown(copied: Project) -> None:
    copied.tamper("DELETE FROM runs WHERE id = RUN")
    with pytest.raises(UnknownRun):
        asyncio.run(_audit(copied, copied.run))
    asyncio.run(_audit(copied, copied.other))


def _birth(project: Project, agent_id: str) -> int:
    with closing(sqlite3.connect(project.database)) as connection:
        (seq,) = connection.execute(
            "SELECT seq FROM events WHERE run_id = ? AND agent_id = ?"
            " AND type = 'agent.subagent_created'",
            (project.run, agent_id),
        ).fetchone()
    assert isinstance(seq, int)
    return seq


# Bytes


def test_damage_that_even_the_error_message_cannot_tell(copied: Project) -> None:
    """SQLite quotes the name that is broken, and Python cannot decode the quote."""
    data = copied.database.read_bytes()
    copied.database.write_bytes(data.replace(b"TRIGGER runs_birth", b"TRIGGER runs_b\xffrth"))
    with pytest.raises(StoreError, match="is damaged or not a database"):
        asyncio.run(_audit(copied, copied.run))


@settings(max_examples=100)
@given(data=st.data())
def test_any_byte_of_the_file(project: Project, data: st.DataObject) -> None:
    """A byte that is changed is seen, or it is one that says nothing of the run."""
    written = bytearray(project.database.read_bytes())
    copied = project.copy(project.directory / "bytes")
    place = data.draw(st.integers(0, len(written) - 1))
    written[place] ^= data.draw(st.integers(1, 255))
    copied.database.write_bytes(written)
    try:
        asyncio.run(_audit(copied, copied.run))
    except StoreError:
        return
    before, after = (
        asyncio.run(_all(SqliteStore(one.database, write=False), one.run))
        for one in (project, copied)
    )
    assert before == after


# A run that is going on


class BusyStore(SqliteStore):
    """A store into which a run writes between the reads of an audit, so many times."""

    writer: JournalWriter
    times = 0

    async def _go_on(self) -> None:
        if self.times:
            self.times -= 1
            self.writer.create_agent(f"a{self.times + 1}")
            self.writer.note()
            await self.flush()

    # Not before its events are read as well: reading them would go on until all is written.

    async def run(self, run_id: str) -> RunRow:
        row = await super().run(run_id)
        await self._go_on()
        return row

    async def agents(self, run_id: str) -> Sequence[AgentRow]:
        await self._go_on()
        return await super().agents(run_id)


@pytest.mark.parametrize("times", [0, 1, 2, 3, 4, 5, 20])
async def test_a_run_that_is_being_written_is_fine(tmp_path: Path, times: int) -> None:
    store = BusyStore(tmp_path / "retinue.db")
    store.writer = JournalWriter(store, "k3f9")
    store.writer.begin()
    store.writer.create_agent()
    await store.flush()
    store.times = times
    found = await audit(store, "k3f9")
    # The last may have been written after the audit was done.
    assert 2 + 2 * (times - 1) <= found.events <= 2 + 2 * times
    assert store.times == 0
    await store.aclose()
