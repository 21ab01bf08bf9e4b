"""The command that tells which tools there are, and how the MCP servers are."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence

import click
import msgspec

from retinue.app import Inspection, inspect_tools
from retinue.domain.messages import Effect, estimate_tokens
from retinue.domain.tool_names import server_slug
from retinue.errors import UsageError
from retinue.interfaces.cli.commands.agents import MIN_WIDTH, cut, say
from retinue.interfaces.cli.options import directory
from retinue.interfaces.cli.terminal.console import Console, perform
from retinue.ports.tool import Tool

BUILT_IN = "built in"
HINTED = (
    'To let a tool run unasked and in plan mode, put read = ["TOOL"] (patterns will do) or'
    " trust_hints = true under [mcp.SERVER] in your own settings."
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. `says_it_reads` is what its server says, which gives no rights."""

    name: str
    server: str
    effect: Effect
    tokens: int
    description: str
    says_it_reads: bool = False


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is: ok, failed or not trusted."""

    server: str
    source: str
    state: str
    tools: int = 0
    problem: str = ""


@click.command()
@click.argument("server", required=False)
@directory
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def tools(server: str | None, directory: str, as_json: bool) -> None:
    """List the tools there are and what each can do. MCP servers are started to be asked.

    With SERVER, only those of that MCP server. A tool of a server only reads by your word, `read`
    in the settings; what the server says of it is told as (says: reads).

    Example: retinue tools
    """
    progress = Console(as_json=as_json, quiet=False).progress

    async def inside() -> Inspection:
        async with progress.shown():
            return await inspect_tools(directory, on_wait=progress.wait)

    found = perform(inside())
    rows, conditions = _rows(found), _conditions(found)
    if server is not None:
        names = [condition.server for condition in conditions]
        if server not in names:
            known = ", ".join(names) or "none"
            raise UsageError(f"There is no MCP server {server!r}; there are: {known}.")
        rows = [row for row in rows if row.server == server]
        conditions = [condition for condition in conditions if condition.server == server]
    if as_json:
        problems = [{"problem": problem} for problem in found.problems]
        for line in (*rows, *conditions, *problems):
            click.echo(msgspec.json.encode(line))
    else:
        _print(rows, conditions, found.problems)


def _rows(found: Inspection) -> list[Row]:
    rows = [_row(tool, BUILT_IN) for tool in found.tools]
    for one in found.servers:
        rows += [_row(tool, one.server.name, reads=tool.listed.reads) for tool in one.tools]
    return rows


def _row(tool: Tool, server: str, *, reads: bool = False) -> Row:
    spec = tool.spec
    words = estimate_tokens(spec.name + spec.description)
    return Row(
        name=spec.name,
        server=server,
        effect=tool.effect,
        tokens=words + estimate_tokens(bytes(spec.parameters)),
        description=" ".join(spec.description.split()),
        says_it_reads=reads and tool.effect is not Effect.READ,
    )


def _conditions(found: Inspection) -> list[Condition]:
    return [
        *(
            Condition(
                server=one.server.name,
                source=one.server.source,
                state="failed" if one.problem else "ok",
                tools=len(one.tools),
                problem=one.problem,
            )
            for one in found.servers
        ),
        *(
            Condition(
                server=request.name,
                source=request.source,
                state="not trusted",
                problem=request.effect,
            )
            for request in found.untrusted
        ),
    ]


def _print(rows: Sequence[Row], conditions: Sequence[Condition], problems: Iterable[str]) -> None:
    width = max(MIN_WIDTH, shutil.get_terminal_size((100, 24)).columns)
    longest = max((len(row.name) for row in rows), default=0)
    sources = {condition.server: f" ({condition.source})" for condition in conditions}
    for server in dict.fromkeys(row.server for row in rows):
        mine = [row for row in rows if row.server == server]
        tokens = sum(row.tokens for row in mine)
        say(f"{server}{sources.get(server, '')}: {len(mine)} tools, {tokens:,} tokens")
        for row in mine:
            hint = "(says: reads) " if row.says_it_reads else ""
            line = f"  {row.name.ljust(longest)}  {row.effect:<8}  {hint}{row.description}"
            say(cut(line, width))
    if any(row.says_it_reads for row in rows):
        say(HINTED)
    for condition in conditions:
        name = f"{condition.server} ({condition.source})"
        if condition.state == "failed":
            log = f".retinue/mcp/{server_slug(condition.server)}.log"
            say(f"{name}: it {condition.problem}; see {log}")
        elif condition.state == "not trusted":
            say(f"{name}: not trusted, so not started. It {condition.problem}.")
            say("  `retinue trust` allows it.")
    for problem in problems:
        say(problem)
