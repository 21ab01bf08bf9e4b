"""`retinue stats`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script, Start

MIXED = """
rules:
  - match: bad
    steps: [{fail: refused}]
  - match: long
    steps: [{call: list_dir}, {call: list_dir}, {call: list_dir}, {say: Not all.}]
  - match: ""
    steps: [{call: list_dir}, {call: read_file, args: {path: nope}}, {say: Looked.}]
"""


def test_roles_tools_and_models(cli: Cli, script: Script, terminal: Start) -> None:
    model = script(MIXED)
    tasks = ("good one", "good two", "bad", "long")
    assert cli("fan-out", "-q", "-m", model, "--max-turns", "4", *tasks).code == 3
    rows = [json.loads(line) for line in cli("stats", "--json").out.splitlines()]
    by_name = {row["name"]: row for row in rows}
    children = by_name["researcher"]
    assert (children["count"], children["ok"]) == (4, 2)
    assert (children["retries"], children["limits"]) == (1, 1)
    assert children["tokens_in"] > 0
    (kind,) = [json.loads(line) for line in cli("stats", "--by", "kind", "--json").out.splitlines()]
    assert (kind["name"], kind["count"]) == ("program", 1)
    tools = cli("stats", "--by", "tool").out.splitlines()
    listed = {line.split()[0]: line.split()[1:3] for line in tools}
    assert listed["read_file"] == ["2", "0%"]
    assert listed["list_dir"][1] == "100%"
    models = cli("stats", "--by", "model").out
    assert model in models
    # On a terminal, columns without a value leave room for the others.
    shown = terminal("stats", columns=80)
    assert shown.end() == 0
    head, *_ = shown.text.split("\n")
    assert " ".join(head.split()) == "ROLE COUNT SUCCESS TOKENS CACHE TIME RETRIES LIMITS"


def test_an_empty_project(cli: Cli) -> None:
    done = cli("stats")
    assert done.code == 1
    assert "yet; run something first." in done.err
