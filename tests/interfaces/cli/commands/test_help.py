"""`retinue help`: that it is short, and true."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from retinue.interfaces.cli.commands.demo import copy_tree, demo_files
from retinue.interfaces.cli.exit_codes import EXIT_CODES
from retinue.interfaces.cli.help_topics import TOPICS, text_of
from retinue.interfaces.cli.main import COMMANDS
from retinue.models.scripted.model import say

MANUAL = (Path(__file__).parents[4] / "docs/manual.md").read_text("utf-8")


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Serving(Protocol):
    @property
    def model(self) -> str: ...


Cli = Callable[..., Done]
Serve = Callable[..., Serving]


def test_without_a_topic_they_are_listed(cli: Cli) -> None:
    done = cli("help")
    assert (done.code, done.err) == (0, "")
    for name, (text, _) in TOPICS.items():
        assert re.search(rf"^  {name} +{re.escape(text)}$", done.out, re.MULTILINE)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_fits_a_screen(cli: Cli, topic: str) -> None:
    done = cli("help", topic)
    assert done == (0, text_of(topic) + "\n", "")
    lines = done.out.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert "{" not in done.out


@pytest.mark.parametrize("topic", TOPICS)
def test_what_a_topic_shows_can_be_typed(
    cli: Cli, topic: str, project: Path, tmp_path: Path, serve: Serve, script: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    copy_tree(demo_files() / "snip", project)
    server = serve(*[say("It is a URL shortener.")] * 9)
    settings = tmp_path / ".config" / "retinue" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'[models]\nfast = "{server.model}"\n')
    assert cli("run", "-q", "-m", "fast", "begin").code == 0
    monkeypatch.setenv("RETINUE_MODEL", "fast")
    address = server.model.partition("@")[2]
    run = cli("runs").out.split()[0]
    for line in re.findall(r"^  \$ retinue (.*)$", text_of(topic), re.MULTILINE):
        typed = line.replace("RUN", run).replace("http://127.0.0.1:8080/v1", address)
        done = cli(*shlex.split(typed))
        assert done.code == 0, (typed, done.err)


def test_a_command_can_be_asked_for_too(cli: Cli) -> None:
    for command in set(COMMANDS) - set(TOPICS):
        assert cli("help", command) == cli(command, "--help")


def test_an_unknown_topic_is_told(cli: Cli) -> None:
    done = cli("help", "nonsense")
    assert done == (
        2,
        "",
        f"retinue: There is no topic 'nonsense'; there are: {', '.join(TOPICS)}.\n",
    )


def test_the_files_that_are_told_of_are_there(
    cli: Cli, project: Path, script: Callable[[str], str]
) -> None:
    assert cli("spawn", "-q", "planner", "-m", script("steps: [{say: ok}]"), "x").code == 0
    for name in re.findall(r"^  (\.retinue/\S+)  ", text_of("files"), re.MULTILINE):
        if not re.search("agents|history", name):
            assert list(project.glob(name.rstrip("/"))), name


def test_the_readme_has_the_same_exit_codes() -> None:
    table = re.findall(r"^\| (\d+) \| (.*) \|$", MANUAL, re.MULTILINE)
    assert {int(code): text for code, text in table} == EXIT_CODES
