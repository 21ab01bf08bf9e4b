"""`retinue help`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from retinue.interfaces.cli.help_topics import read_topics, summary
from retinue.interfaces.cli.main import COMMANDS

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Start


TOPICS = read_topics()


def test_topics_are_listed(cli: Cli) -> None:
    code, out, err = cli("help")
    assert (code, err) == (0, "")
    for name, text in TOPICS.items():
        assert re.search(rf"^  {name} +{re.escape(summary(text))}$", out, re.MULTILINE)


@pytest.mark.parametrize("topic", TOPICS)
def test_topic_is_printed(cli: Cli, topic: str) -> None:
    code, out, err = cli("help", topic)
    assert (code, err) == (0, "")
    assert out.startswith(f"{summary(TOPICS[topic])}.\n")
    assert "```" not in out


def test_topic_on_a_terminal_has_styles(terminal: Start) -> None:
    term = terminal("help", "exit-codes", columns=80)
    assert term.end() == 0
    assert "The exit codes of every command." in term.text
    assert b"\x1b[1mexit code" in term.raw


def test_help_of_a_command_is_its_help_option(cli: Cli) -> None:
    for command in set(COMMANDS) - set(TOPICS):
        assert cli("help", command) == cli(command, "--help")


def test_unknown_topic_names_the_known_ones(cli: Cli) -> None:
    message = f"retinue: Unknown topic 'nonsense'; topics: {', '.join(TOPICS)}.\n"
    assert cli("help", "nonsense") == (2, "", message)
