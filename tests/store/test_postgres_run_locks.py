"""Locks on runs in Postgres, whose connection is lost at bad moments."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from retinue.errors import StoreError
from tests.store.postgres_server import PostgresServer, postgres_server, programs

asyncpg = pytest.importorskip("asyncpg", reason="asyncpg is not installed: script/services")

from retinue.store.postgres.address import Database, project_database  # noqa: E402
from retinue.store.postgres.run_locks import PostgresRunLocks  # noqa: E402

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(programs() is None, reason="Postgres is not installed: script/services"),
]
OTHERS = "pid != pg_backend_pid() AND application_name = 'retinue'"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres_server() as found:
        yield found


async def until(connection: Any, question: str) -> None:
    while not await connection.fetchval(f"SELECT EXISTS ({question})"):
        pass


async def test_a_connection_that_is_lost_while_runs_are_locked_again(
    server: PostgresServer,
) -> None:
    database: Database = project_database(server.url, "herons")
    run_locks = PostgresRunLocks(database)
    ours = await asyncio.to_thread(run_locks.acquire, "k3f9")
    admin, other = await asyncpg.connect(server.url), await asyncpg.connect(server.url)
    # Another process gets the lock as soon as the connection is lost.
    key = await admin.fetchval(
        "SELECT classid::bigint << 32 | objid::bigint FROM pg_locks WHERE locktype = 'advisory'"
    )
    locking = asyncio.create_task(other.execute("SELECT pg_advisory_lock($1)", key))
    await until(admin, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    await admin.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OTHERS}")
    await locking
    # The next connection has asked for the lock in vain. It is lost in the middle of its work.
    refused = "state = 'idle' AND query LIKE '%try_advisory%'"
    await until(admin, f"SELECT 1 FROM pg_stat_activity WHERE {OTHERS} AND {refused}")
    async with other.transaction():
        await other.execute(f'LOCK TABLE "{database.schema}".messages IN ACCESS EXCLUSIVE MODE')
        await other.execute("SELECT pg_advisory_unlock($1)", key)
        blocked = f"SELECT 1 FROM pg_stat_activity WHERE {OTHERS} AND wait_event_type = 'Lock'"
        await until(admin, blocked)
        terminate = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OTHERS}"
        await admin.execute(terminate)
        await until(admin, f"SELECT 1 WHERE NOT EXISTS ({blocked})")
    assert not await asyncio.to_thread(run_locks.is_held, "another")
    assert await asyncio.to_thread(PostgresRunLocks(database).send, "k3f9", "cancel a1")
    while not (messages := ours.received()):
        pass  # The thread of the locks puts them there.
    assert messages == ["cancel a1"]
    ours.release()
    for connection in (admin, other):
        await connection.close()


def test_a_lock_is_released_without_a_server(server: PostgresServer) -> None:
    """The server has released it already, and a new connection is of no use."""
    run_locks = PostgresRunLocks(project_database(server.url, "herons"))
    lock = run_locks.acquire("k3f9")
    server.stop()
    lock.release()
    with pytest.raises(StoreError, match="cannot be reached"):
        run_locks.is_held("k3f9")
    server.start()
    assert not run_locks.is_held("k3f9")
