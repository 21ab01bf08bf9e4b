"""Hooks of a project: nothing without trust, and every change is asked about again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retinue.config.environment import Environment
from retinue.config.project_permissions import (
    ProjectPermissions,
    is_hook_changed,
    project_permissions,
)
from retinue.config.settings_file import load_settings
from retinue.config.trust import TrustStore

COMMAND = "python3 $CLAUDE_PROJECT_DIR/.claude/hooks/guard.py"


class Folder:
    def __init__(self, home: Path) -> None:
        self.home, self.path = home, home / "project"
        self.script = self.path / ".claude/hooks/guard.py"
        self.script.parent.mkdir(parents=True)
        self.script.write_text("pass\n")
        self.environment = Environment(variables={"HOME": str(home)})

    def write(self, hooks: Any, *, user: bool = False, **more: Any) -> None:
        file = (self.home if user else self.path) / ".claude/settings.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"hooks": hooks, **more}))

    def permissions(self) -> ProjectPermissions:
        layers = load_settings(self.environment, self.path)
        return project_permissions(layers, self.path, self.environment)

    def trust(self) -> None:
        store = TrustStore(self.environment.trust_dir)
        store.grant(self.path, self.permissions().requests, now=1.0)

    @property
    def commands(self) -> list[str]:
        return [hook.command for hook in self.permissions().hooks]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def entry(command: str, **more: Any) -> list[dict[str, Any]]:
    return [{"matcher": "Bash", "hooks": [{"type": "command", "command": command, **more}]}]


def test_a_projects_hooks_need_trust(folder: Folder) -> None:
    folder.write({"PreToolUse": entry(COMMAND)})
    found = folder.permissions()
    assert found.hooks == ()
    assert [str(request) for request in found.pending] == [
        f"hook PreToolUse(Bash) (.claude/settings.json): it runs {COMMAND} in the sandbox, without"
        " network, and may add to prompts, change calls and deny them"
    ]
    assert found.notes == (
        "without the project's hooks: this folder is not trusted; `retinue trust` allows it",
    )
    folder.trust()
    (hook,) = folder.permissions().hooks
    assert (hook.command, hook.of_project) == (COMMAND, True)


def test_a_change_asks_again(folder: Folder) -> None:
    folder.write({"PreToolUse": entry(COMMAND)})
    folder.trust()
    (hook,) = folder.permissions().hooks
    assert not is_hook_changed(hook, folder.path)
    folder.script.with_name("helper.py").write_text("import os\n")
    assert is_hook_changed(hook, folder.path)
    assert folder.commands == []
    folder.trust()
    folder.write({"PreToolUse": entry(f"{COMMAND} --quiet")})
    assert folder.commands == []


def test_hooks_of_the_users_claude_settings_run_as_the_user(folder: Folder) -> None:
    folder.write({"Stop": entry("notify-send done")}, user=True)
    (hook,) = folder.permissions().hooks
    assert (hook.source, hook.of_project) == ("~/.claude/settings.json", False)
    folder.write({"Stop": entry("notify-send done")}, user=True, disableAllHooks=True)
    assert folder.commands == []


def test_a_projects_own_settings_need_trust_too(folder: Folder) -> None:
    text = "[[hooks.Stop]]\nhooks = [{ command = 'true' }]\n"
    (folder.path / "retinue.toml").write_text(text)
    assert folder.commands == []
    folder.trust()
    assert folder.commands == ["true"]


def test_what_is_wrong_is_said_and_never_fatal(folder: Folder) -> None:
    folder.write(
        {
            "PreToolUse": [*entry("slow", timeout=30000), {"hooks": [{"type": "prompt"}]}, 7],
            "Elicitation": entry("x"),
        },
        user=True,
    )
    found = folder.permissions()
    assert [(hook.command, hook.timeout_s) for hook in found.hooks] == [("slow", 30.0)]
    assert [problem.partition("): ")[2] for problem in found.problems] == [
        "timeout counts seconds, and 30000 looks like milliseconds; write 30",
        "a hook of type 'prompt' is not supported; write a command",
        "Expected `object`, got `int`",
        "there is no event 'Elicitation'; there are: SessionStart, UserPromptSubmit, PreToolUse,"
        " PermissionRequest, PostToolUse, PostToolUseFailure, PostToolBatch, SubagentStart,"
        " SubagentStop, Stop, PreCompact, Notification, SessionEnd, ContractDrafted, PreMerge,"
        " PostMerge, BudgetWarning, RunFinished",
    ]


def test_a_broken_file_is_said_and_never_fatal(folder: Folder) -> None:
    (folder.path / ".claude/settings.json").write_text("{")
    (problem,) = folder.permissions().problems
    assert problem.startswith("without the hooks of .claude/settings.json: it cannot be read (")
