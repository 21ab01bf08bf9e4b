"""`retinue fork`: a new run starts from a moment of another one."""

from __future__ import annotations

import asyncio
from typing import Any

import click
import msgspec

from retinue.domain.agent_state import ROOT_ID
from retinue.domain.budget import LIMIT_NAMES, Limits
from retinue.domain.result import Status
from retinue.errors import UsageError
from retinue.interfaces.cli.invocation import run_arguments, run_in_runtime
from retinue.interfaces.cli.options import (
    agent_argument,
    given_limits,
    run_argument,
    run_options,
)
from retinue.interfaces.cli.terminal.console import Console
from retinue.interfaces.cli.terminal.output import print_error
from retinue.project import open_journal
from retinue.runtime.history.recovery import recorded_options
from retinue.runtime.runtime import Runtime


@click.command()
@run_argument
@agent_argument
@click.option("--at", metavar="SEQ|TURN", help="An event, such as 42, or t3 for the end of turn 3.")
@click.option("--tell", metavar="TEXT", default="", help="A message for the agent.")
@click.option("--new-budget", is_flag=True, help="Start with full limits, not with what was left.")
@click.option(
    "--contract",
    "terms",
    multiple=True,
    metavar="KEY=VALUE",
    help="A limit, such as max_turns=5, or tools=read_file,grep. Can be repeated.",
)
@run_options
def fork(
    run: str,
    agent: str | None,
    at: str | None,
    tell: str,
    new_budget: bool,
    terms: tuple[str, ...],
    **options: Any,
) -> int:
    """Start a new run from a moment of RUN, with the same conversation.

    With AGENT, such as a2, continue this agent of RUN instead of the first one. Without --at, the
    fork starts at the last moment that can be forked. The fork works in a copy of the files as they
    were then. RUN and your own files stay as they are: `retinue diff` shows the changes of the
    fork, and `retinue redo FORK a0` applies them. Model, mode and limits are those of the agent,
    unless options say otherwise.

    Example: retinue fork k3f9 --at t2 --tell "Use a dictionary instead"
    """
    agent = agent or ROOT_ID
    recorded = asyncio.run(_recorded(options["directory"], run, agent))
    if options["context_files"]:
        raise UsageError("A fork takes no files with -f; name them in --tell.")
    limits, tools = _contract(terms, given_limits(options))

    async def work(runtime: Runtime, console: Console) -> list[Status]:
        result = await runtime.fork(
            run, agent, at=at, tell=tell, limits=limits, new_budget=new_budget, tools=tools
        )
        console.print_result(result)
        if result.kept and not (console.as_json or console.quiet):
            print_error(
                f"The fork worked in a copy: `retinue diff {result.id}` shows its changes, `retinue"
                f" redo {result.id} {ROOT_ID}` applies them."
            )
        return [result.status, *(failure.status for failure in result.failures)]

    arguments = run_arguments(options)
    for name, value in recorded.items():
        arguments[name] = arguments[name] or value
    return run_in_runtime(options, arguments, work)


def _contract(terms: tuple[str, ...], limits: Limits) -> tuple[Limits, list[str] | None]:
    """The limits and the tools that `--contract` names, over the given limits."""
    given = dict(term.partition("=")[::2] for term in terms)
    tools = given.pop("tools", None)
    for name, value in given.items():
        if name not in LIMIT_NAMES:
            known = ", ".join((*LIMIT_NAMES, "tools"))
            raise UsageError(f"Unknown key {name!r} in --contract; there are: {known}.")
        try:
            chosen = msgspec.convert({name: value}, Limits, strict=False)
        except msgspec.ValidationError:
            raise UsageError(
                f"--contract {name} needs a number, as in {name}=10; this is {value!r}."
            ) from None
        limits = msgspec.structs.replace(limits, **chosen.given())
    return limits, None if tools is None else tools.split(",")


async def _recorded(directory: str, run: str, agent: str) -> dict[str, Any]:
    async with open_journal(directory) as store:
        return await recorded_options(store, await store.run(run), agent)
