"""Journals and memories in Postgres, through asyncpg. Only the extra `postgres` installs it."""
