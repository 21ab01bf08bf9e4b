"""`retinue mcp`: an MCP server, so that other agents can use retinue's children."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from retinue.interfaces.cli.options import runtime_options
from retinue.interfaces.mcp_server.client_config import CLIENTS, client_config

if TYPE_CHECKING:
    from retinue.ports.person import Listeners, Person
    from retinue.runtime.runtime import Runtime

DEFAULT_ROLE = "general"


@click.command()
@click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="ROLE",
    help="Allow only this role. Can be repeated. The first one is the default.",
)
@click.option(
    "--print-config",
    "client",
    type=click.Choice(CLIENTS),
    help="Print what to paste into the client's configuration, and exit.",
)
@runtime_options
def mcp(roles: tuple[str, ...], client: str | None, **options: Any) -> None:
    """Serve MCP on standard input and output, so that another agent can delegate work to children.

    Mode, budget, roles and directory are what you allow here and in your settings. The client can
    ask for less, never for more. The budget holds for the whole connection.

    Example: retinue mcp --print-config claude

    Example: retinue mcp --mode auto --max-tokens 500000 -C ~/project
    """
    if client is not None:
        directory = os.path.abspath(options["directory"])
        click.echo(client_config(client, [] if options["directory"] == "." else ["-C", directory]))
        return
    from retinue.interfaces.cli.event_loop import run_async
    from retinue.interfaces.cli.terminal.standard_streams import take_output

    run_async(_serve(take_output(), roles, options))


async def _serve(output: int, roles: tuple[str, ...], options: dict[str, Any]) -> None:
    from retinue.interfaces.cli.terminal.interrupts import Interrupts
    from retinue.interfaces.json_rpc import LineReader
    from retinue.interfaces.mcp_server.server import McpServer

    open_runtime = partial(_open_runtime, roles, options)
    with Interrupts() as interrupts:
        default = next(iter(roles), DEFAULT_ROLE)
        server = McpServer(open_runtime, options["directory"], default_role=default)
        await server.serve(LineReader(0), output, interrupts)


def _open_runtime(
    roles: tuple[str, ...], options: dict[str, Any], person: Person, listeners: Listeners
) -> AbstractAsyncContextManager[Runtime]:
    # Imported with the first call of a tool: the client waits for the list of tools before.
    from retinue.app import open_runtime
    from retinue.interfaces.cli.invocation import runtime_arguments
    from retinue.interfaces.cli.options import given_limits

    return open_runtime(
        **runtime_arguments(options),
        limits=given_limits(options),
        roles=roles or None,
        person=person,
        listeners=listeners,
    )
