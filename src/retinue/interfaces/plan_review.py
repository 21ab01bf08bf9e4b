"""A plan before a person: shown, edited in their editor, and agreed to or not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import click

from retinue.domain.grant import Mode
from retinue.domain.plan.plan import Plan
from retinue.domain.plan.plan_file import parse, to_toml
from retinue.errors import PlanError, UsageError
from retinue.interfaces.view.plan_outline import outline
from retinue.runtime.runtime import Runtime

Decide = Callable[[str | Sequence[str], Sequence[str]], Awaitable[str]]
"""Show a text, or lines that may be cut, and have a person choose; answers what they said, in small
letters. A choice may be said by its first letter; the last is meant where they say nothing."""

Edit = Callable[[str], Awaitable[str | None]]
"""What a person makes of a text; None if they leave it as it is."""

RUN, EDIT = ("r", "run", "run it", "y", "yes"), ("e", "edit", "edit it", "edit it again")
FIRST = ("run it", "edit it", "neither")
AGAIN = ("edit it again", "no")


def only_reading(mode: Mode) -> str:
    """What to know before a plan is written in a mode in which no step of it may write."""
    if mode.autonomous:
        return ""
    return f"In {mode} mode the steps of a plan only read; in auto mode they may write."


async def why_not(runtime: Runtime, plan: Plan) -> str:
    """Why a plan that was written cannot be run in this mode, or ""."""
    try:
        await runtime.check(plan)
    except PlanError as error:
        return str(error)
    return ""


async def agreed(runtime: Runtime, plan: Plan, *, decide: Decide, edit: Edit) -> Plan | None:
    """The plan as a person wants it, or None. What they have written stays until it is right."""
    text = to_toml(plan)
    comments: tuple[str, ...] = ()
    while True:
        shown = ["", *outline(plan), "", f"Forecast: {await runtime.forecast(plan)}.", ""]
        obstacle = await why_not(runtime, plan)
        if obstacle:
            shown += [*obstacle.splitlines(), ""]
        answer = await decide(shown, FIRST[1:] if obstacle else FIRST)
        if answer in RUN and not obstacle:
            return plan
        if answer not in EDIT:
            return None
        while True:
            try:
                edited = await edit(_commented(text, comments))
                if edited is None or not _bare(edited):  # Left without saving, or with nothing.
                    break
                text = edited
                plan, comments = await runtime.check(parse(_bare(text))), ()
                break
            except UsageError as error:  # The plan is none, or there is no editor for it.
                if isinstance(error, PlanError):
                    comments = error.problems or (str(error),)
                if await decide(str(error), AGAIN) not in EDIT:
                    break


def edited(text: str) -> str | None:
    """What the person's editor makes of `text`. It has the terminal until this returns."""
    try:
        made: str | None = click.edit(text, extension=".toml")
    except click.ClickException as error:
        raise UsageError(f"{error.format_message()}. Name one that works in EDITOR.") from None
    return made


def _commented(text: str, comments: Sequence[str]) -> str:
    """A plan for the editor, with what is wrong with it on top."""
    return "".join(f"#! {line}\n" for line in comments) + _bare(text) + "\n"


def _bare(text: str) -> str:
    """A plan without what was put on top of it."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("#! ")).strip()
