"""Faults of a Postgres server: one sentence each that says what to do, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from retinue.errors import StoreError, StoreFull, StoreReadOnly
from retinue.extras import is_installed
from retinue.runtime.history.audit import audit
from tests.store.journal_writer import JournalWriter
from tests.store.postgres_server import PostgresServer, postgres_server, programs

asyncpg = pytest.importorskip("asyncpg", reason="asyncpg is not installed: script/services")

from retinue.store.postgres import database as postgres  # noqa: E402
from retinue.store.postgres.address import Database, project_database  # noqa: E402
from retinue.store.postgres.store import PostgresStore  # noqa: E402

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(programs() is None, reason="Postgres is not installed: script/services"),
]
assert is_installed("postgres")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as found:
        yield found


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


async def begun(store: PostgresStore) -> JournalWriter:
    writer = JournalWriter(store, "k3f9")
    writer.begin()
    writer.create_agent()
    await store.flush()
    return writer


async def flush_error(store: PostgresStore) -> StoreError:
    """The error of a flush. The store is broken from then on, and closes with the same error."""
    with pytest.raises(StoreError) as caught:
        await store.flush()
    with pytest.raises(StoreError) as again:
        await store.aclose()
    assert str(again.value) == str(caught.value)
    return caught.value


async def check_journal(database: Database, *, events: int) -> None:
    """The journal has exactly these events, and another process goes on with it."""
    store = await PostgresStore.open(database)
    row = await store.run("k3f9")
    assert row.head_seq == events
    writer = JournalWriter(store, "k3f9", row=row)
    writer.take_over()
    writer.note()
    await store.flush()
    await audit(store, "k3f9")
    await store.aclose()


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A disk of 8 MB at that folder."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=777", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root with the right to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_full_disk() -> None:
    with postgres_server() as server, small_disk(server.folder / "small"):
        folder = server.folder / "small"
        shutil.chown(folder, "postgres", "postgres")
        await execute(server.url, f"CREATE TABLESPACE small LOCATION '{folder}'")
        options = quote("-c default_tablespace=small")
        database = project_database(f"{server.url}?options={options}", "herons")
        store = await PostgresStore.open(database)
        writer = await begun(store)
        filler = folder / "filler"
        filler.write_bytes(bytes(3_000_000))
        durable = 2

        async def write_on() -> None:
            nonlocal durable
            for _ in range(1_000):
                writer.note(secrets.token_hex(20_000))
                await store.flush()
                durable += 1

        with pytest.raises(StoreFull) as caught:
            await write_on()
        assert str(caught.value).startswith(f"{database} has no room left (could not extend file ")
        assert str(caught.value).endswith("); free some and resume the run.")
        with pytest.raises(StoreFull):
            await store.aclose()
        filler.unlink()
        await check_journal(database, events=durable)


async def test_server_that_fails_over_to_one_that_is_read_only() -> None:
    with postgres_server() as server:
        database = project_database(server.url, "herons")
        store = await PostgresStore.open(database)
        writer = await begun(store)
        # The address leads to a standby now, as after a failover of which the address is late.
        server.stop()
        standby = server.folder / "data" / "standby.signal"
        standby.touch()
        shutil.chown(standby, server.folder.owner(), server.folder.group())
        server.start()
        writer.note()
        error = await flush_error(store)
        if not isinstance(error, StoreReadOnly):
            # The first batch finds its connection gone; the next owner finds the standby.
            assert str(error).startswith(f"The connection to {database} was lost; ")
            again = await PostgresStore.open(database)
            JournalWriter(again, "k3f9", row=await again.run("k3f9")).take_over()
            error = await flush_error(again)
        assert isinstance(error, StoreReadOnly)
        assert str(error) == (
            f"{database} cannot be written (cannot execute UPDATE in a read-only transaction); use"
            " a primary server, and a user who may write."
        )
        server.call("pg_ctl", "-w", "promote")
        await check_journal(database, events=2)


async def test_server_that_becomes_read_only(server: PostgresServer) -> None:
    await execute(server.url, "CREATE DATABASE frozen")
    database = project_database(server.url.removesuffix("postgres") + "frozen", "herons")
    store = await PostgresStore.open(database)
    writer = await begun(store)
    alter = "ALTER DATABASE frozen SET default_transaction_read_only ="
    await execute(
        server.url, f"{alter} on", "SELECT pg_terminate_backend(pid, 10000)"
        " FROM pg_stat_activity WHERE datname = 'frozen'",
    )  # fmt: skip
    writer.note()
    error = await flush_error(store)
    assert isinstance(error, StoreReadOnly), error
    assert str(error).startswith(f"{database} cannot be written (cannot execute ")
    await execute(server.url, f"{alter} off")
    await check_journal(database, events=2)


async def test_user_who_may_not_write(server: PostgresServer) -> None:
    database = project_database(server.url, "rights")
    store = await PostgresStore.open(database)
    await begun(store)
    await store.aclose()
    await execute(
        server.url,
        "CREATE USER reader PASSWORD 'secret'",
        f'GRANT USAGE ON SCHEMA "{database.schema}" TO reader',
        f'GRANT SELECT ON ALL TABLES IN SCHEMA "{database.schema}" TO reader',
    )
    reader = project_database(server.url.replace("postgres:secret", "reader:secret"), "rights")
    store = await PostgresStore.open(reader)
    row = await store.run("k3f9")
    JournalWriter(store, "k3f9", row=row).take_over()
    error = await flush_error(store)
    assert isinstance(error, StoreReadOnly)
    assert str(error) == (
        f"{reader} cannot be written (permission denied for table runs); use a primary server, and"
        " a user who may write."
    )
    other = project_database(server.url.replace("postgres:secret", "reader:secret"), "others")
    with pytest.raises(StoreReadOnly) as caught:
        await PostgresStore.open(other)
    assert "(permission denied for database postgres); use a primary " in str(caught.value)
    await check_journal(database, events=2)


async def test_user_who_may_not_connect(server: PostgresServer) -> None:
    await execute(
        server.url,
        "CREATE DATABASE closed",
        "REVOKE CONNECT ON DATABASE closed FROM public",
        "CREATE USER stranger PASSWORD 'secret'",
    )
    url = server.url.removesuffix("postgres").replace("postgres:secret", "stranger:secret")
    database = project_database(f"{url}closed", "herons")
    with pytest.raises(StoreError) as caught:
        await PostgresStore.open(database)
    assert str(caught.value) == (
        f'{database} refuses the user (permission denied for database "closed"); grant the right,'
        " or name another user in `store`."
    )


async def test_server_that_is_slow(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch waits as long as the limit allows, and is written whole or not at all."""
    monkeypatch.setattr(postgres, "COMMAND_TIMEOUT_S", 2.0)
    database = project_database(server.url, "slow")
    store = await PostgresStore.open(database)
    writer = await begun(store)
    blocker = await asyncpg.connect(server.url)
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute(f'LOCK TABLE "{database.schema}".events IN EXCLUSIVE MODE')
    writer.note()
    error = await flush_error(store)
    assert str(error) == (
        f"{database} has not answered for 2 s; `retinue resume` continues the run when it does."
    )
    await transaction.rollback()
    await blocker.close()
    await check_journal(database, events=2)


async def test_lock_that_is_short_delays_a_batch_and_loses_nothing(server: PostgresServer) -> None:
    database = project_database(server.url, "delayed")
    store = await PostgresStore.open(database)
    writer = await begun(store)
    blocker = await asyncpg.connect(server.url)
    transaction = blocker.transaction()
    await transaction.start()
    await blocker.execute(f'LOCK TABLE "{database.schema}".events IN EXCLUSIVE MODE')
    writer.note()
    flushing = asyncio.create_task(store.flush())
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    while not await blocker.fetchval(waiting):
        pass
    await transaction.rollback()
    await flushing
    await blocker.close()
    await store.aclose()
    await check_journal(database, events=3)


async def test_server_that_accepts_connections_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres, "CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        database = project_database(f"postgresql://u@127.0.0.1:{port}/herons", "herons")
        with pytest.raises(StoreError) as caught:
            await PostgresStore.open(database)
    assert str(caught.value).startswith(f"{database} cannot be reached; check that the server runs")


async def test_too_many_connections() -> None:
    with postgres_server() as server:
        await execute(server.url, "CREATE USER one PASSWORD 'secret' CONNECTION LIMIT 0")
        database = project_database(server.url.replace("postgres:secret", "one:secret"), "herons")
        with pytest.raises(StoreError) as caught:
            await PostgresStore.open(database)
        assert str(caught.value) == (
            f'{database} accepts no more connections (too many connections for role "one"); close'
            " some, or raise its limit."
        )
