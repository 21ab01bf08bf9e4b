"""Connect to a Postgres server, migrate the schema of a project, and turn errors into ours."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import asyncpg

from retinue.errors import SchemaTooNew, StoreError, StoreFull, StoreReadOnly
from retinue.store.postgres.address import Database
from retinue.store.queries import migrations, queries

CONNECT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 60.0
_SQL = "postgres"  # folder of the queries and migrations
_MIGRATION_LOCK = 0x52455449  # "RETI"


class NoJournal(StoreError):
    """Nothing was recorded for the project yet."""


def sql(name: str) -> str:
    """A named query of `queries.sql`."""
    return queries(_SQL)[name]


async def connect(
    database: Database, *, write: bool, settings: Mapping[str, str] | None = None
) -> asyncpg.Connection:
    """Open a connection; with `write`, create and migrate the schema where needed.

    `settings` are parameters of the session.
    """
    try:
        connection = await asyncpg.connect(
            database.url,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=COMMAND_TIMEOUT_S,
            server_settings={
                "search_path": database.schema,
                "application_name": "retinue",
                # The server ends the session of a machine that is gone after 25 s, not after hours.
                "tcp_keepalives_idle": "10",
                "tcp_keepalives_interval": "5",
                "tcp_keepalives_count": "3",
                **(settings or {}),
            },
        )
    except ValueError as error:
        raise StoreError(f"The address in `store` is wrong: {error}.") from error
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise connect_error(error, database) from error
    try:
        await _prepare(connection, database, write=write)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        connection.terminate()
        raise store_error(error, database) from error
    except BaseException:
        connection.terminate()
        raise
    return connection


async def _prepare(connection: asyncpg.Connection, database: Database, *, write: bool) -> None:
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise StoreError(f"{database} has the encoding {encoding}; create a database with UTF8.")
    version = await _version(connection, database)
    if version < len(migrations(_SQL)):
        if not write:
            if version == 0:
                raise NoJournal(f"There is no journal in {database} yet; run something first.")
            raise StoreError(f"{database} has an older schema; run something to migrate it.")
        await _migrate(connection, database)
        version = await _version(connection, database)
    if version > len(migrations(_SQL)):
        raise SchemaTooNew(
            f"{database} was written by a newer retinue (schema {version}, this one knows"
            f" {len(migrations(_SQL))}); upgrade retinue."
        )


async def has_journal(database: Database) -> bool:
    """Whether anything was recorded for the project. Raises StoreError."""
    try:
        connection = await connect(database, write=False)
    except NoJournal:
        return False
    await connection.close()
    return True


async def _version(connection: asyncpg.Connection, database: Database) -> int:
    if await connection.fetchval("SELECT to_regclass($1)", f'"{database.schema}".version') is None:
        return 0
    return int(await connection.fetchval("SELECT number FROM version"))


async def _migrate(connection: asyncpg.Connection, database: Database) -> None:
    async with connection.transaction():
        # Two processes that open a new database at the same moment wait for each other.
        await connection.execute(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
        await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{database.schema}"')
        done = await _version(connection, database)
        for script in migrations(_SQL)[done:]:
            await connection.execute(script)
        if done == 0:
            await connection.execute("INSERT INTO version VALUES (0)")
        await connection.execute("UPDATE version SET number = $1", len(migrations(_SQL)))


def connect_error(error: Exception, database: Database) -> StoreError:
    """Why no connection was made."""
    match error:
        case asyncpg.InvalidAuthorizationSpecificationError():
            return StoreError(
                f"{database} refuses the user name or the password; check `store` in your settings"
                " and ~/.pgpass."
            )
        case asyncpg.InsufficientPrivilegeError():
            return StoreError(
                f"{database} refuses the user ({_said(error)}); grant the right, or name another"
                " user in `store`."
            )
        case asyncpg.TooManyConnectionsError():
            return StoreError(
                f"{database} accepts no more connections ({_said(error)}); close some, or raise its"
                " limit."
            )
        case asyncpg.InvalidCatalogNameError():
            return StoreError(f"{database} does not exist; create it with `createdb`.")
        case OSError() | asyncpg.CannotConnectNowError():
            return StoreError(
                f"{database} cannot be reached; check that the server runs and that `store` in your"
                " settings names its host and port."
            )
    return store_error(error, database)


def store_error(error: Exception, database: Database) -> StoreError:
    """An error of asyncpg as a StoreError whose message says what to do."""
    match error:
        case asyncpg.IntegrityConstraintViolationError() | asyncpg.RaiseError():
            return StoreError(f"The journal refused a write: {_said(error)}.")
        case asyncpg.ReadOnlySQLTransactionError() | asyncpg.InsufficientPrivilegeError():
            return StoreReadOnly(
                f"{database} cannot be written ({_said(error)}); use a primary server, and a user"
                " who may write."
            )
        case asyncpg.InsufficientResourcesError():
            return StoreFull(
                f"{database} has no room left ({_said(error)}); free some and resume the run."
            )
        case asyncio.TimeoutError():
            return StoreError(
                f"{database} has not answered for {COMMAND_TIMEOUT_S:g} s; `retinue resume`"
                " continues the run when it does."
            )
        case (
            OSError()
            | asyncpg.InterfaceError()
            | asyncpg.PostgresConnectionError()
            | asyncpg.OperatorInterventionError()
        ):
            return StoreError(
                f"The connection to {database} was lost; when the server is back, `retinue resume`"
                " continues the run."
            )
    return StoreError(f"{database}: {_said(error)}.")


def _said(error: Exception) -> str:
    """The server's message, without the details on further lines."""
    return str(error).partition("\n")[0]
