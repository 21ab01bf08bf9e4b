"""Shell completion of runs, agents, roles and models.

Completion runs while the user types, so an error yields no candidates instead of a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, TypeAlias

import click
from click.shell_completion import CompletionItem

from retinue.config.environment import Environment
from retinue.config.roles import load_roles
from retinue.config.settings_file import load_settings
from retinue.embedded.model import NAME, is_available
from retinue.errors import RetinueError
from retinue.interfaces.view.formatting import one_line
from retinue.project import open_journal, project_root
from retinue.runtime.history.session import list_sessions, user_runs

MAX_RUNS = 30

Complete: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


Candidates: TypeAlias = Mapping[str, str]
"""Descriptions by name."""


def _completion(find: Callable[[click.Context, str], Coroutine[Any, Any, Candidates]]) -> Complete:
    """Make a completion of what `find` returns for the project in a directory."""

    @wraps(find)
    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            names = asyncio.run(find(ctx, ctx.params.get("directory") or "."))
        except RetinueError:
            return []
        return [
            CompletionItem(name, help=one_line(text))
            for name, text in names.items()
            if name.startswith(incomplete)
        ]

    return complete


@_completion
async def complete_run(ctx: click.Context, directory: str) -> Candidates:
    async with open_journal(directory) as store:
        return {row.id: row.task for row in await user_runs(store, limit=MAX_RUNS)}


@_completion
async def complete_session(ctx: click.Context, directory: str) -> Candidates:
    async with open_journal(directory) as store:
        return {found.id: found.title for found in await list_sessions(store, limit=MAX_RUNS)}


@_completion
async def complete_agent(ctx: click.Context, directory: str) -> Candidates:
    async with open_journal(directory) as store:
        run = await store.run(ctx.params.get("run") or "")
        return {row.id: row.path for row in await store.agents(run.id)}


@_completion
async def complete_role(ctx: click.Context, directory: str) -> Candidates:
    root, environment = project_root(directory), Environment.current()
    found = load_roles(load_settings(environment, root), root, environment)
    return {role.name: role.description for role in found.roles.values()}


@_completion
async def complete_model(ctx: click.Context, directory: str) -> Candidates:
    environment = Environment.current()
    layers = load_settings(environment, project_root(directory))
    names = dict(layers.user.models)
    if is_available():
        names[NAME] = "small, and needs no server"
    for name in (environment.get("RETINUE_MODEL"), layers.merged.model):
        if name:
            names.setdefault(name, "the default")
    return names
