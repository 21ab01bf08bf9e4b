from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config.pools import EndpointSettings, PoolSettings, PoolStrategy
from retinue.config.settings import (
    MAX_CONCURRENT,
    MAX_DEPTH,
    RUN_BUDGET,
    BudgetSettings,
    RoleSettings,
    Settings,
    narrow_settings,
)
from retinue.config.settings_file import load_settings, read_settings
from retinue.domain.grant import Mode
from retinue.errors import ConfigError


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def refusal(path: Path, text: str) -> str:
    """The message about a file, without its path, which it must begin with."""
    with pytest.raises(ConfigError) as caught:
        read_settings(written(path, text))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_a_whole_file(tmp_path: Path) -> None:
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


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
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
def test_what_is_not_toml(tmp_path: Path, text: str, message: str) -> None:
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
def test_an_unknown_key(tmp_path: Path, text: str, message: str) -> None:
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
def test_a_value_of_the_wrong_type(tmp_path: Path, text: str, message: str) -> None:
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
        ("\nmax_depth = -3", "line 2, key max_depth: must be at least 1, not -3."),
    ],
)
def test_a_limit_that_makes_no_sense(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path / "config.toml", text) == message


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"config\.toml cannot be read: .*0xff"):
        read_settings(path)


# Two files


def test_files_that_are_not_there_say_nothing(tmp_path: Path) -> None:
    assert load_settings(tmp_path / "none.toml", tmp_path).merged == narrow_settings(
        Settings(), Settings()
    )


def test_the_two_files_are_kept_apart(tmp_path: Path) -> None:
    user = written(tmp_path / "home" / "config.toml", "model = 'mine'")
    written(tmp_path / "retinue.toml", "model = 'theirs'\nmode = 'plan'")
    layers = load_settings(user, tmp_path)
    assert (layers.user.model, layers.project.model) == ("mine", "theirs")
    assert (layers.merged.model, layers.merged.mode) == ("mine", Mode.PLAN)


def test_the_project_names_the_model_where_the_user_names_none() -> None:
    assert narrow_settings(Settings(), Settings(model="theirs")).model == "theirs"


@pytest.mark.parametrize(
    ("user", "project", "merged"),
    [
        (None, None, None),
        (None, "plan", "plan"),
        (None, "normal", "normal"),
        # Where the user says nothing, normal is what holds.
        (None, "auto", "normal"),
        (None, "dangerous", "normal"),
        ("auto", None, "auto"),
        ("auto", "plan", "plan"),
        ("auto", "dangerous", "auto"),
        ("dangerous", "auto", "auto"),
        ("plan", "normal", "plan"),
    ],
)
def test_a_project_narrows_the_mode_only(
    user: str | None, project: str | None, merged: str | None
) -> None:
    def settings(mode: str | None) -> Settings:
        return Settings(mode=None if mode is None else Mode(mode))

    assert narrow_settings(settings(user), settings(project)) == narrow_settings(
        settings(merged), Settings()
    )


@pytest.mark.parametrize(
    ("user", "project", "merged"),
    [
        (None, 2, 2),
        (None, MAX_CONCURRENT + 50, MAX_CONCURRENT),
        (8, None, 8),
        (8, 20, 8),
        (8, 1, 1),
    ],
)
def test_a_project_narrows_the_concurrency_only(
    user: int | None, project: int | None, merged: int
) -> None:
    both = narrow_settings(Settings(max_concurrent=user), Settings(max_concurrent=project))
    assert both.max_concurrent == merged


def test_a_project_narrows_the_depth_only() -> None:
    assert narrow_settings(Settings(), Settings(max_depth=99)).max_depth == MAX_DEPTH
    assert narrow_settings(Settings(max_depth=9), Settings(max_depth=99)).max_depth == 9
    assert narrow_settings(Settings(max_depth=9), Settings(max_depth=1)).max_depth == 1


@pytest.mark.parametrize("limit", BudgetSettings.__struct_fields__)
def test_a_project_narrows_the_budget_only(limit: str) -> None:
    def merged(user: float | None, project: float | None) -> float | None:
        one, two = (
            Settings(budget=BudgetSettings(**{limit: value}))  # type: ignore[arg-type]
            for value in (user, project)
        )
        value: float | None = getattr(narrow_settings(one, two).budget, limit)
        return value

    assert merged(50, 20) == 20
    assert merged(20, 50) == 20
    assert merged(20, None) == 20
    default = getattr(RUN_BUDGET, limit)
    # More than what holds where nobody says anything is more than the user allows.
    assert merged(None, 10**9) == (10**9 if default is None else default)


def test_of_two_roles_of_one_name_the_users_counts() -> None:
    def settings(**roles: str) -> Settings:
        return Settings(roles={name: RoleSettings(instructions=t) for name, t in roles.items()})

    both = narrow_settings(settings(a="mine", b="mine"), settings(b="theirs", c="theirs"))
    assert {name: role.instructions for name, role in both.roles.items()} == {
        "a": "mine",
        "b": "mine",
        "c": "theirs",
    }


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
def test_servers_that_cannot_be(tmp_path: Path, text: str, problem: str) -> None:
    name = "a b" if "a b" in text else "a"
    assert refusal(tmp_path / "config.toml", text) == f"line 1, key mcp.{name}: {problem}"


def test_pools_and_servers(tmp_path: Path) -> None:
    text = """
[pools.smart]
endpoints = ["openai:m@http://a/v1", "fast"]
weights = [3, 0.5]

[pools.spare]
endpoints = ["openai:m@http://a/v1"]
strategy = "order"

[servers."http://a"]
slots = 4
patience_s = 30
"""
    settings = read_settings(written(tmp_path / "config.toml", text))
    assert settings.pools["smart"].weights == (3.0, 0.5)
    strategies = [pool.strategy for pool in settings.pools.values()]
    assert strategies == [PoolStrategy.WEIGHTED, PoolStrategy.ORDER]
    server = settings.servers["http://a"]
    assert server == EndpointSettings(slots=4, patience_s=30)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[pools.a]\n", "line 1, key pools.a: object missing required field `endpoints`."),
        (
            "[pools.a]\nendpoints = []\n",
            "line 1, key pools.a: endpoints must name at least one model: endpoints ="
            ' ["openai:MODEL@http://…/v1"].',
        ),
        (
            "[pools.a]\nendpoints = ['m', 'b']\n[pools.b]\nendpoints = ['m']\n",
            "line 1, key pools.a: 'b' is a pool, and a pool lists models; name its models.",
        ),
        (
            "[models]\nmine = 'a'\n[pools.a]\nendpoints = ['m', 'mine']\n",
            "line 3, key pools.a: 'mine' is a pool, and a pool lists models; name its models.",
        ),
        (
            "[pools.a]\nendpoints = ['a']\n",
            "line 1, key pools.a: 'a' is a pool, and a pool lists models; name its models.",
        ),
        (
            "[models]\nmine = 'm'\n[pools.a]\nendpoints = ['m', 'mine']\n",
            "line 3, key pools.a: 'mine' is listed twice; give it a weight of 2 instead.",
        ),
        (
            "[models]\na = 'm'\n[pools.a]\nendpoints = ['m']\n",
            "line 3, key pools.a: models.a has the same name; keep one.",
        ),
        (
            "[pools.'a b']\nendpoints = ['m']\n",
            "line 1, key pools.a b: a name has letters, digits and _.- only.",
        ),
        (
            "[pools.a]\nendpoints = ['m', 'n']\nweights = [1]\n",
            "line 1, key pools.a: there are 2 endpoints and 1 weights.",
        ),
        (
            "[pools.a]\nendpoints = ['m', 'n']\nweights = [1, 0]\n",
            "line 1, key pools.a: a weight must be more than 0; remove a model that should not be"
            " asked.",
        ),
        (
            "[pools.a]\nendpoints = ['m']\nweights = [1]\nstrategy = 'order'\n",
            'line 1, key pools.a: weights have no meaning with strategy = "order"; leave one of'
            " them out.",
        ),
        (
            "[pools.a]\nendpoints = ['m']\nstrategy = 'best'\n",
            "line 3, key pools.a.strategy: invalid enum value 'best'; there are: weighted, order.",
        ),
        (
            "[servers.a]\nslots = 1\n",
            "line 1, key servers.a: is not the address of a server; write it like"
            " http://127.0.0.1:8080.",
        ),
        (
            "[servers.'http://me:secret@a']\nslots = 1\n",
            "line 1, key servers.http://me:secret@a: is not the address of a server; write it like"
            " http://127.0.0.1:8080.",
        ),
        (
            "[servers.'http://a']\nslots = 0\n",
            "line 1, key servers.http://a: slots must be more than 0, not 0.",
        ),
        (
            "[servers.'http://a']\nidle_timeout_s = -2.5\n",
            "line 1, key servers.http://a: idle_timeout_s must be more than 0, not -2.5.",
        ),
    ],
)
def test_pools_and_servers_that_cannot_be(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path / "config.toml", text) == message


def test_a_project_has_no_say_in_pools_and_servers() -> None:
    theirs = Settings(
        pools={"smart": PoolSettings(endpoints=("openai:m@http://evil/v1",))},
        servers={"http://a": EndpointSettings(slots=9)},
    )
    both = narrow_settings(Settings(), theirs)
    assert (both.pools, both.servers) == ({}, {})
