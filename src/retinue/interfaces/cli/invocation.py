"""What commands that make agents work have in common: a runtime, opened by their options."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from retinue.app import open_runtime
from retinue.config.environment import Environment
from retinue.config.settings import ASK_ABOVE_TOKENS, ASK_ABOVE_USD
from retinue.config.settings_file import load_settings
from retinue.domain.agent_state import ROOT_ID
from retinue.domain.budget import Limits
from retinue.domain.result import Status
from retinue.errors import StoreError
from retinue.interfaces.cli.commands.trust import settle
from retinue.interfaces.cli.options import limits_from
from retinue.interfaces.cli.terminal.console import Console, Interrupts, exit_code, perform
from retinue.ports.listeners import Listeners
from retinue.ports.person import Person
from retinue.project import project
from retinue.runtime.runtime import Runtime

_FILES = ("context_files", "write", "workspace", "checks", "on_conflict")


def chosen_terms(options: Mapping[str, Any]) -> dict[str, Any]:
    """What of a child's task was said on the command line."""
    # Of those that may be repeated, none is not the same as an empty list: that would be a wish.
    return limits_from(options).given() | {name: options[name] for name in _FILES if options[name]}


def chosen_gate(options: Mapping[str, Any]) -> dict[str, Any]:
    """What the work of everybody has to pass, if it was said on the command line."""
    return {"checks": options["checks"], "on_conflict": options["on_conflict"]}


def console_of(options: Mapping[str, Any]) -> Console:
    environment = Environment.current()
    settings = load_settings(environment.user_settings_file, project(options["directory"])).merged
    return Console(
        as_json=options["as_json"],
        quiet=options["quiet"],
        notify_after_s=settings.notify_after_s,
        ask_above_tokens=settings.ask_above_tokens or ASK_ABOVE_TOKENS,
        ask_above_usd=settings.ask_above_usd or ASK_ABOVE_USD,
    )


def opening_of(options: Mapping[str, Any]) -> tuple[Console, dict[str, Any]]:
    return console_of(options), {
        "directory": options["directory"],
        "model": options["model"],
        "mode": options["mode"],
        "unsafe_no_sandbox": options["unsafe_no_sandbox"],
        "cache": False if options["no_cache"] else None,
        "record": options["record"],
    }


def perform_in(
    opened: Mapping[str, Any],
    console: Console,
    work: Callable[[Runtime], Awaitable[Sequence[Status]]],
    *,
    limits: Limits | None = None,
) -> int:
    """Open a runtime, do `work` in it, and make an exit code of how that ended."""

    async def inside() -> int:
        interrupts = Interrupts(on_first=console.print_stopping)
        try:
            with interrupts:
                async with (
                    console.progress.shown(),
                    open_runtime(
                        **opened,
                        limits=limits,
                        person=Person(
                            approve=console.approve, ask=console.ask, choose_model=console.choose
                        ),
                        listeners=Listeners(
                            on_event=console.listen,
                            on_text=partial(console.progress.hear, ROOT_ID),
                            on_child_text=lambda _, agent, text: console.progress.hear(agent, text),
                            on_wait=console.progress.wait,
                        ),
                    ) as runtime,
                ):
                    interrupts.runtime = runtime
                    code = exit_code(await work(runtime))
            console.print_way_back("the model did not answer", opened["directory"])
            return code
        except asyncio.CancelledError:
            if not interrupts.happened:
                raise
            console.print_way_back("interrupted", opened["directory"])
            return 130
        except StoreError:
            console.print_way_back("the journal could not be written", opened["directory"])
            raise

    if console.people:
        settle(opened["directory"], model=opened["model"])
    return perform(inside())
