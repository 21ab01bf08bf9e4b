"""Turns the options of a command into a console and an open runtime."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click
import msgspec

from retinue.app import open_runtime
from retinue.config.environment import Environment
from retinue.config.project_permissions import MCP_SERVER, project_permissions
from retinue.config.settings_file import load_settings
from retinue.config.trust import TrustStore
from retinue.domain.result import Status
from retinue.errors import RunSuspended, StoreError, TakenOver, UnknownRun, UsageError
from retinue.interfaces.cli.event_loop import run_async
from retinue.interfaces.cli.exit_codes import exit_code
from retinue.interfaces.cli.model_setup import choose_model_if_none
from retinue.interfaces.cli.options import given_limits, given_sampling
from retinue.interfaces.cli.recorded_command import RepeatedCommand, record_command
from retinue.interfaces.cli.terminal.console import Console
from retinue.interfaces.cli.terminal.interrupts import Interrupts
from retinue.interfaces.cli.terminal.log_lines import Level, LogLines
from retinue.interfaces.cli.terminal.output import print_error, print_wrapped
from retinue.project import open_journal, project_root
from retinue.runtime.history.session import LAST
from retinue.runtime.runtime import Runtime

TASK_FIELDS = ("context_files", "tools", "write", "workspace", "network", "checks", "on_conflict")


def given_task_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a child's task that were given on the command line."""
    # An option that was not repeated at all is (), which as a task's field would mean "none".
    fields = {name: options[name] for name in TASK_FIELDS if options[name]}
    # The sampling of a task counts for more than that of its role.
    return given_limits(options).given() | fields | {"sampling": given_sampling(options)}


def chosen_session(continue_last: bool, session: str | None) -> str | None:
    """The session that -c or -r continues."""
    if continue_last and session is not None:
        raise UsageError(f"-c continues the last session, -r {session} another; use one of them.")
    return LAST if continue_last else session


def runtime_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `open_runtime` that every command with `runtime_options` has."""
    return {
        "directory": options["directory"],
        "model": options["model"],
        "mode": options["mode"],
        "unsafe_no_sandbox": options["unsafe_no_sandbox"],
        "unsafe_writable_install": options["unsafe_writable_install"],
        "cache": False if options["no_cache"] else None,
        "record": options["record"],
        "web_hosts": options["web_hosts"] or None,
        "budget": options["budget"],
        "cluster": options["cluster"],
        "sampling": given_sampling(options),
    }


def run_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Like `runtime_arguments`, with the limits and checks for the whole run."""
    return runtime_arguments(options) | {
        "limits": given_limits(options),
        "checks": options["checks"],
        "on_conflict": options["on_conflict"],
    }


def run_in_runtime(
    options: Mapping[str, Any],
    arguments: Mapping[str, Any],
    work: Callable[[Runtime, Console], Awaitable[Sequence[Status]]],
) -> int:
    """Open a runtime with `arguments`, do `work` in it, and return the exit code."""
    repeated = click.get_current_context().find_object(RepeatedCommand)
    if repeated is not None:
        arguments = {**arguments, **repeated.arguments}
        options = {**options, "directory": arguments["directory"]}
    directory = options["directory"]
    settings = load_settings(Environment.current(), project_root(directory)).merged
    console = Console(
        as_json=options["as_json"],
        quiet=options["quiet"],
        only_result=options.get("result_format") == "json",
        settings=settings,
        log=_log(options),
    )

    async def inside() -> int:
        try:
            with Interrupts(on_first=console.print_stopping) as interrupts:
                async with (
                    console.progress.live(),
                    open_runtime(
                        **arguments,
                        person=console.person,
                        listeners=msgspec.structs.replace(
                            console.listeners, on_stop=lambda _: interrupts.interrupt() is None
                        ),
                    ) as runtime,
                ):
                    interrupts.runtime = runtime
                    console.progress.loads = lambda: runtime.loads
                    console.on_terminal_closed(interrupts.interrupt)
                    code = exit_code(await work(runtime, console))
                # After the last event of a run that ends with its runtime.
                console.print_output()
                return code
            await print_resume_hints(console, "interrupted", directory)
            return 130
        except RunSuspended as error:
            console.print_suspended(error)
            await print_resume_hints(console, "the run is suspended", directory)
            return 1
        except TakenOver:
            raise  # To resume the run is not for this process any more.
        except StoreError:
            await print_resume_hints(console, "the journal could not be written", directory)
            raise

    if console.interactive:
        ask_for_trust(directory, model=arguments["model"])
        arguments = {**arguments, "model": choose_model_if_none(directory, arguments["model"])}
    code = run_async(inside())
    if (record := arguments.get("record")) is not None and code != 130:
        record_command(project_root(directory), record, code)
    return code


def _log(options: Mapping[str, Any]) -> LogLines | None:
    """The log that --log-format asks for."""
    chosen = options.get("log_format")
    if chosen is None:
        return None
    if options["as_json"]:
        raise UsageError("--json prints the events; --log-format is for runs without it.")
    return LogLines(as_json=chosen == "json", level=Level[options["log_level"].upper()])


async def print_resume_hints(console: Console, reason: str, directory: str) -> None:
    """Print how to resume each run that has no outcome, if the journal has the run."""
    on_record = []
    if console.unfinished:
        with suppress(StoreError):
            async with open_journal(directory) as store:
                for run_id in console.unfinished:
                    with suppress(UnknownRun):
                        on_record.append((await store.run(run_id)).id)
    console.print_resume_hints(reason, on_record, directory)


def ask_for_trust(directory: str, *, model: str | None) -> None:
    """Ask about what the project demands and the user has not decided on; store the answer."""
    root, environment = project_root(directory), Environment.current()
    layers = load_settings(environment, root)
    found = project_permissions(layers, root, environment, model_is_chosen=model is not None)
    if not found.pending:
        return
    print_error(f"The project in {root} asks to use:")
    for request in found.pending:
        print_wrapped(f"  {request}", hanging=2, err=True)
    if any(request.kind == MCP_SERVER for request in found.pending):
        click.echo("In the sandbox, a program reads the project and writes nothing.", err=True)
    question = "Do you trust it? [y]es, [N]o, ne[v]er"
    answer = click.prompt(question, default="n", show_default=False, err=True).strip().lower()
    trust = TrustStore(environment.trust_dir)
    if answer in ("y", "yes"):
        granted = [request for request in found.requests if request not in found.denied]
        trust.grant(root, [*granted, *found.pending], now=time.time())
    elif answer in ("v", "never"):
        trust.refuse(root, found.pending, now=time.time())
