"""A project's changes of built-in roles."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config.environment import Environment
from retinue.config.roles import RoleCatalogue, builtin_roles, load_roles
from retinue.config.settings_file import load_settings
from retinue.config.trust import TrustStore
from retinue.domain.role import Role
from retinue.domain.scope import NOWHERE, contains


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(variables={"HOME": str(tmp_path / "home")})


def load(project: Path, environment: Environment, trust: bool | None = None) -> RoleCatalogue:
    return load_roles(load_settings(environment, project), project, environment, trust=trust)


def changed(role: Role) -> tuple[object, ...]:
    return role.tools, role.write_scope, role.spawns, role.workspace, role.budget


@pytest.mark.parametrize(
    ("role", "change", "taken"),
    [
        ("reviewer", 'tools = ["read_file", "write_file"]', "use write_file"),
        ("reviewer", 'tools = ["*"]', "use"),
        ("reviewer", 'tools = ["mcp__*"]', "use"),
        ("reviewer", 'write = ["src/**"]', "write src/**"),
        ("tester", 'write = ["src/**"]', "write src/**"),
        ("tester", 'write = ["**"]', "write **"),
        ("reviewer", 'spawns = ["executor"]', "spawn executor"),
        ("executor", 'workspace = "shared"', "change your files without a copy"),
        ("reviewer", "budget = { max_tool_calls = 99 }", "have max_tool_calls 99"),
    ],
)
@pytest.mark.parametrize("where", ["roles", "profiles"])
def test_project_cannot_widen_a_built_in_role(
    project: Path, environment: Environment, role: str, change: str, taken: str, where: str
) -> None:
    (project / ".mcp.json").write_text('{"mcpServers": {"db": {"command": "x"}}}')
    (project / "retinue.toml").write_text(f"[{where}.{role}]\n{change}\n")
    found = load(project, environment)
    narrowed, base = found.roles[role], builtin_roles()[role]
    assert {*(narrowed.tools or ())} <= {*(base.tools or ())}
    assert not contains(narrowed.write_scope, "src/a.py") or role == "executor"
    assert narrowed.spawns in (base.spawns, ())
    assert narrowed.workspace is None
    assert narrowed.budget == base.budget
    (problem,) = narrowed.problems
    assert problem.startswith(f"may not {taken}")
    assert problem.endswith("this folder is not trusted; `retinue trust` allows it")
    (request,) = found.requests
    TrustStore(environment.trust_dir).grant(project, [request], now=0.0)
    wide = load(project, environment).roles[role]
    assert wide.problems == ()
    assert changed(wide) not in (changed(base), changed(narrowed))
    assert changed(wide) == changed(load(project, environment, trust=True).roles[role])
    assert changed(narrowed) == changed(load(project, environment, trust=False).roles[role])


@pytest.mark.parametrize(
    ("role", "change"),
    [
        ("reviewer", 'tools = ["read_file", "read_*"]'),
        ("executor", 'tools = ["read_file", "mcp:read", "mcp__db__query"]'),
        ("tester", 'write = ["tests/unit/**"]'),
        ("executor", 'workspace = "readonly"'),
        ("executor", 'write = ["src/**"]\nspawns = []\nbudget = { max_tool_calls = 3 }'),
        ("reviewer", 'instructions = "Be kind."'),
    ],
)
def test_project_can_narrow_a_built_in_role(
    project: Path, environment: Environment, role: str, change: str
) -> None:
    (project / ".mcp.json").write_text('{"mcpServers": {"db": {"command": "x"}}}')
    (project / "retinue.toml").write_text(f"[roles.{role}]\n{change}\n")
    found = load(project, environment)
    assert found.requests == ()
    assert found.roles[role].problems == ()
    assert found.roles[role] != builtin_roles()[role]


def test_changed_widening_is_a_new_request(project: Path, environment: Environment) -> None:
    settings = project / "retinue.toml"
    settings.write_text('[roles.reviewer]\nwrite = ["docs/**"]')
    (request,) = load(project, environment).requests
    TrustStore(environment.trust_dir).grant(project, [request], now=0.0)
    settings.write_text('[roles.reviewer]\nwrite = ["**"]')
    assert load(project, environment).roles["reviewer"].write_scope == NOWHERE


def test_agent_file_cannot_widen_a_built_in_role(project: Path, environment: Environment) -> None:
    (project / ".retinue/agents").mkdir(parents=True)
    file = project / ".retinue/agents/reviewer.md"
    file.write_text("---\nname: reviewer\ntools: [write_file]\nwrite: ['**']\n---\nWrite.")
    role = load(project, environment).roles["reviewer"]
    assert (role.tools, role.write_scope) == ((), NOWHERE)


def test_user_can_widen_a_built_in_role(project: Path, environment: Environment) -> None:
    file = environment.user_settings_file
    file.parent.mkdir(parents=True)
    file.write_text('[roles.reviewer]\nwrite = ["**"]\ntools = ["write_file"]')
    found = load(project, environment)
    assert found.requests == ()
    assert found.roles["reviewer"].tools == ("write_file",)
