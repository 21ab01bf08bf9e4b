"""Seals in the database: which runs the user has started in this project."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from retinue.errors import StoreError
from retinue.store.database import connect, has_seals, store_error, transaction
from retinue.store.queries import queries

Seal = Callable[[str], str]
"""The seal of a run id; empty if the user has no key, or the project is unknown."""


def no_seal(run_id: str) -> str:
    """A `Seal` with which no run counts as the user's own."""
    return ""


def define_own_runs(connection: sqlite3.Connection, seal: Seal) -> None:
    """Define the view `own_runs`: the ids of the runs whose seals are valid."""

    def is_sealed(run_id: object, stored: object) -> bool:
        if not isinstance(run_id, str) or not isinstance(stored, str):
            return False
        valid = seal(run_id)
        return bool(valid) and secrets.compare_digest(valid.encode(), stored.encode())

    connection.create_function("is_sealed", 2, is_sealed)
    connection.execute(queries()["own_runs" if has_seals(connection) else "no_own_runs"])


def insert_seal(connection: sqlite3.Connection, run_id: str, seal: Seal) -> None:
    """Seal a run, if the user has a key."""
    if sealed := seal(run_id):
        connection.execute(queries()["insert_seal"], (run_id, sealed))


def seal_all(path: Path, seal: Seal) -> int:
    """Seal every run in the file, and every run that has memories there. Return how many were new.

    Only call this if the user asks for it: from then on, the runs count as the user's own. Raise
    StoreError if the user has no key.
    """
    if not seal("any"):
        raise StoreError("The runs cannot be sealed: your key file cannot be written.")
    with closing(connect(path, write=True)) as connection:
        try:
            define_own_runs(connection, seal)
            with transaction(connection):
                found = [run_id for (run_id,) in connection.execute(queries()["unsealed_runs"])]
                for run_id in found:
                    insert_seal(connection, run_id, seal)
        except sqlite3.Error as error:
            raise store_error(error, path) from error
    return len(found)
