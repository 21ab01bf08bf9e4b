"""`retinue stats`."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

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


def test_projects_are_compared(cli: Cli, script: Script, project: Path, tmp_path: Path) -> None:
    model = script(MIXED)
    for name, tasks in (("other", ("good", "bad")), ("damaged", ("good",)), ("gone", ("good",))):
        (tmp_path / name).mkdir()
        shutil.copy(project / "script.yaml", tmp_path / name)
        cli("fan-out", "-q", "-C", str(tmp_path / name), "-m", model, *tasks)
    (tmp_path / "damaged" / ".retinue" / "retinue.db").write_bytes(b"no database" * 1_000)
    shutil.rmtree(tmp_path / "gone")
    cli("run", "-q", "-m", model, "good")
    rows = [json.loads(line) for line in cli("stats", "--by", "project", "--json").out.splitlines()]
    found = {row["name"]: (row["count"], row.get("ok", 0)) for row in rows}
    assert found == {str(project): (1, 1), str(tmp_path / "other"): (3, 1)}
