from __future__ import annotations

import msgspec
import pytest

from retinue.config.roles import builtin_roles
from retinue.domain.messages import Effect, estimate_tokens
from retinue.tools.builtin import builtin_tools


@pytest.mark.parametrize("role", ["executor", "researcher"])
def test_schemas_are_short(role: str) -> None:
    wanted = builtin_roles()[role].tools
    assert wanted is not None
    sent = [
        {
            "type": "function",
            "function": {
                "name": tool.spec.name,
                "description": tool.spec.description,
                "parameters": tool.spec.parameters,
            },
        }
        for tool in builtin_tools()
        if tool.spec.name in wanted
    ]
    assert estimate_tokens(msgspec.json.encode(sent)) <= 900


def test_effects() -> None:
    effects = {tool.spec.name: tool.effect for tool in builtin_tools()}
    assert effects == {
        "read_file": Effect.READ,
        "list_dir": Effect.READ,
        "find_files": Effect.READ,
        "search_files": Effect.READ,
        "write_file": Effect.WRITE,
        "edit_file": Effect.WRITE,
        "git_read": Effect.READ,
        "overview": Effect.READ,
        "find_symbol": Effect.READ,
        "docs_coverage": Effect.READ,
        "remember": Effect.REMEMBER,
        "recall": Effect.READ,
        "run_command": Effect.EXECUTE,
        "run_tests": Effect.CHECK,
    }


def test_tools_without_shell() -> None:
    assert "run_command" not in [tool.spec.name for tool in builtin_tools(shell=False)]
