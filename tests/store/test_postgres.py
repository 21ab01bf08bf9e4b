"""The Postgres store, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from retinue.errors import ConfigError, StoreError, StoreReadOnly
from retinue.ports.store import Store
from tests.store.journal_writer import JournalWriter
from tests.store.postgres_server import PostgresServer, postgres_server, programs
from tests.store.store_contract import StoreContract

asyncpg = pytest.importorskip("asyncpg", reason="asyncpg is not installed: script/services")

from retinue.store.postgres.address import Database, project_database  # noqa: E402
from retinue.store.postgres.database import connect  # noqa: E402
from retinue.store.postgres.maintenance import PostgresMaintenance  # noqa: E402
from retinue.store.postgres.store import PostgresStore  # noqa: E402

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(programs() is None, reason="Postgres is not installed: script/services"),
]


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as found:
        yield found


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A folder with a name of its own: schemas have the names of folders, and outlive them."""
    own = tmp_path / uuid4().hex
    own.mkdir()
    return own


@pytest.fixture
def database(server: PostgresServer, tmp_path: Path) -> Database:
    """The schema for this test."""
    return project_database(server.url, str(tmp_path))


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(database)
    try:
        yield store
    finally:
        await store.aclose()


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: PostgresServer) -> None:
        self.url = server.url

    @asynccontextmanager
    async def opened(self, place: Path) -> AsyncIterator[Store]:
        async with opened(project_database(self.url, str(place))) as store:
            yield store

    async def delete_unused_blobs(self, place: Path) -> None:
        await PostgresMaintenance(project_database(self.url, str(place))).delete_unused_blobs()


@pytest.mark.parametrize(
    ("statement", "refusal"),
    [
        ("UPDATE events SET summary = ''", "events are never changed"),
        ("DELETE FROM events", "events are never deleted"),
        ("TRUNCATE events", "events are never deleted"),
        (
            "INSERT INTO events SELECT * FROM events WHERE seq = 1 ON CONFLICT DO NOTHING;"
            "INSERT INTO events SELECT run_id, seq - 1, agent_id, parent_agent_id, attempt, epoch,"
            " time, type, version, summary, payload, hash FROM events WHERE seq = 1",
            "violates check constraint",
        ),
        ("UPDATE sub_agents SET state = 'closed'", "illegal move of an agent"),
        ("UPDATE sub_agents SET role = 'x'", "a contract is never changed"),
        ("DELETE FROM sub_agents", "agents are closed, never deleted"),
        ("UPDATE runs SET head_seq = 0", "the end of a journal only moves on"),
        ("UPDATE runs SET task = ''", "a run keeps its identity"),
        ("DELETE FROM runs", "runs are finished, never deleted"),
        ("UPDATE blobs SET data = ''", "a blob is what its hash says"),
        ("DELETE FROM blobs", "a blob goes when no event needs it, by retinue clean"),
    ],
)
async def test_guard_refuses_the_statement(
    database: Database, statement: str, refusal: str
) -> None:
    async with opened(database) as store:
        writer = JournalWriter(store, "k3f9")
        writer.begin()
        writer.create_agent()
        writer.note("large " * 1000)
    connection = await connect(database, write=False)
    with pytest.raises(asyncpg.PostgresError, match=refusal):
        await connection.execute(statement)
    await connection.close()


async def test_event_below_the_head_is_refused(database: Database) -> None:
    async with opened(database) as store:
        writer = JournalWriter(store, "k3f9")
        writer.begin()
        writer.note()
    connection = await connect(database, write=False)
    # As if the first event had been removed by a person who can drop guards.
    await connection.execute("ALTER TABLE events DISABLE TRIGGER events_append_only_delete")
    await connection.execute("CREATE TEMP TABLE kept AS SELECT * FROM events WHERE seq = 1")
    await connection.execute("DELETE FROM events WHERE seq = 1")
    with pytest.raises(asyncpg.PostgresError, match="that event is already written"):
        await connection.execute("INSERT INTO events SELECT * FROM kept")
    await connection.close()


async def test_connection_lost_while_idle_is_made_again(database: Database) -> None:
    async with opened(database) as store:
        writer = JournalWriter(store, "k3f9")
        written = [writer.begin()]
        await store.flush()
        await end_connections(database)
        assert list(await store.events("k3f9")) == written
        written.append(writer.note())
        await store.flush()
        assert list(await store.events("k3f9")) == written


async def end_connections(database: Database) -> None:
    connection = await connect(database, write=False)
    await connection.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE application_name = 'retinue' AND pid <> pg_backend_pid()"
    )
    await connection.close()


async def test_server_restarted_under_load(tmp_path: Path) -> None:
    with postgres_server() as server:
        database = project_database(server.url, "herons")
        store = await PostgresStore.open(database)
        writer = JournalWriter(store, "k3f9")
        flushed = writer.begin()
        await store.flush()

        async def write_on() -> None:
            nonlocal flushed
            for number in range(100_000):
                event = writer.note()
                await store.flush()
                flushed = event
                if number == 20:
                    server.stop()

        with pytest.raises(StoreError) as caught:
            await write_on()
        # Either the connection broke under the batch, or it could not be made again.
        assert str(caught.value).startswith(
            (f"The connection to {database} was lost; ", f"{database} cannot be reached; ")
        )
        with pytest.raises(StoreError):
            await store.aclose()
        server.start()
        async with opened(database) as again:
            events = list(await again.events("k3f9"))
            assert events[flushed.seq - 1] == flushed
            assert (await again.run("k3f9")).head_seq == len(events)


async def test_wrong_password(server: PostgresServer) -> None:
    database = project_database(server.url.replace("secret", "wr0ng"), "herons")
    with pytest.raises(StoreError) as caught:
        await PostgresStore.open(database)
    assert str(caught.value) == (
        f"postgresql://127.0.0.1:{server.port}/postgres refuses the user name or the password;"
        " check `store` in your settings and ~/.pgpass."
    )


async def test_unknown_database(server: PostgresServer) -> None:
    database = project_database(server.url.removesuffix("postgres") + "herons", "herons")
    with pytest.raises(StoreError, match=r"/herons does not exist; create it with `createdb`\.$"):
        await PostgresStore.open(database)


async def test_unreachable_server() -> None:
    database = project_database("postgresql://u:secret@127.0.0.1:1/herons", "herons")
    with pytest.raises(StoreError) as caught:
        await PostgresStore.open(database)
    assert str(caught.value) == (
        "postgresql://127.0.0.1:1/herons cannot be reached; check that the server runs and that"
        " `store` in your settings names its host and port."
    )


async def test_read_only_database(server: PostgresServer) -> None:
    url = server.url + "?options=-c%20default_transaction_read_only%3Don"
    with pytest.raises(StoreReadOnly) as caught:
        await PostgresStore.open(project_database(url, "read_only"))
    assert str(caught.value).endswith("; use a primary server, and a user who may write.")


async def test_nothing_recorded_yet(database: Database) -> None:
    with pytest.raises(StoreError, match=r"There is no journal in .* yet; run something first\.$"):
        await PostgresStore.open(database, write=False)


async def test_store_for_reading_writes_nothing(database: Database) -> None:
    async with opened(database):
        pass
    store = await PostgresStore.open(database, write=False)
    with pytest.raises(StoreError, match=r"was opened for reading only\.$"):
        JournalWriter(store, "x2").begin()
    await store.aclose()


def test_projects_of_other_names_have_other_schemas() -> None:
    names = ("herons", "Herons", "herons two", "x" * 60, "x" * 61)
    schemas = {project_database("postgresql://h/d", name).schema for name in names}
    assert len(schemas) == len(names)
    assert all(schema.startswith("retinue_") for schema in schemas)
    assert all(len(schema) <= 63 for schema in schemas)


def test_other_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a postgresql:// address"):
        project_database("mysql://h/d", "herons")
