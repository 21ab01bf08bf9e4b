"""`retinue tools`: lists the built-in tools and those of MCP servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
import msgspec

from retinue.app import Inspection, inspect_tools
from retinue.domain.messages import Effect
from retinue.domain.tool_names import server_slug
from retinue.errors import UsageError
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import directory_option, json_objects_option
from retinue.interfaces.cli.terminal.console import Console
from retinue.interfaces.cli.terminal.output import print_json, print_line, print_text
from retinue.interfaces.view.formatting import one_line
from retinue.ports.tool import Tool

BUILT_IN = "built in"
READ_HINT = (
    'A tool marked "(says: reads)" still needs an approval. To allow it without one, and in plan'
    ' mode, set read = ["TOOL"] (patterns work) or trust_hints = true under [mcp.SERVER] in your'
    " own settings."
)


class ToolRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tool in the list. `says_it_reads` is its server's claim, which gives no rights."""

    name: str
    server: str
    effect: Effect
    tokens: int
    description: str
    says_it_reads: bool = False


class ServerState(msgspec.Struct, frozen=True):
    """The state of an MCP server: ok, failed or not trusted."""

    server: str
    source: str
    state: str
    tools: int = 0
    problem: str = ""


@click.command()
@click.argument("server", required=False)
@directory_option
@json_objects_option
@async_command
async def tools(server: str | None, directory: str, as_json: bool) -> None:
    """List the built-in tools, and start the MCP servers to list theirs.

    With SERVER, list only the tools of that MCP server. Each tool has an effect, such as read or
    write. A server's tool counts as reading only if your settings say so (`read`); a server's own
    claim is shown as (says: reads).

    Example: retinue tools
    """
    progress = Console(as_json=as_json, quiet=False).progress
    async with progress.live():
        found = await inspect_tools(directory, on_wait=progress.on_wait)
    rows, states = _tool_rows(found), _server_states(found)
    if server is not None:
        names = [state.server for state in states]
        if server not in names:
            known = ", ".join(names) or "none"
            raise UsageError(f"Unknown MCP server {server!r}; configured: {known}.")
        rows = [row for row in rows if row.server == server]
        states = [state for state in states if state.server == server]
    if as_json:
        print_json(*rows, *states, *({"problem": problem} for problem in found.problems))
    else:
        _print_list(rows, states, found.problems)


def _tool_rows(found: Inspection) -> list[ToolRow]:
    rows = [_tool_row(tool, BUILT_IN) for tool in found.tools]
    for offer in found.servers:
        rows += [_tool_row(t, offer.server.name, says_it_reads=t.listed.reads) for t in offer.tools]
    return rows


def _tool_row(tool: Tool, server: str, *, says_it_reads: bool = False) -> ToolRow:
    spec = tool.spec
    return ToolRow(
        name=spec.name,
        server=server,
        effect=tool.effect,
        tokens=spec.tokens,
        description=" ".join(spec.description.split()),
        says_it_reads=says_it_reads and tool.effect is not Effect.READ,
    )


def _server_states(found: Inspection) -> list[ServerState]:
    states = []
    for offer in found.servers:
        server, state = offer.server, "failed" if offer.problem else "ok"
        states.append(
            ServerState(server.name, server.source, state, len(offer.tools), offer.problem)
        )
    return states + [
        ServerState(request.name, request.source, "not trusted", problem=request.effect)
        for request in found.untrusted
    ]


def _print_list(
    rows: Sequence[ToolRow], states: Sequence[ServerState], problems: Iterable[str]
) -> None:
    name_width = max((len(row.name) for row in rows), default=0)
    sources = {state.server: f" ({state.source})" for state in states}
    for server in dict.fromkeys(row.server for row in rows):
        group = [row for row in rows if row.server == server]
        tokens = sum(row.tokens for row in group)
        print_line(f"{server}{sources.get(server, '')}: {len(group)} tools, {tokens:,} tokens")
        for row in group:
            claim = "(says: reads) " if row.says_it_reads else ""
            print_line(f"  {row.name.ljust(name_width)}  {row.effect:<8}  {claim}{row.description}")
    if any(row.says_it_reads for row in rows):
        print_text(READ_HINT)
    for state in states:
        name = f"{state.server} ({state.source})"
        if state.state == "failed":
            log = f".retinue/mcp/{server_slug(state.server)}.log"
            print_text(f"{name}: it {one_line(state.problem)}; see {log}")
        elif state.state == "not trusted":
            print_text(f"{name}: not trusted, so not started. It {one_line(state.problem)}.")
            print_text("  To allow it, run: retinue trust")
    for problem in problems:
        print_text(one_line(problem))
