"""Lets a person read a plan, edit it in their editor, and accept or reject it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import click

from retinue.domain.grant import Mode
from retinue.domain.plan.plan import Plan
from retinue.domain.plan.plan_file import parse, to_toml
from retinue.errors import PlanError, UsageError
from retinue.interfaces.view.plan_outline import plan_outline
from retinue.runtime.runtime import Runtime

Decide = Callable[[str | Sequence[str], Sequence[str]], Awaitable[str]]
"""Shows a text, or lines that may be cut, and asks for one of several choices.

Returns the answer in lower case. The first letter of a choice is enough. The last choice is the
default."""

Edit = Callable[[str], Awaitable[str | None]]
"""Lets a person edit a text; None if they do not save it."""

RUN, EDIT = ("r", "run", "run it", "y", "yes"), ("e", "edit", "edit it", "edit it again")
CHOICES = ("run it", "edit it", "neither")
CHOICES_AFTER_ERROR = ("edit it again", "no")


def read_only_note(runtime: Runtime) -> str:
    """A warning that no step of a plan may write; "" if steps may."""
    mode = runtime.mode
    if mode.autonomous or (runtime.attended and mode is Mode.NORMAL):
        return ""
    return f"In {mode} mode the steps of a plan only read; in auto mode they may write."


async def plan_problem(runtime: Runtime, plan: Plan) -> str:
    """Why the plan cannot run in this mode; "" if it can."""
    try:
        await runtime.check(plan)
    except PlanError as error:
        return str(error)
    return ""


async def review_plan(runtime: Runtime, plan: Plan, *, decide: Decide, edit: Edit) -> Plan | None:
    """Show the plan until the person accepts or rejects it; return the accepted plan, or None.

    A text that is not a valid plan is kept, so that the person can correct it.
    """
    text = to_toml(plan)
    comments: tuple[str, ...] = ()
    while True:
        shown = ["", *plan_outline(plan), "", f"Forecast: {await runtime.forecast(plan)}.", ""]
        problem = await plan_problem(runtime, plan)
        if problem:
            shown += [*problem.splitlines(), ""]
        answer = await decide(shown, CHOICES[1:] if problem else CHOICES)
        if answer in RUN and not problem:
            return plan
        if answer not in EDIT:
            return None
        while True:
            try:
                edited = await edit(_with_comments(text, comments))
                if edited is None or not _without_comments(edited):
                    break
                text = edited
                plan, comments = await runtime.check(parse(_without_comments(text))), ()
                break
            except UsageError as error:  # No valid plan, or no editor.
                if isinstance(error, PlanError):
                    comments = error.problems or (str(error),)
                if await decide(str(error), CHOICES_AFTER_ERROR) not in EDIT:
                    break


def open_in_editor(text: str, extension: str = ".toml") -> str | None:
    """Open `text` in the person's editor; None if they do not save it.

    Blocks until the editor closes, which uses the terminal.
    """
    try:
        edited: str | None = click.edit(text, extension=extension)
    except click.ClickException as error:
        raise UsageError(f"{error.format_message()}. Set EDITOR to one that works.") from None
    return edited


def _with_comments(text: str, comments: Sequence[str]) -> str:
    """A plan for the editor, with its problems as comments on top."""
    return "".join(f"#! {line}\n" for line in comments) + _without_comments(text) + "\n"


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("#! ")).strip()
