"""Sessions: `run -c` and `run -r`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script
from retinue.testing.server import Response, ResponseEnding

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Program, Script, Serve


HANG = Response(ending=ResponseEnding.HANG)


def run_id(cli: Cli) -> str:
    (row,) = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    return str(row["id"])


COUNT = """
rules:
  - match: "child"
    steps: [{say: Counted.}]
  - match: "count"
    steps: [{say: One.}, {say: Two.}, {say: Three.}]
"""


def rows(cli: Cli) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cli("runs", "--json").out.splitlines()]


def test_continue_uses_the_last_session(cli: Cli, script: Script) -> None:
    model = script(COUNT)
    assert cli("run", "-q", "-m", model, "count") == (0, "One.\n", "")
    assert cli("run", "-q", "-c", "-m", model, "and") == (0, "Two.\n", "")
    # A fan-out is no conversation, so it cannot be continued.
    assert cli("spawn", "-q", "researcher", "-m", model, "child").code == 0
    assert cli("fan-out", "-q", "-m", model, "child", "child two").code == 0
    assert cli("run", "-q", "--continue", "-m", model, "more") == (0, "Three.\n", "")
    last, fan, spawn, second, first = rows(cli)
    assert {row["session"] for row in (first, second, last)} == {first["id"]}
    assert (fan["session"], spawn["session"]) == (None, None)
    listed = [line.split()[1] for line in cli("runs").out.splitlines()]
    assert listed == [first["id"], "-", "-", first["id"], first["id"]]
    for row in rows(cli):
        assert cli("audit", row["id"]).code == 0


def test_resume_option_takes_the_first_letters_of_any_run(cli: Cli, script: Script) -> None:
    model = script(COUNT)
    cli("run", "-q", "-m", model, "count")
    cli("run", "-q", "-c", "-m", model, "and")
    second, first = rows(cli)
    cli("run", "-q", "-m", model, "count anew")
    assert cli("run", "-q", "-r", second["id"][:6], "-m", model, "more").out == "Three.\n"
    assert rows(cli)[0]["session"] == first["id"]


def test_unknown_session_is_an_error(cli: Cli, script: Script, project: Path) -> None:
    model = script(COUNT)
    begin = "There is no session to continue yet; `retinue run` starts one."
    assert cli("run", "-c", "-m", model, "x") == (2, "", f"retinue: {begin}\n")
    db = project / ".retinue" / "retinue.db"
    assert cli("run", "-r", "zz", "-m", model, "x") == (
        2,
        "",
        f"retinue: No run 'zz' in {db}; `retinue runs` lists them.\n",
    )
    cli("spawn", "researcher", "-m", model, "child")
    (row,) = rows(cli)
    assert cli("run", "-r", row["id"], "-m", model, "x") == (
        2,
        "",
        f"retinue: Run {row['id']} does not belong to a session: a program led it (spawn, fan-out),"
        " not a model; `retinue runs` lists the runs that do.\n",
    )


def test_ambiguous_session_is_an_error(cli: Cli, script: Script) -> None:
    model = script(COUNT)
    beginnings: dict[str, int] = {}
    # A letter of 31: after so many runs two begin alike.
    while 2 not in beginnings.values():
        cli("run", "-q", "-m", model, "count")
        first = rows(cli)[0]["id"][0]
        beginnings[first] = beginnings.get(first, 0) + 1
    twice = next(letter for letter, count in beginnings.items() if count == 2)
    assert cli("run", "-r", twice, "-m", model, "x") == (
        2,
        "",
        f"retinue: '{twice}' is the beginning of several run ids; type more of it.\n",
    )


@pytest.mark.parametrize("options", [("-c", "-r", "k3f9"), ("-r", "k3f9", "--continue")])
def test_continue_and_resume_exclude_each_other(cli: Cli, options: tuple[str, ...]) -> None:
    assert cli("run", *options, "x") == (
        2,
        "",
        "retinue: -c continues the last session, -r k3f9 another; use one of them.\n",
    )


def test_session_of_another_process_cannot_be_continued(
    cli: Cli, serve: Serve, program: Program
) -> None:
    server = serve(HANG)
    process = program("run", "-q", "x", "-m", server.model)
    server.received(1)
    run = run_id(cli)
    done = cli("run", "-q", "-c", "y", "-m", server.model)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"retinue: The session is still at work, in run {run}; wait for it")
    process.kill()
    process.communicate()
