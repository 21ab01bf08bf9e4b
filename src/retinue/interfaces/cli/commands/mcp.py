"""`retinue mcp`: an MCP server, so that other agents can use retinue's children."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from retinue.interfaces.cli.options import runtime_options
from retinue.interfaces.mcp_server.client_config import CLIENTS, http_config, stdio_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from retinue.interfaces.mcp_server.requests import McpRequests
    from retinue.ports.person import Listeners, Person
    from retinue.runtime.core.task_group import TaskGroup
    from retinue.runtime.runtime import Runtime

    NewRequests = Callable[[TaskGroup], McpRequests]

DEFAULT_PORT = 8422


@click.command()
@click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="ROLE",
    help="Allow only this role. Can be repeated. The first one is the default.",
)
@click.option(
    "--http",
    "port",
    is_flag=False,
    flag_value=DEFAULT_PORT,
    type=click.IntRange(0, 65_535),
    metavar="[PORT]",
    help=f"Serve HTTP on this machine instead, for any number of clients.  [port: {DEFAULT_PORT}]",
)
@click.option(
    "--print-config",
    "client",
    type=click.Choice(CLIENTS),
    help="Print what to paste into the client's configuration, and exit.",
)
@runtime_options
def mcp(roles: tuple[str, ...], port: int | None, client: str | None, **options: Any) -> None:
    """Serve MCP on standard input and output, so that another agent can delegate work to children.

    Mode, budget, roles and directory are what you allow here and in your settings. The client can
    ask for less, never for more. The budget holds for the whole connection; with --http, for all
    clients together.

    Example: retinue mcp --print-config claude

    Example: retinue mcp --mode auto --max-tokens 500000 -C ~/project

    Example: retinue mcp --http 8422
    """
    if client is not None:
        click.echo(_config(client, port, options["directory"]))
        return
    from retinue.interfaces.cli.event_loop import run_async
    from retinue.interfaces.mcp_server.requests import McpRequests

    new_requests = partial(
        McpRequests,
        open_runtime=partial(_open_runtime, roles, options),
        directory=options["directory"],
        roles=roles,
        attended=port is not None,
    )
    if port is not None:
        run_async(_serve_http(new_requests, options["directory"], port))
        return
    from retinue.interfaces.cli.terminal.standard_streams import take_output

    run_async(_serve_stdio(new_requests, take_output()))


def _config(client: str, port: int | None, directory: str) -> str:
    if port is None:
        return stdio_config(client, _given_arguments())
    if port == 0:
        raise click.UsageError("--print-config needs the port: --http PORT")
    return http_config(client, _url(port), _token(directory, port))


def _given_arguments() -> list[str]:
    """The options of this command line, for a client that starts the server with them."""
    context = click.get_current_context()
    arguments: list[str] = []
    for option in context.command.params:
        name = option.name or ""
        value: Any = context.params.get(name)
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not given or name in ("client", "port") or not isinstance(option, click.Option):
            continue
        if name == "directory":
            value = os.path.abspath(value)
        if option.is_flag:
            arguments.append(option.opts[0])
        else:
            for item in value if option.multiple else [value]:
                arguments += [option.opts[0], str(item)]
    return arguments


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}/mcp"


def _token(directory: str, port: int) -> str:
    """The token of a server: the same after a restart, since it is in files of clients."""
    import secrets

    from retinue.config.environment import Environment
    from retinue.config.user_key import UserKey
    from retinue.project import project_root

    key = UserKey(Environment.current().key_file)
    return key.sign(f"mcp {project_root(directory)} {port}") or secrets.token_hex()


async def _serve_stdio(new_requests: NewRequests, output: int) -> None:
    from retinue.interfaces.cli.terminal.interrupts import Interrupts
    from retinue.interfaces.json_rpc import LineReader
    from retinue.interfaces.mcp_server.stdio_server import StdioServer

    with Interrupts() as interrupts:
        await StdioServer(new_requests).serve(LineReader(0), output, interrupts)


async def _serve_http(new_requests: NewRequests, directory: str, port: int) -> None:
    from retinue.extras import require
    from retinue.interfaces.cli.terminal.interrupts import Interrupts
    from retinue.interfaces.cli.terminal.output import print_line
    from retinue.interfaces.web.service import Address, listen

    require("mcp", "The MCP server over HTTP")
    from retinue.interfaces.mcp_server.http_server import HttpServer

    with Interrupts() as interrupts, listen(Address(port=port), "--http PORT") as listener:
        port = listener.getsockname()[1]
        token = _token(directory, port)
        print_line(f"Serving {_url(port)}")
        print_line(f"Token: {token}")
        await HttpServer(new_requests, token).serve(listener, interrupts)


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
