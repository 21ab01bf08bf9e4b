"""Shell completion of runs, agents, roles and models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.interfaces.cli.commands.completion import SHELLS

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script


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
