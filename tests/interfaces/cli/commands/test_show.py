"""`retinue show`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.models.scripted.model import call, say

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script, Serve, Start


TIMING = r"queued \d+\.\ds, first token \d+\.\ds, generating \d+\.\ds"


def test_a_run_is_shown_as_a_tree(cli: Cli, run_id: str) -> None:
    done = cli("show", run_id[:5])
    assert (done.code, done.err) == (0, "")
    head, task, model, root, good, bad, error = done.out.splitlines()
    assert head == f"run {run_id}: error (1 of 2 children failed)"
    assert task == "  2 tasks: task good"
    assert model.startswith("  scripted:script.yaml, mode normal, ")
    assert root.startswith("  a0   root ")
    assert good.startswith("    a1   researcher.1   completed       turn 2/50, 2 tool calls, ")
    assert good.endswith("  task good")
    assert bad.startswith("    a2   researcher.2   error           turn 1/50, 0 tool calls, ")
    assert error.strip() == "No."


MANY = """
rules:
  - match: long
    steps: [{fail: refused, message: "The prompt is longer than the window of the server, which was
      started with room for 4,096 tokens; start it again with more."}]
  - match: bad
    steps: [{fail: refused, message: No.}]
  - match: ""
    steps: [{say: It is **well**.}]
"""


def test_a_large_run_is_folded_and_coloured_on_a_terminal(
    cli: Cli, script: Script, terminal: Start
) -> None:
    tasks = [*(f"task {n}" for n in range(26)), "long", "bad 1", "bad 2", "bad 3"]
    cli("fan-out", "-m", script(MANY), *tasks)
    (run,) = (json.loads(line)["id"] for line in cli("runs", "--json").out.splitlines())
    term = terminal("show")
    assert term.end() == 0
    assert re.sub(r"\d+\.\ds|\d+,\d+ tokens", "N", term.text).splitlines() == [
        f"run {run}: error (4 of 30 children failed)",
        "  30 tasks: task 0",
        "  scripted:script.yaml, mode normal, N, N",
        '  ✗ a0 program 4 of 30 children failed "30 tasks: task 0"',
        '    ✗ a27 researcher.27 "long" (N)',
        "        The prompt is longer than the window of the server, which was started",
        "        with room for N; start it again with more.",
        "    ✗ 3× researcher No. (N)",
        '      ✗ a28 researcher.28 No. "bad 1" (N)',
        '      ✗ a29 researcher.29 No. "bad 2" (N)',
        '      ✗ a30 researcher.30 No. "bad 3" (N)',
        "    ✓ 26× researcher (N)",
        f"`retinue show {run} AGENT` shows one agent, `--all` unfolds the rest.",
    ]
    assert b"\x1b[31m" in term.raw, "failures are red"
    term = terminal("show", "--all")
    assert term.end() == 0
    assert '✓ a26 researcher.26 "task 25" (1 turn, ' in term.text
    assert f"`retinue show {run} AGENT` shows one agent." in term.text
    term = terminal("show", run, "a1", columns=60)
    assert term.end() == 0
    assert "\n\ntask 0\n\nIt is well." in re.sub(r"·.*\n", "", term.text), "rendered"
    term = terminal("show", run, "a27", columns=60)
    assert term.end() == 0
    assert "  Tools: docs_coverage, " in term.text
    assert "recall, remember, search_files" in " ".join(term.text.split()), "whole"
    assert len(cli("show").out.splitlines()) == 3 + 31 + 4, "a pipe gets every agent"


@pytest.mark.parametrize("agent", ["a1", "root/researcher.1"])
def test_an_agent_is_shown_in_full(cli: Cli, run_id: str, agent: str) -> None:
    done = cli("show", run_id, agent)
    assert done.code == 0
    assert done.out.startswith("a1 root/researcher.1: completed\n")
    assert "find_files, " in done.out
    assert "  Limits: 15 tool calls, 50 turns, 65,536 tokens, 300 s\n" in done.out
    for text in ("task good", "Looking.", "→ list_dir {}", "script.yaml", "There is one file."):
        assert text in done.out
    assert "→ rocket {}\n    [DENIED] You have no tool 'rocket'." in done.out


def test_cost_stands_beside_tokens(cli: Cli, serve: Serve, settings: Callable[[str], Path]) -> None:
    server = serve(say("a").using(900_000, 100_000), say("b").using(900_000, 100_000))
    settings("[prices.m]\ninput = 1\noutput = 6\n")
    done = cli("fan-out", "-m", server.model, "one", "two")
    assert "2 of 2 done, 2,000,000 tokens, $3.00; " in done.err
    (run_id,) = re.findall(r"retinue show (\w+)", done.err)
    lines = cli("show", run_id).out.splitlines()
    assert "2,000,000 tokens, $3.00, " in lines[2]
    assert all("1,000,000 tokens, $1.50, " in line for line in lines if "researcher." in line)
    assert "1,000,000 tokens, $1.50, " in cli("show", run_id, "a1").out
    rows = [json.loads(line) for line in cli("tasks", "--json").out.splitlines()]
    assert [row["cost_usd"] for row in rows] == [1.5, 1.5]


def test_show_has_the_timing_of_replies(cli: Cli, serve: Serve) -> None:
    model = serve(call("list_dir", path="."), say("One file.")).model
    done = cli("spawn", "--json", "-m", model, "researcher", "Look.")
    run_id = json.loads(done.out.splitlines()[0])["run_id"]
    tree = cli("show", run_id).out
    assert re.search(rf"^ +a1 .*  Look\.\n +{TIMING}$", tree, re.MULTILINE)
    page = cli("show", run_id, "a1").out
    assert re.search(rf"^· turn 1: {TIMING}\n→ list_dir", page, re.MULTILINE)
    assert re.search(rf"^· turn 2: {TIMING}\nOne file\.$", page, re.MULTILINE)
    assert "Answered by" not in page


def test_show_names_the_model_of_a_pool_that_answered(
    cli: Cli, serve: Serve, tmp_path: Path
) -> None:
    model = serve(say("Me.")).model
    settings = tmp_path / ".config" / "retinue" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'[pools.smart]\nendpoints = ["{model}"]\n')
    done = cli("spawn", "--json", "-m", "smart", "researcher", "Who?")
    run_id = json.loads(done.out.splitlines()[0])["run_id"]
    page = cli("show", run_id, "a1").out
    assert f"\n  Answered by: {model}\n" in page
    assert re.search(rf"^· turn 1: {TIMING} \({re.escape(model)}\)$", page, re.MULTILINE)


def test_events_are_shown_as_json(cli: Cli, run_id: str) -> None:
    events = [json.loads(line) for line in cli("show", "--json", run_id).out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert {event["agent_id"] for event in events} == {"a0", "a1", "a2"}
    only = [json.loads(line) for line in cli("show", "--json", run_id, "a1").out.splitlines()]
    assert only == [event for event in events if event["agent_id"] == "a1"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("show", "zzzz"), "No run 'zzzz' in {db}; `retinue runs` lists them."),
        (("audit", "zzzz"), "No run 'zzzz' in {db}; `retinue runs` lists them."),
    ],
)
def test_unknown_run_is_an_error(
    cli: Cli, run_id: str, project: Path, command: tuple[str, ...], message: str
) -> None:
    done = cli(*command)
    db = project / ".retinue" / "retinue.db"
    assert done == (2, "", f"retinue: {message.format(db=db)}\n")


def test_unknown_agent_is_an_error(cli: Cli, run_id: str) -> None:
    done = cli("show", run_id, "a9")
    assert done == (
        2,
        "",
        f"retinue: No agent 'a9' in run {run_id}; there are: a0 (root), a1 (root/researcher.1),"
        " a2 (root/researcher.2).\n",
    )


def test_show_names_the_continued_run_and_changed_files(cli: Cli, script: Script) -> None:
    model = script(
        """
        steps:
          - {call: write_file, args: {path: a.txt, content: "1\\n2\\n"}}
          - {call: write_file, args: {path: a.txt, content: "1\\n2\\n3\\n"}}
          - say: One.
        """
    )
    cli("run", "-q", "--mode", "auto", "-m", model, "Write")
    cli("run", "-q", "-c", "-m", script("steps: [{say: Two.}]"), "Go on")
    second, first = (json.loads(line)["id"] for line in cli("runs", "--json").out.splitlines())
    assert f"\n  continues {first}, in session {first}\n" in cli("show", second).out
    assert "\n  Files modified: a.txt (+3 lines, new file)\n" in cli("show", first).out


@pytest.mark.parametrize("command", [("show", "RUN"), ("show", "RUN", "a0"), ("runs",), ("tasks",)])
def test_control_characters_are_left_out(
    cli: Cli, script: Script, terminal: Start, command: tuple[str, ...]
) -> None:
    evil = "\x1b]0;mine\x07\x1b[31m"
    model = script(f"steps: [{{say: {json.dumps(evil + 'said')}}}]")
    cli("run", "-q", "-m", model, f"{evil}asked")
    run = json.loads(cli("runs", "--json").out)["id"]
    term = terminal(*(run if word == "RUN" else word for word in command), columns=120)
    assert term.end() == 0
    assert b"\x1b]" not in term.raw
    assert b"\x1b[31m" not in term.raw
    assert "asked" in term.text or command == ("tasks",)
