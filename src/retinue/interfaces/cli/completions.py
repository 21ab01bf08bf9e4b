"""Names that a shell completes: runs, agents, roles and models, as far as they are known here.

They are asked for at a key stroke, so whatever goes wrong means that there are none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import click
from click.shell_completion import CompletionItem

from retinue.config.environment import Environment
from retinue.config.roles import RoleCatalogue, load_roles
from retinue.config.settings import SettingsLayers
from retinue.config.settings_file import load_settings
from retinue.embedded.model import NAME, is_available
from retinue.errors import RetinueError
from retinue.interfaces.view.formatting import one_line
from retinue.ports.store import AgentRow, RunRow
from retinue.project import open_journal, project

MOST_RUNS = 30


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    async def latest() -> Sequence[RunRow]:
        async with open_journal(_directory(ctx)) as store:
            return await store.runs(limit=MOST_RUNS)

    try:
        rows = asyncio.run(latest())
    except RetinueError:
        return []
    return _items(((row.id, row.task) for row in rows), incomplete)


def agents(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    async def of_run() -> Sequence[AgentRow]:
        async with open_journal(_directory(ctx)) as store:
            return await store.agents((await store.run(ctx.params.get("run") or "")).id)

    try:
        rows = asyncio.run(of_run())
    except RetinueError:
        return []
    return _items(((row.id, row.path) for row in rows), incomplete)


def roles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        found = _catalogue(ctx)
    except RetinueError:
        return []
    return _items(((role.name, role.description) for role in found.roles.values()), incomplete)


def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        layers = _layers(ctx)
    except RetinueError:
        return []
    names = dict(layers.user.models)
    if is_available():
        names[NAME] = "small, and here without a server"
    for name in (Environment.current().get("RETINUE_MODEL"), layers.merged.model):
        if name:
            names.setdefault(name, "the usual one")
    return _items(names.items(), incomplete)


def _directory(ctx: click.Context) -> str:
    return ctx.params.get("directory") or "."


def _layers(ctx: click.Context) -> SettingsLayers:
    return load_settings(Environment.current().user_settings_file, project(_directory(ctx)))


def _catalogue(ctx: click.Context) -> RoleCatalogue:
    environment = Environment.current()
    root = project(_directory(ctx))
    return load_roles(_layers(ctx), root, environment.home, config_home=environment.config_home)


def _items(names: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    return [
        CompletionItem(name, help=one_line(text))
        for name, text in names
        if name.startswith(incomplete)
    ]
