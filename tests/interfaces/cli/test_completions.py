"""Shell completion of runs, agents, roles and models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.interfaces.cli.commands.completion import SHELLS

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script


@pytest.fixture
def offered(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], set[str]]:
    """Returns the candidates that `retinue` offers to bash; other shells ask in a similar way."""

    def ask(typed: str) -> set[str]:
        monkeypatch.setenv("_RETINUE_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
        done = cli()
        monkeypatch.delenv("_RETINUE_COMPLETE")
        assert (done.code, done.err) == (0, "")
        return {line.partition(",")[2] for line in done.out.splitlines()} - {""}

    return ask


def test_runs_agents_roles_and_models_are_completed(
    cli: Cli, script: Script, tmp_path: Path, offered: Callable[[str], set[str]]
) -> None:
    settings = tmp_path / ".config" / "retinue" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[models]\nfast = "openai:x@http://127.0.0.1:1/v1"\n')
    model = script('rules: [{match: "", steps: [{say: ok}]}]')
    cli("spawn", "-q", "planner", "-m", model, "Look")
    run_id = cli("runs").out.split()[0]
    assert {"run", "runs", "show", "watch", "cancel", "tasks"} <= offered("retinue ")
    assert offered("retinue run --mode pl") == {"plan"}
    assert offered("retinue run -m fa") == {"fast"}
    assert offered("retinue fan-out --role te") == {"tester"}
    assert offered("retinue agents pl") == {"planner"}
    for command in ("show", "watch", "cancel", "audit", "tasks", "run -r"):
        assert offered(f"retinue {command} ") >= {run_id}, command
    assert offered(f"retinue show {run_id[:6]}") == {run_id}
    assert offered(f"retinue show {run_id} ") == {"a0", "a1"}
    assert offered("retinue completion ") >= {*SHELLS}
    assert offered("retinue help se") >= {"sessions", "settings"}


def test_errors_yield_no_candidates(offered: Callable[[str], set[str]], project: Path) -> None:
    assert offered("retinue show ") == set()
    assert offered("retinue show nope ") == set()
    (project / "retinue.toml").write_text("what is this")
    assert offered("retinue spawn re") == set()
    assert offered("retinue run -m ") == set()
