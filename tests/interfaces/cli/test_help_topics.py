"""The topics of `retinue help` are the sections of the manual."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.config.settings import (
    RUN_BUDGET,
    MergedSettings,
    Settings,
)
from retinue.domain.budget import Budget
from retinue.interfaces.cli.exit_codes import EXIT_CODES
from retinue.interfaces.cli.help_topics import read_topics, render, summary
from retinue.interfaces.cli.options import LIMIT_FLAGS
from retinue.interfaces.view.formatting import cell_width
from retinue.interfaces.view.styled_text import plain_text

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script


TOPICS = read_topics()
ROOT = Path(__file__).parents[3]


def test_manual_in_the_package_is_the_documentation() -> None:
    manual = ROOT / "src/retinue/interfaces/cli/manual.md"
    assert manual.resolve() == ROOT / "docs/manual.md"


@pytest.mark.parametrize("topic", TOPICS)
def test_topic_starts_with_a_short_sentence(topic: str) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", topic)
    assert re.fullmatch(r"[^`|\n]{10,70}", summary(TOPICS[topic]))


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("width", [60, 100])
def test_topic_fits_the_width(topic: str, width: int) -> None:
    lines = plain_text(render(TOPICS[topic], width)).splitlines()
    assert max(map(cell_width, lines)) <= width


def test_paragraphs_are_wrapped_and_files_are_named() -> None:
    text = "One\ntwo.\n\n- three\n- four\n\n```toml a.toml\nx = 1\ny = 2\n```"
    assert plain_text(render(text, 40)).splitlines() == [
        "One two.", "", " • three", " • four", "", "a.toml:", "", "  x = 1", "  y = 2",
    ]  # fmt: skip


def test_exit_codes_are_those_of_the_commands() -> None:
    table = re.findall(r"^\| (\d+) \| (.*) \|$", TOPICS["exit-codes"], re.MULTILINE)
    assert {int(code): text for code, text in table} == EXIT_CODES


def test_limits_are_the_defaults() -> None:
    rows = re.findall(r"^\| `(--.*?)` \| (.*?) \| (.*?) \|", TOPICS["budgets"], re.MULTILINE)
    shown = {flag: (run, child) for flag, run, child in rows}

    def text(limit: float | None) -> str:
        return "none" if limit is None else f"{limit:,g}"

    assert shown == {
        flag.flag: (text(getattr(RUN_BUDGET, name)), text(getattr(Budget(), name)))
        for name, flag in LIMIT_FLAGS.items()
    }
    budgets = " ".join(TOPICS["budgets"].split())
    assert f"at {MergedSettings().pause_at_calls} tool calls" in budgets
    assert f"for {MergedSettings().silence_s:g} seconds" in budgets


def test_time_until_a_notification_is_the_default() -> None:
    assert f"`notify_after_s` ({Settings().notify_after_s:g} seconds)" in TOPICS["output"]


def test_project_files_exist_after_a_run(cli: Cli, project: Path, script: Script) -> None:
    assert cli("spawn", "-q", "planner", "-m", script("steps: [{say: ok}]"), "x")[0] == 0
    names = re.findall(r"^\| `(\.retinue/\S+)` \|", TOPICS["project-files"], re.MULTILINE)
    assert len(names) == 7
    for name in names:
        if not re.search("agents|skills|commands|history", name):
            assert list(project.glob(name.rstrip("/"))), name
