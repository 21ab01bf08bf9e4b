from __future__ import annotations

import asyncio
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.errors import SchemaTooNew, StoreError, StoreLocked, StoreReadOnly, UsageError
from retinue.ports.store import MemoryEntry
from retinue.store.database import run_script
from retinue.store.memory import SqliteMemoryStore
from retinue.store.queries import migrations, script
from retinue.testing.clock import EPOCH, FakeClock

Start = Callable[..., "subprocess.Popen[str]"]
TEXTS = st.text(max_size=200)


@asynccontextmanager
async def opened(path: Path, *, full_text: bool = True) -> AsyncIterator[SqliteMemoryStore]:
    memory_store = SqliteMemoryStore(path, FakeClock(), seal=str, full_text=full_text)
    try:
        yield memory_store
    finally:
        await memory_store.aclose()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "retinue.db"


@pytest.fixture(params=[True, False], ids=["fts5", "like"])
async def memory_store(
    path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[SqliteMemoryStore]:
    async with opened(path, full_text=request.param) as memory_store:
        yield memory_store


async def keep(memory_store: SqliteMemoryStore, *texts: str, kind: str = "note") -> None:
    for text in texts:
        await memory_store.remember(kind=kind, text=text, run_id="k3f9abcd", agent_id="a0")


async def found(memory_store: SqliteMemoryStore, query: str, kind: str | None = None) -> list[str]:
    return [memory.text for memory in await memory_store.recall(query, kind=kind)]


def run_sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def make_read_only(path: Path) -> None:
    # A format that SQLite may read and not write; rights would not stop a test that runs as root.
    data = bytearray(path.read_bytes())
    data[18] = 9
    path.write_bytes(data)


@pytest.fixture
def damaged(path: Path) -> Path:
    path.write_bytes(b"not a database, " * 100)
    return path


# Finding


async def test_memories_are_found_unchanged(memory_store: SqliteMemoryStore) -> None:
    memory_id = await memory_store.remember(
        kind="fact", text="Herons\n nest here. ", run_id="k3f9abcd", agent_id="a2"
    )
    assert await memory_store.recall("herons") == [
        MemoryEntry(
            id=memory_id,
            kind="fact",
            text="Herons\n nest here. ",
            time=EPOCH,
            run_id="k3f9abcd",
            agent_id="a2",
        )
    ]


async def test_it_outlives_the_vault(path: Path) -> None:
    async with opened(path) as memory_store:
        await keep(memory_store, "The herons nest in May.")
    async with opened(path) as memory_store:
        assert await found(memory_store, "herons") == ["The herons nest in May."]


async def test_better_matches_come_first_then_newer_ones(
    memory_store: SqliteMemoryStore,
) -> None:
    await keep(memory_store, *(f"a stork, the {number}th" for number in range(9)))
    await keep(memory_store, "one heron", "one heron", "heron and reeds", "some reeds")
    assert (await found(memory_store, "reeds heron"))[0] == "heron and reeds"
    one, other = [memory.id for memory in await memory_store.recall("one")]
    assert one > other


async def test_an_empty_query_finds_the_latest(memory_store: SqliteMemoryStore) -> None:
    await keep(memory_store, *"abcdefg")
    for query in ("", " \n"):
        assert await found(memory_store, query) == ["g", "f", "e", "d", "c"]
    assert [memory.text for memory in await memory_store.recall("", limit=2)] == ["g", "f"]


async def test_nothing_that_fits(memory_store: SqliteMemoryStore) -> None:
    assert await found(memory_store, "") == []
    await keep(memory_store, "a heron")
    assert await found(memory_store, "stork") == []


async def test_only_of_a_kind(memory_store: SqliteMemoryStore) -> None:
    await keep(memory_store, "old heron", kind="fact")
    await keep(memory_store, "new heron", kind="note")
    assert await found(memory_store, "heron", "fact") == ["old heron"]
    assert await found(memory_store, "", "fact") == ["old heron"]
    assert await found(memory_store, "heron", "Fact ' \0\udcff") == []


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("HERON", "a heron"),
        ("stork her", "a heron"),
        ("ron", "a heron"),
        ("世界", "你好世界"),
        ("🪶", "a feather: 🪶"),
        ("100%", "100% sure"),
        ("src/auth.py", "see src/auth.py:12"),
        ('say "no" OR NOT', 'they say "no"'),
    ],
)
async def test_words_of_all_sorts(memory_store: SqliteMemoryStore, query: str, text: str) -> None:
    await keep(memory_store, "something else", text)
    assert await found(memory_store, query) == [text]


async def test_diacritics_do_not_matter(path: Path) -> None:
    async with opened(path) as memory_store:
        await keep(memory_store, "Grüße aus Köln")
        assert await found(memory_store, "koln") == ["Grüße aus Köln"]


@pytest.mark.parametrize("sign", ["%", "_", "\\"])
async def test_no_sign_of_like_is_special(memory_store: SqliteMemoryStore, sign: str) -> None:
    await keep(memory_store, "plain", f"with {sign} in it")
    assert await found(memory_store, sign) == [f"with {sign} in it"]


@pytest.mark.parametrize(
    "query",
    ['"', '""', "*", "a*", "NEAR(a b)", "text:a", "a AND", "(", "-a", "^a", "{a} : b", "a + b",
     "'; DROP TABLE memories; --", "\0", "a\0b", "\udcff", "a" * 100_000, "a " * 100_000,
     '"' * 5_000, "-a" * 50_000],
)  # fmt: skip
async def test_no_query_is_a_mistake(memory_store: SqliteMemoryStore, query: str) -> None:
    await keep(memory_store, "a")
    await memory_store.recall(query)
    assert await found(memory_store, "") == ["a"]


async def test_what_sql_cannot_hold_is_kept_nearly(memory_store: SqliteMemoryStore) -> None:
    await keep(memory_store, "heron\0 \udcff")
    assert await found(memory_store, "heron") == ["heron\ufffd ?"]


@settings(max_examples=60)
@given(st.lists(TEXTS.filter(str.strip), min_size=1, max_size=4), st.booleans())
def test_a_text_is_found_by_any_of_its_words(texts: list[str], full_text: bool) -> None:
    async def check(path: Path) -> None:
        async with opened(path, full_text=full_text) as memory_store:
            await keep(memory_store, *texts)
            kept = (await memory_store.recall("", limit=len(texts)))[::-1]
            for memory, text in zip(kept, texts, strict=True):
                for word in text.split():
                    assert memory in await memory_store.recall(word)

    with TemporaryDirectory() as directory:
        asyncio.run(check(Path(directory, "retinue.db")))


@settings(max_examples=30)
@given(st.lists(st.one_of(TEXTS, st.text('"*^:()-+{} aNEAROT\0\udcff')), max_size=20))
def test_recall_takes_any_query(queries: list[str]) -> None:
    async def check(path: Path) -> None:
        async with opened(path) as memory_store:
            await keep(memory_store, "a NEAR b OR c NOT d")
            for query in queries:
                await memory_store.recall(query)

    with TemporaryDirectory() as directory:
        asyncio.run(check(Path(directory, "retinue.db")))


# Refusing


@pytest.mark.parametrize("kind", ["", "Note", "a b", "a-b", "note\n", "é", "a1", "a" * 41])
async def test_kinds_that_there_cannot_be(memory_store: SqliteMemoryStore, kind: str) -> None:
    with pytest.raises(UsageError) as caught:
        await keep(memory_store, "x", kind=kind)
    assert (
        str(caught.value) == f"A kind of memory is 1 to 40 characters of a-z and _, not {kind!r}."
    )


@pytest.mark.parametrize("text", ["", " \n\t"])
async def test_nothing_is_not_kept(memory_store: SqliteMemoryStore, text: str) -> None:
    with pytest.raises(UsageError, match=r"^There is nothing to remember: the text is empty\.$"):
        await keep(memory_store, text)


@pytest.mark.parametrize(
    "values",
    ["'', 'x', 0", "'Note', 'x', 0", "'a b', 'x', 0", f"'{'a' * 41}', 'x', 0", "'note', '', 0",
     "'note', ' ' || char(9, 10), 0", "NULL, 'x', 0", "'note', NULL, 0", "'note', 'x', NULL"],
)  # fmt: skip
async def test_the_database_refuses_it_too(path: Path, values: str) -> None:
    async with opened(path) as memory_store:
        await keep(memory_store, "x", kind="a" * 40)
    insert = "INSERT INTO memories (kind, text, time, run_id, agent_id) VALUES"
    with pytest.raises(sqlite3.IntegrityError):
        run_sql(path, f"{insert} ({values}, 'r', 'a0')")


# The index


async def test_the_index_follows_hand_written_changes(path: Path) -> None:
    async with opened(path) as memory_store:
        await keep(memory_store, "heron", "stork", "crane")
        run_sql(
            path,
            "DELETE FROM memories WHERE text = 'stork'",
            "UPDATE memories SET text = 'egret' WHERE text = 'crane'",
            "INSERT INTO memories_index (memories_index, rank) VALUES ('integrity-check', 1)",
        )
        assert await found(memory_store, "heron stork crane egret") == ["egret", "heron"]


async def test_a_file_goes_between_builds_with_and_without_full_text(path: Path) -> None:
    for number in range(3):
        for full_text in (False, True):
            async with opened(path, full_text=full_text) as memory_store:
                await keep(memory_store, f"heron {number} {full_text}")
                assert (
                    len(await memory_store.recall("heron", limit=9)) == 2 * number + 1 + full_text
                )
    check = "INSERT INTO memories_index (memories_index, rank) VALUES ('integrity-check', 1)"
    run_sql(path, check)


def test_the_script_of_the_index_can_be_run_again() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        for text in (*migrations(), script("full_text.sql"), script("full_text.sql")):
            run_script(connection, text)


# The file


def test_nothing_is_made_before_it_is_needed(path: Path) -> None:
    async def check() -> None:
        async with opened(path):
            pass

    asyncio.run(check())
    assert not path.exists()


async def test_many_at_once(memory_store: SqliteMemoryStore) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(30):
            group.create_task(keep(memory_store, f"heron {number}"))
            group.create_task(memory_store.recall("heron"))
    assert len(await memory_store.recall("heron", limit=99)) == 30


async def test_a_cancelled_write_is_done_before_closing(path: Path) -> None:
    async with opened(path) as memory_store:
        await keep(memory_store, "first")
        writing = asyncio.ensure_future(keep(memory_store, "second"))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    async with opened(path) as memory_store:
        assert await found(memory_store, "first second") in (["first"], ["second", "first"])


async def test_after_closing(path: Path) -> None:
    async with opened(path) as memory_store:
        await keep(memory_store, "heron")
        await memory_store.aclose()
        for refused in (keep(memory_store, "stork"), found(memory_store, "heron")):
            with pytest.raises(StoreError) as caught:
                await refused
            assert str(caught.value) == f"{path} is closed."


async def test_two_processes_write_at_once(path: Path, start: Start) -> None:
    processes = [start("remember", path, name, 40) for name in ("one", "two")]
    outputs = await asyncio.gather(*(asyncio.to_thread(p.communicate, "") for p in processes))
    assert [out for out, _ in outputs] == ["ok\n", "ok\n"]
    async with opened(path) as memory_store:
        for name in ("one", "two"):
            texts = {memory.text for memory in await memory_store.recall(name, limit=99)}
            assert texts == {f"heron {number} of {name}" for number in range(40)}


async def test_a_locked_file(path: Path) -> None:
    memory_store = SqliteMemoryStore(path, FakeClock(), seal=str, busy_timeout_s=0.02)
    await keep(memory_store, "heron")
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreLocked) as caught:
            await keep(memory_store, "stork")
        assert str(caught.value) == (
            f"{path} has been locked by another process for 0.02 s; end that process or try again."
        )
        assert await found(memory_store, "") == ["heron"]
    # It was one write that failed, and not the memory store.
    await keep(memory_store, "crane")
    assert await found(memory_store, "") == ["crane", "heron"]
    await memory_store.aclose()


async def test_a_file_that_can_only_be_read(path: Path) -> None:
    async with opened(path) as memory_store:
        await keep(memory_store, "heron")
    make_read_only(path)
    async with opened(path) as memory_store:
        assert await found(memory_store, "heron") == ["heron"]
        with pytest.raises(StoreReadOnly) as caught:
            await keep(memory_store, "stork")
    assert str(caught.value) == f"{path} cannot be written; check its rights and its folder's."


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "retinue.db"
    async with opened(path) as memory_store:
        with pytest.raises(StoreReadOnly) as caught:
            await keep(memory_store, "heron")
        assert (
            str(caught.value) == f"{path} cannot be opened; check that its folder can be written."
        )
        # And when it is there, all is well.
        path.parent.mkdir()
        await keep(memory_store, "heron")


async def test_a_file_of_a_later_version(path: Path) -> None:
    async with opened(path) as memory_store:
        await keep(memory_store, "heron")
    run_sql(path, "PRAGMA user_version = 999")
    async with opened(path) as memory_store:
        with pytest.raises(SchemaTooNew, match="upgrade retinue"):
            await memory_store.recall("heron")


async def test_a_damaged_file(damaged: Path) -> None:
    async with opened(damaged) as memory_store:
        with pytest.raises(StoreError) as caught:
            await memory_store.recall("heron")
    assert str(caught.value) == (
        f"{damaged} is damaged or not a database; restore it or move it away."
    )
