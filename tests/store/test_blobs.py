"""Large strings of payloads, kept apart."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.events import LimitReached
from retinue.errors import ChainBroken
from retinue.interfaces.cli.main import main
from retinue.runtime.history.audit import audit
from retinue.store.blobs import LARGE_BYTES, compress, decompress, extract, restore
from retinue.store.export import export_run
from retinue.store.sqlite import SqliteStore
from tests.store.journal_writer import JournalWriter

LARGE = "The heron stands in the water and waits.\n" * 500
TEXTS = st.text() | st.builds(
    str.__mul__, st.text(min_size=1), st.integers(LARGE_BYTES // 4, 2 * LARGE_BYTES)
)
VALUES = st.recursive(
    TEXTS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=6,
)


@given(VALUES)
def test_a_payload_is_put_together_again_to_the_byte(value: object) -> None:
    payload = msgspec.json.encode(value)
    found = extract(payload)
    assert restore(found.payload, found.refs, found.strings) == payload
    # What is left has the same shape, and no string that is large.
    assert len(extract(found.payload).strings) == 0
    assert type(msgspec.json.decode(found.payload)) is type(value)
    for digest, string in found.strings.items():
        assert len(string) >= LARGE_BYTES
        assert decompress(digest, compress(string)) == string


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
async def database(tmp_path: Path) -> Path:
    """A run that has said the same large thing three times, and a second that says it as well."""
    (tmp_path / ".retinue").mkdir()
    path = tmp_path / ".retinue" / "retinue.db"
    for run_id in ("k3f9", "x2"):
        store = SqliteStore(path)
        writer = JournalWriter(store, run_id)
        writer.begin()
        writer.create_agent()
        for limit in ("a", "b", "c"):
            writer.record(LimitReached(limit=limit, detail=LARGE))
            await store.flush()
        await store.aclose()
    return path


async def test_large_strings_are_stored_once_and_compressed(database: Path) -> None:
    ((hash_length, size_bytes),) = rows(database, "SELECT length(hash), length(data) FROM blobs")
    assert hash_length == 64
    assert isinstance(size_bytes, int)
    assert size_bytes < len(LARGE) / 20
    left = rows(database, "SELECT payload FROM events WHERE blobs IS NOT NULL")
    assert left[0] == ('{"type":"agent.limit_reached","limit":"a","detail":""}',)
    assert len(left) == 6
    store = SqliteStore(database, write=False)
    for run_id in ("k3f9", "x2"):
        facts = [event.fact for event in await store.events(run_id, after=2)]
        assert facts == [LimitReached(limit=limit, detail=LARGE) for limit in ("a", "b", "c")]
        assert len(await store.agent_events(run_id, "a0")) == 5
        assert (await audit(store, run_id)).events == 5
    await store.aclose()


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE blobs SET data = x'00'", "a blob is what its hash says"),
        ("DELETE FROM blobs", "a blob goes when no event needs it, by retinue clean"),
        ("INSERT OR REPLACE INTO blobs SELECT hash, x'00' FROM blobs", "a blob is kept once"),
    ],
)
def test_a_blob_is_guarded(database: Path, statement: str, problem: str) -> None:
    with pytest.raises(sqlite3.IntegrityError, match=problem):
        rows(database, statement)


CHANGES = {
    "gone": "DELETE FROM blobs",
    "cut": "UPDATE blobs SET data = substr(data, 1, 20)",
    "another": "UPDATE blobs SET data = x'789c030000000001'",
    "text": "UPDATE blobs SET data = 'x'",
}


@pytest.fixture(params=CHANGES)
def changed(request: pytest.FixtureRequest, database: Path) -> str:
    """The beginning of the hash of a blob that is no longer what it was."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        ((digest,),) = connection.execute("SELECT hash FROM blobs").fetchall()
        for trigger in ("stay", "unchanged"):
            connection.execute(f"DROP TRIGGER blobs_{trigger}")
        connection.execute(CHANGES[request.param])
    return str(digest)[:12]


async def test_an_audit_names_a_blob_that_was_changed(database: Path, changed: str) -> None:
    store = SqliteStore(database, write=False)
    with pytest.raises(ChainBroken) as caught:
        await audit(store, "k3f9")
    await store.aclose()
    assert caught.value.seq == 3
    assert str(caught.value) == (
        f"Event 3 (agent.limit_reached) is not what was written:"
        f" blob {changed} is gone or was changed."
    )


def test_commands_name_it_too(
    database: Path, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as caught:
            main([*arguments, "-C", str(database.parent.parent)])
        return caught.value.code, capsys.readouterr().out

    code, out = said("audit", "k3f9")
    assert (code, out.startswith("BROKEN at event 3: Event 3 (")) == (1, True)
    assert f"blob {changed} is gone or was changed" in out
    # What else there is of the run can still be looked at.
    code, out = said("show", "k3f9", "--json")
    assert (code, out.count("\n")) == (0, 5)
    assert f'"detail":"blob {changed} is gone or was changed"' in out


async def test_one_that_was_cleaned_away_is_written_again(tmp_path: Path) -> None:
    """By another process, while this one thinks that it is there."""
    path = tmp_path / "retinue.db"
    store = SqliteStore(path)
    writer = JournalWriter(store, "k3f9")
    writer.begin()
    writer.note(LARGE)
    await store.flush()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER blobs_stay")
        connection.execute("DELETE FROM blobs")
    written = writer.note(LARGE)
    await store.flush()
    assert (await store.events("k3f9", after=2))[0] == written
    await store.aclose()


async def test_an_export_has_the_blobs_of_its_run_and_no_others(tmp_path: Path) -> None:
    path, target = tmp_path / "retinue.db", tmp_path / "k3f9.retinue"
    store = SqliteStore(path)
    for run_id, text in (("k3f9", LARGE), ("x2", LARGE.upper())):
        writer = JournalWriter(store, run_id)
        writer.begin()
        writer.create_agent()
        writer.note(text)
    await store.aclose()
    export_run(path, "k3f9", target)
    assert rows(target, "SELECT count(*) FROM blobs") == [(1,)]
    alone = SqliteStore(target, write=False)
    assert (await audit(alone, "k3f9")).events == 3
    last = (await alone.events("k3f9"))[2].fact
    assert isinstance(last, LimitReached)
    assert last.detail == LARGE
    await alone.aclose()
