"""Reads journals for `retinue stats` and the page: of one project, or of each that the user has."""

from __future__ import annotations

import asyncio
from pathlib import Path

from retinue.config.environment import Environment
from retinue.config.project_seal import known_projects
from retinue.errors import StoreError
from retinue.ports.store import Store
from retinue.project import has_journal, open_journal, project_root
from retinue.runtime.history.audit import read_all
from retinue.telemetry.statistics import PROJECT, Row, Statistics


async def read_statistics(
    by: str, directory: str | Path, environment: Environment, *, limit: int
) -> list[Row]:
    """Sums over the latest `limit` runs of a project; by project, of each one that can be read."""
    found = Statistics(by)
    if by != PROJECT:
        async with open_journal(directory, environment) as store:
            await add_runs(found, store, limit)
        return found.rows
    for project in dict.fromkeys((project_root(directory), *known_projects(environment))):
        try:
            if await has_journal(project, environment):
                async with open_journal(project, environment) as store:
                    await add_runs(found, store, limit, str(project))
        except StoreError:
            continue  # Damaged, or of a newer version: the others are still worth showing.
    return found.rows


async def add_runs(found: Statistics, store: Store, limit: int, project: str = "") -> None:
    """Add the latest runs of a journal, except those that were cleaned away."""
    for row in await store.runs(limit=limit):
        if not row.pruned:
            # In a thread: a long journal would keep others waiting.
            await asyncio.to_thread(found.add_run, await read_all(store, row.id), project)
