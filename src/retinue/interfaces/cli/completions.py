"""Shell completion of runs, agents, roles and models.

Completion runs while the user types, so an error yields no candidates instead of a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import click
from click.shell_completion import CompletionItem

from retinue.config.environment import Environment
from retinue.config.roles import load_roles
from retinue.config.settings_file import load_settings
from retinue.embedded.model import NAME, is_available
from retinue.errors import RetinueError
from retinue.interfaces.view.formatting import one_line
from retinue.ports.store import AgentRow, RunRow
from retinue.project import open_journal, project_root

MAX_RUNS = 30


def complete_run(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    async def latest() -> Sequence[RunRow]:
        async with open_journal(_directory(ctx)) as store:
            return await store.runs(limit=MAX_RUNS)

    try:
        rows = asyncio.run(latest())
    except RetinueError:
        return []
    return _items(((row.id, row.task) for row in rows), incomplete)


def complete_agent(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    async def agents() -> Sequence[AgentRow]:
        async with open_journal(_directory(ctx)) as store:
            return await store.agents((await store.run(ctx.params.get("run") or "")).id)

    try:
        rows = asyncio.run(agents())
    except RetinueError:
        return []
    return _items(((row.id, row.path) for row in rows), incomplete)


def complete_role(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    environment = Environment.current()
    try:
        root = project_root(_directory(ctx))
        layers = load_settings(environment, root)
        found = load_roles(layers, root, environment)
    except RetinueError:
        return []
    return _items(((role.name, role.description) for role in found.roles.values()), incomplete)


def complete_model(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    environment = Environment.current()
    try:
        layers = load_settings(environment, project_root(_directory(ctx)))
    except RetinueError:
        return []
    names = dict(layers.user.models)
    if is_available():
        names[NAME] = "small, and needs no server"
    for name in (environment.get("RETINUE_MODEL"), layers.merged.model):
        if name:
            names.setdefault(name, "the default")
    return _items(names.items(), incomplete)


def _directory(ctx: click.Context) -> str:
    return ctx.params.get("directory") or "."


def _items(names: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    return [
        CompletionItem(name, help=one_line(text))
        for name, text in names
        if name.startswith(incomplete)
    ]
