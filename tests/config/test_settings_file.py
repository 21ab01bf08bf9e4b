from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config.environment import Environment
from retinue.config.settings import (
    BudgetSettings,
    RoleSettings,
    Settings,
    narrow_settings,
)
from retinue.config.settings_file import load_settings, read_settings
from retinue.domain.grant import Mode
from retinue.errors import ConfigError
from tests.config.settings_texts import refusal, written


def test_complete_file(tmp_path: Path) -> None:
    text = """
model = "openai:qwen3@http://127.0.0.1:8080/v1"
mode = "auto"
max_concurrent = 5
max_depth = 1

[budget]
max_tokens = 9_000
timeout_s = 60

[roles.coder]
instructions = "Write code."
tools = ["read_file", "write_file"]
budget.max_turns = 7
"""
    settings = read_settings(written(tmp_path / "config.toml", text))
    assert settings.model == "openai:qwen3@http://127.0.0.1:8080/v1"
    assert (settings.mode, settings.max_concurrent, settings.max_depth) == (Mode.AUTO, 5, 1)
    assert settings.budget == BudgetSettings(max_tokens=9_000, timeout_s=60)
    assert settings.roles == {
        "coder": RoleSettings(
            instructions="Write code.",
            tools=("read_file", "write_file"),
            budget=BudgetSettings(max_turns=7),
        )
    }


def test_empty_file(tmp_path: Path) -> None:
    assert read_settings(written(tmp_path / "config.toml", "")) == Settings()


# What is wrong, with its line and its key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = \n", "line 1, column 9: Invalid value."),
        ("a = 1\n\n[budget\n", "line 3, column 8: Expected ']' at the end of a table declaration."),
        ('model = "x"\nmodel = "y"\n', "line 2, column 12: Cannot overwrite a value."),
        # Where the text ends too early, tomllib does not say where.
        ("model =", "line 1, column 8: Invalid value."),
        ('mode = "auto"\nmodel = """x\ny\n\n', "line 3, column 2: Unterminated string."),
    ],
)
def test_invalid_toml(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path / "config.toml", text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle = 'x'", "line 1, key modle: unknown key 'modle'."),
        ("\n\n[bugdet]\nmax_turns = 1\n", "line 3, key bugdet: unknown key 'bugdet'."),
        (
            "[budget]\nmax_turns = 1\nmax_coins = 2\n",
            "line 3, key budget.max_coins: unknown key 'max_coins'.",
        ),
        (
            "[roles.a]\ninstructions = 'x'\n\n[roles.b]\nprompt = 'x'\n",
            "line 5, key roles.b.prompt: unknown key 'prompt'.",
        ),
        ("roles.b.prompt = 'x'", "line 1, key roles.b.prompt: unknown key 'prompt'."),
        (
            "[roles.b.budget]\nmax_coins = 2\n",
            "line 2, key roles.b.budget.max_coins: unknown key 'max_coins'.",
        ),
    ],
)
def test_unknown_key(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path / "config.toml", text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = 5", "line 1, key model: expected `str | null`, got `int`."),
        (
            "model = 'x'\nmax_concurrent = 'two'",
            "line 2, key max_concurrent: expected `int | null`, got `str`.",
        ),
        (
            "mode = 'fast'",
            "line 1, key mode: invalid enum value 'fast';"
            " there are: plan, normal, auto, dangerous.",
        ),
        ("budget = 5", "line 1, key budget: expected `object`, got `int`."),
        (
            "[budget]\nmax_turns = true",
            "line 2, key budget.max_turns: expected `int | null`, got `bool`.",
        ),
        (
            "[budget]\nmax_turns = 1.5",
            "line 2, key budget.max_turns: expected `int | null`, got `float`.",
        ),
        ("\nroles.b = 5", "line 2, key roles.b: expected `object`, got `int`."),
        (
            "[mcp.a]\ncommand = 'x'\n\n[mcp.a.env]\nGOOD = 'x'\nBAD = 5",
            "line 6, key mcp.a.env.BAD: expected `str`, got `int`.",
        ),
        (
            "[mcp.a]\nurl = 'http://x'\ntype = 'ws'",
            "line 3, key mcp.a.type: invalid enum value 'ws'; there are: stdio, http, sse.",
        ),
        (
            "[roles.b]\ninstructions = ''\ntools = [\n  'read_file',\n  3,\n]\n",
            "line 3, key roles.b.tools[1]: expected `str`, got `int`.",
        ),
        # The same key is set elsewhere, rightly.
        (
            "[budget]\nmax_turns = 5\n[roles.a.budget]\nmax_turns = 5\n"
            "[roles.b.budget]\nmax_turns = 'many'\n",
            "line 6, key roles.b.budget.max_turns: expected `int | null`, got `str`.",
        ),
        # It is written in other words, elsewhere, in a comment and in a text.
        (
            "# max_turns = 'many'\n[roles.b]\ninstructions = '''\n[roles.b.budget]\n"
            "max_turns = 'many'\n'''\nbudget = { max_turns = 'many' }\n",
            "line 7, key roles.b.budget.max_turns: expected `int | null`, got `str`.",
        ),
        (
            "\r\n\r\n[budget]\r\nmax_turns = 'x'\r\n",
            "line 4, key budget.max_turns: expected `int | null`, got `str`.",
        ),
        (
            "[roles.'a.b'.budget]\nmax_turns = 'x'\n",
            "line 2, key roles.a.b.budget.max_turns: expected `int | null`, got `str`.",
        ),
    ],
)
def test_wrong_type(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path / "config.toml", text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[budget]\nmax_tokens = 5\nmax_turns = 0\n",
            "line 3, key budget.max_turns: max_turns must be positive, not 0.",
        ),
        (
            "budget.max_tokens = -1",
            "line 1, key budget.max_tokens: max_tokens must be positive, not -1.",
        ),
        (
            "[budget]\ntimeout_s = 4.5",
            "line 2, key budget.timeout_s: timeout_s must be at least 5 seconds, not 4.5.",
        ),
        (
            "[budget]\ntimeout_s = inf",
            "line 2, key budget.timeout_s: timeout_s must be a finite number.",
        ),
        (
            "[budget]\nmax_cost_usd = 0",
            "line 2, key budget.max_cost_usd: max_cost_usd must be positive, not 0.",
        ),
        (
            "[budget]\nmax_retries = -1",
            "line 2, key budget.max_retries: max_retries must be 0 or more, not -1.",
        ),
        (
            "[roles.b]\ninstructions = 'x'\n[roles.b.budget]\nmax_tool_calls = 0\n",
            "line 4, key roles.b.budget.max_tool_calls: max_tool_calls must be positive, not 0.",
        ),
        (
            "[roles.'a.b'.budget]\nmax_tool_calls = 0\n",
            "line 2, key roles.a.b.budget.max_tool_calls: max_tool_calls must be positive, not 0.",
        ),
        ("notify_after_s = -1", "line 1, key notify_after_s: must be at least 0, not -1.0."),
        (
            "keep_journals_days = -1",
            "line 1, key keep_journals_days: must be at least 0, not -1.0.",
        ),
        ("max_concurrent = 0", "line 1, key max_concurrent: must be at least 1, not 0."),
        (
            "[cluster]\nchildren_per_node = 0",
            "line 2, key cluster.children_per_node: must be at least 1, not 0.",
        ),
        (
            "[cluster.resources.tester]\nGPU = 0",
            "line 2, key cluster.resources.tester.GPU: must be a number above 0, not 0.",
        ),
        (
            "[cluster.resources.tester]\nGPU = inf",
            "line 2, key cluster.resources.tester.GPU: must be a number above 0, not inf.",
        ),
        (
            "[cluster.environment]\nA-B = 'x'",
            "line 2, key cluster.environment.A-B: is not a variable that a process can have.",
        ),
        ("\nmax_depth = -3", "line 2, key max_depth: must be at least 1, not -3."),
    ],
)
def test_invalid_limit(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path / "config.toml", text) == message


def test_value_that_is_nested_too_deeply(tmp_path: Path) -> None:
    path = tmp_path / "retinue.toml"
    path.write_text("deny = " + "[" * 5_000 + "]" * 5_000)
    with pytest.raises(ConfigError, match=r"retinue.toml: a value is nested too deeply\."):
        read_settings(path)


def test_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"config\.toml cannot be read: .*0xff"):
        read_settings(path)


# Two files


def test_missing_files(tmp_path: Path) -> None:
    environment = Environment(variables={"HOME": str(tmp_path)})
    assert load_settings(environment, tmp_path).merged == narrow_settings(Settings(), Settings())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[mcp.'a b']\ncommand = 'x'", "a name has 1 to 40 letters, digits and _.- only."),
        ("[mcp.a]\ncommand = ''", "`command` and `url` must not be empty."),
        (
            "[mcp.a]\ncommand = 'x'\nurl = 'http://x'",
            "`command` starts a server and `url` names one that runs; set one.",
        ),
        (
            "[mcp.a]\ntype = 'http'\ncommand = 'x'",
            "a server of type http has a `url`, not a `command`.",
        ),
        (
            "[mcp.a]\ntype = 'stdio'\nurl = 'http://x'",
            "a server of type stdio has a `command`, not a `url`.",
        ),
        (
            "[mcp.a]\ncommand = 'x'\ntimeout_s = 0",
            "timeout_s must be more than 0 and at most 3,600, not 0.",
        ),
        (
            "[mcp.a]\ncommand = 'x'\nstart_timeout_s = 4000",
            "start_timeout_s must be more than 0 and at most 3,600, not 4000.",
        ),
    ],
)
def test_invalid_mcp_servers(tmp_path: Path, text: str, problem: str) -> None:
    name = "a b" if "a b" in text else "a"
    assert refusal(tmp_path / "config.toml", text) == f"line 1, key mcp.{name}: {problem}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[subAgent]\nmaxDepth = 2",
            "line 1, key subAgent: unknown key 'subAgent'; retinue has `[sub_agents]`,"
            " `delegation`, `max_depth` and `max_concurrent`.",
        ),
        (
            "[tools.spawn]\nenabled = true",
            "line 1, key tools: unknown key 'tools'; retinue has `[profiles.NAME]` and"
            " `delegation`.",
        ),
        (
            "[roles.reviewer]\ntool_budget = 3",
            "line 2, key roles.reviewer.tool_budget: unknown key 'tool_budget'; retinue has"
            " `max_tool_calls`.",
        ),
        (
            "[mcp_servers.a]\ncommand = 'x'",
            "line 1, key mcp_servers: unknown key 'mcp_servers'; retinue has `[mcp.NAME]`, and"
            " reads `.mcp.json`.",
        ),
        (
            "[profiles.a]\ncan_spawn_subagents = true",
            "line 2, key profiles.a.can_spawn_subagents: unknown key 'can_spawn_subagents';"
            " retinue has `spawns`, a list of roles.",
        ),
        (
            "[sub_agents]\nmax_tokens = 16384",
            "line 2, key sub_agents.max_tokens: unknown key 'max_tokens'; retinue has"
            " `budget.max_tokens`.",
        ),
        (
            "[sub_agents]\ndefaultBudget = {}",
            "line 2, key sub_agents.defaultBudget: unknown key 'defaultBudget'; retinue has"
            " `[sub_agents.budget]`.",
        ),
        ("temperature = 1.0", "line 1, key temperature: unknown key 'temperature'; retinue has"
         " `sampling.temperature`."),
        (
            "[sub_agents]\nbootstrap_files = ['/etc/passwd']",
            "line 2, key sub_agents.bootstrap_files: '/etc/passwd' must be a file inside the"
            " project, such as docs/agent.md.",
        ),
        (
            "[sampling]\ntemperature = 3",
            "line 2, key sampling.temperature: temperature must be between 0 and 2, not 3.",
        ),
    ],
    ids=lambda value: value.split("\n")[-1][:30],
)  # fmt: skip
def test_names_of_other_systems(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path / "retinue.toml", text) == message
