"""`retinue race`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.models.scripted.model import call, say

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script, Serve

SCRIPT = """
rules:
  - match: You are short
    steps: [{call: write_file, args: {path: a.txt, content: "fixed\\n"}}, {say: Short.}]
  - match: You are long
    steps: [{call: write_file, args: {path: a.txt, content: "fixed\\nfixed\\n"}}, {say: Long.}]
"""
OPTIONS = ("--mode", "auto", "--unsafe-no-sandbox", "--check", "grep -q fixed a.txt")
PROMPTS = ("--with", "@long.md,@short.md")


@pytest.fixture(autouse=True)
def repository(project: Path) -> None:
    for name in ("short", "long"):
        (project / f"{name}.md").write_text(f"You are {name}.")
    (project / "a.txt").write_text("broken\n")
    commit = "-c user.name=u -c user.email=u@example.org commit -qm x"
    for arguments in ("init -q", "add -A", commit):
        subprocess.run(["git", *arguments.split()], cwd=project, check=True)


def test_the_winner_is_printed_and_another_can_be_chosen(
    cli: Cli, script: Script, project: Path
) -> None:
    done = cli("race", "-m", script(SCRIPT), *OPTIONS, *PROMPTS, "Fix a.txt.")
    assert done.code == 0, done.err
    lines = done.out.split("\n\n")
    assert lines[0] == "Short."
    assert lines[1].startswith("a1 executor: passed, kept; 3 changed lines, ")
    assert lines[2].startswith("a2 executor: won; 2 changed lines, ")
    assert done.err.startswith("Forecast: about ")
    assert "2 of 2 passed, " in done.err
    assert "To choose another: retinue undo " in done.err
    assert (project / "a.txt").read_text() == "fixed\n"
    (run,) = (json.loads(line)["id"] for line in cli("runs", "--json").out.splitlines())
    assert "+fixed\n+fixed\n" in cli("diff", run).out
    assert "  Files modified: a.txt (+1/-1 lines)\n" in cli("show", run).out
    assert cli("undo", run, "a2").code == 0
    assert cli("redo", run, "a1").code == 0
    assert (project / "a.txt").read_text() == "fixed\nfixed\n"
    assert cli("audit", run).code == 0


def test_output_is_that_of_the_winner(cli: Cli, script: Script) -> None:
    done = cli("race", "-m", script(SCRIPT), *OPTIONS, *PROMPTS, "--output", "json", "Fix a.txt.")
    found = json.loads(done.out)
    assert (found["status"], found["answer"]) == ("completed", "Short.")
    assert len(found["children"]) == 2


def test_a_race_without_a_winner_fails(cli: Cli, script: Script, project: Path) -> None:
    options = [*OPTIONS[:-1], "false"]
    done = cli("race", "-m", script(SCRIPT), *options, *PROMPTS, "--first", "Fix a.txt.")
    assert done.code == 1
    assert "none of 2 candidates passed its checks" in done.err
    assert (project / "a.txt").read_text() == "broken\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("--times", "1", *OPTIONS),
            "A race needs at least two candidates; there is 1. Name more (--with), or let one take"
            " part several times (--times).",
        ),
        ((*OPTIONS[:3], "--times", "2"), "A race needs checks, which decide it first: --check"),
        ((*OPTIONS, "--with", "@no.md"), "no.md cannot be read"),
        ((*OPTIONS, "--times", "2", "--max-tokens", "0"), "max_tokens must be positive"),
    ],
)
def test_refused(cli: Cli, script: Script, arguments: tuple[str, ...], problem: str) -> None:
    done = cli("race", "-m", script(SCRIPT), *arguments, "Fix a.txt.")
    assert done.code == 2
    assert problem in done.err


def test_a_misspelt_role_is_not_raced_as_a_model(cli: Cli, serve: Serve) -> None:
    server = serve()
    done = cli("race", "-m", server.model, *OPTIONS, "--with", "n,excutor", "Fix a.txt.")
    assert (done.code, server.requests) == (2, [])
    assert done.err == (
        "retinue: --with excutor: there is no role 'excutor'. Did you mean 'executor'? For a model"
        " of that name, write its provider too, as in openai:excutor.\n"
    )


def test_candidates_with_different_models_are_told_apart(
    cli: Cli, serve: Serve, settings: Callable[[str], Path]
) -> None:
    fast, smart = (
        serve(call("write_file", path="a.txt", content="fixed\n" * lines), say("Done."))
        for lines in (2, 1)
    )
    named = {"fast": fast, "smart": smart}
    urls = {name: server.model.partition("@")[2] for name, server in named.items()}
    lines = [f'{name} = "openai:{name}@{url}"' for name, url in urls.items()]
    settings("\n".join(["[models]", *lines]))
    done = cli("race", *OPTIONS, "--with", "fast,smart", "Fix a.txt.")
    assert done.code == 0, done.err
    lines = done.out.split("\n\n")
    assert lines[1].startswith("a1 executor with fast: passed, kept; 3 changed lines, ")
    assert lines[2].startswith("a2 executor with smart: won; 2 changed lines, ")
    (run,) = (json.loads(line)["id"] for line in cli("runs", "--json").out.splitlines())
    first, second = (line for line in cli("show", run).out.splitlines() if "executor" in line)
    assert first.endswith(", with fast  Fix a.txt.")
    assert second.endswith(", with smart, won the race  Fix a.txt.")
