"""`retinue tools`, with real MCP servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.tools.builtin import builtin_tools

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli


PROGRAM = Path(__file__).parents[3] / "tools" / "mcp" / "programs" / "server.py"


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def servers(tmp_path: Path, project: Path) -> None:
    """One that works and one that does not, of the user's; and one of the project's."""
    settings = tmp_path / ".config" / "retinue" / "config.toml"
    settings.parent.mkdir(parents=True)
    args = json.dumps(["-I", "-S", str(PROGRAM)])
    settings.write_text(
        f'[mcp.good]\ncommand = "{sys.executable}"\nargs = {args}\n'
        'tools = ["act", "echo", "pid"]\nread = ["pid"]\n'
        '[mcp.bad]\ncommand = "no-such-command"\n'
        '[mcp.unset]\ncommand = "x"\nenv = { A = "${UNSET}" }\n'
    )
    entry = {"theirs": {"command": "their-server", "args": ["x"]}}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": entry}))


@pytest.mark.usefixtures("servers")
def test_tools_and_servers_are_listed(cli: Cli) -> None:
    done = cli("tools")
    told = "  starting MCP servers to see what they offer: bad, good\n"
    assert (done.code, done.err) == (0, told)
    lines = done.out.splitlines()
    assert lines[0].startswith(f"built in: {len(builtin_tools())} tools, ")
    assert "  list_dir         read      List a directory." in lines
    start = next(n for n, line in enumerate(lines) if line.startswith("good"))
    assert lines[start:] == [
        "good (settings): 3 tools, 69 tokens",
        "  mcp__good__act   external  act of version 1",
        "  mcp__good__echo  external  (says: reads) echo of version 1",
        "  mcp__good__pid   read      pid of version 1",
        'A tool marked "(says: reads)" still needs an approval. To allow it without one, and in'
        ' plan mode, set read = ["TOOL"] (patterns work) or trust_hints = true under [mcp.SERVER]'
        " in your own settings.",
        "bad (settings): it cannot be started: there is no command 'no-such-command'; see"
        " .retinue/mcp/bad.log",
        "theirs (.mcp.json): not trusted, so not started. It starts their-server x in the"
        " sandbox, without network.",
        "  To allow it, run: retinue trust",
        "without the MCP server unset (settings): it needs the variable UNSET, which is not set",
    ]


@pytest.mark.usefixtures("servers")
def test_one_server_as_json(cli: Cli) -> None:
    rows = [json.loads(line) for line in cli("tools", "good", "--json").out.splitlines()]
    assert [row.get("name", row.get("state")) for row in rows[:4]] == [
        "mcp__good__act", "mcp__good__echo", "mcp__good__pid", "ok",
    ]  # fmt: skip
    assert rows[1] == {
        "name": "mcp__good__echo",
        "server": "good",
        "effect": "external",
        "tokens": 23,
        "description": "echo of version 1",
        "says_it_reads": True,
    }
    conditions = [json.loads(line) for line in cli("tools", "--json").out.splitlines()]
    conditions = conditions[len(builtin_tools()) + 3 :]
    assert [(row["server"], row["state"]) for row in conditions[:3]] == [
        ("bad", "failed"), ("good", "ok"), ("theirs", "not trusted"),
    ]  # fmt: skip
    assert conditions[3] == {
        "problem": "without the MCP server unset (settings): it needs the variable UNSET, which is"
        " not set"
    }


@pytest.mark.usefixtures("servers")
def test_unknown_server_is_an_error(cli: Cli) -> None:
    assert cli("tools", "goood") == (
        2,
        "",
        "  starting MCP servers to see what they offer: bad, good\n"
        "retinue: Unknown MCP server 'goood'; configured: bad, good, theirs.\n",
    )


def test_no_servers(cli: Cli) -> None:
    done = cli("tools")
    assert done.out.count("\n") == 1 + len(builtin_tools())
    assert cli("tools", "x").err == "retinue: Unknown MCP server 'x'; configured: none.\n"
