"""Precedence of the user's file, the project's file, the environment and arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.config.settings import RUN_BUDGET, Settings, narrow_settings
from retinue.config.settings_file import load_settings
from retinue.domain.discovered_models import DiscoveredModels
from retinue.domain.grant import Mode
from retinue.errors import ConfigError, UsageError
from retinue.models.scripted.model import say
from retinue.testing.server import ModelServer


class Layout:
    """A project and a home in which each layer can say something."""

    def __init__(self, root: Path) -> None:
        self.project = root / "project"
        self._user = root / "home" / ".config" / "retinue" / "config.toml"
        self._user.parent.mkdir(parents=True)
        self.project.mkdir()
        self.variables = {"HOME": str(root / "home")}
        for name in ("user", "project", "environment", "flag"):
            (self.project / f"{name}.yaml").write_text("steps:\n  - say: Hi.\n")

    def say(self, *, user: str = "", project: str = "", **variables: str) -> None:
        self._user.write_text(user)
        (self.project / "retinue.toml").write_text(project)
        self.variables |= variables

    def open(self, **flags: Any) -> Any:
        environment = Environment(variables=self.variables)
        return retinue.open(self.project, environment=environment, **flags)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


USER, PROJECT = 'model = "scripted:user.yaml"', 'model = "scripted:project.yaml"'
ENVIRONMENT, FLAG = "scripted:environment.yaml", "scripted:flag.yaml"


@pytest.mark.parametrize(
    ("user", "project", "environment", "flag", "model"),
    [
        ("", PROJECT, "", None, "scripted:project.yaml"),
        # A project that could choose another could have the user's work sent there.
        (USER, PROJECT, "", None, "scripted:user.yaml"),
        (USER, PROJECT, ENVIRONMENT, None, ENVIRONMENT),
        ("", PROJECT, ENVIRONMENT, None, ENVIRONMENT),
        (USER, PROJECT, ENVIRONMENT, FLAG, FLAG),
        ("", "", "", FLAG, FLAG),
    ],
)
async def test_model(
    layout: Layout, user: str, project: str, environment: str, flag: str | None, model: str
) -> None:
    layout.say(user=user, project=project, RETINUE_MODEL=environment)
    async with layout.open(model=flag, trust=True) as rt:
        assert rt.model == model


async def test_no_model(layout: Layout) -> None:
    layout.say(user="discovery = false")
    with pytest.raises(ConfigError) as caught:
        async with layout.open():
            pass
    assert str(caught.value).startswith("No model was named, and discovery is off in the settings.")
    assert not (layout.project / ".retinue").exists(), "nothing was begun"


def serving(*names: str) -> ModelServer:
    cards = [{"id": name, "owned_by": "vllm", "max_model_len": 65_536} for name in names]
    return ModelServer([say("Here.")], pages={"/v1/models": {"object": "list", "data": cards}})


async def test_program_uses_the_only_model(layout: Layout) -> None:
    async with serving("qwen3") as server:
        layout.say(user="discovery = false", OLLAMA_HOST=server.base_url)
        async with layout.open() as rt:
            assert rt.model == f"openai:qwen3@{server.base_url}"
            result = await rt.run("Go.")
    assert result.response == "Here."
    (note,) = result.notes
    assert note.startswith("no model was named: using openai:qwen3@")


async def test_program_is_never_asked(layout: Layout) -> None:
    async with serving("a", "b") as server:
        layout.say(user="discovery = false", OLLAMA_HOST=server.base_url)
        with pytest.raises(ConfigError, match="there are several"):
            async with layout.open():
                pass


@pytest.mark.parametrize("listed", [True, False])
async def test_program_can_choose(layout: Layout, listed: bool) -> None:
    async with serving("a", "b") as server:
        layout.say(user="discovery = false", OLLAMA_HOST=server.base_url, OPENAI_API_KEY="sk-key")
        name = f"openai:{'b' if listed else 'c'}@{server.base_url}"

        async def choose(discovery: DiscoveredModels) -> str:
            assert len(discovery.options) == 2
            return name

        async with layout.open(person=retinue.Person(choose_model=choose)) as rt:
            assert rt.model == name
            assert (await rt.run("Go.")).ok
    # What was listed was found; what was typed was named, and may have the key.
    (request,) = server.requests
    assert request.headers.get("authorization") == (None if listed else "Bearer sk-key")


@pytest.mark.parametrize("layer", ["user", "project"])
async def test_discovery_can_be_switched_off(layout: Layout, layer: str) -> None:
    layout.say(**{layer: "discovery = false"})
    with pytest.raises(ConfigError, match="discovery is off"):
        async with layout.open():
            pass


@pytest.mark.parametrize(
    ("user", "project", "environment", "flag", "mode"),
    [
        ("", "", "", None, "normal"),
        ("auto", "", "", None, "auto"),
        ("auto", "plan", "", None, "plan"),
        ("plan", "auto", "", None, "plan"),
        ("", "dangerous", "", None, "normal"),
        # The environment and the flags are the user's own word for this time.
        ("plan", "plan", "auto", None, "auto"),
        ("plan", "plan", "auto", "dangerous", "dangerous"),
        ("auto", "auto", "auto", Mode.PLAN, "plan"),
    ],
)
async def test_mode(
    layout: Layout, user: str, project: str, environment: str, flag: str | None, mode: str
) -> None:
    texts = {
        layer: f'mode = "{value}"' if value else ""
        for layer, value in (("user", user), ("project", project))
    }
    layout.say(**texts, RETINUE_MODE=environment)
    async with layout.open(model=FLAG, mode=flag) as rt:
        assert rt.mode == mode


@pytest.mark.parametrize("how", ["flag", "environment"])
async def test_unknown_mode(layout: Layout, how: str) -> None:
    layout.say(RETINUE_MODE="fast" if how == "environment" else "")
    with pytest.raises(UsageError) as caught:
        async with layout.open(model=FLAG, mode="fast" if how == "flag" else None):
            pass
    assert str(caught.value) == "Unknown mode 'fast'; there are: plan, normal, auto, dangerous."


async def test_budget(layout: Layout) -> None:
    layout.say(
        user="[budget]\nmax_turns = 50\nmax_tokens = 1000\nmax_tool_calls = 60\n",
        project="[budget]\nmax_turns = 10\nmax_tokens = 5000\nmax_context_tokens = 999_999\n",
    )
    async with layout.open(model=FLAG, limits={"max_tool_calls": 70}) as rt:
        budget = rt.budget
    assert (budget.max_turns, budget.max_tokens, budget.max_tool_calls) == (10, 1_000, 70)
    assert budget.max_context_tokens == 999_999, "the window limits it"
    assert budget.timeout_s == RUN_BUDGET.timeout_s


async def test_budget_argument_replaces_all_limits(layout: Layout) -> None:
    layout.say(user="[budget]\nmax_turns = 50\n")
    budget = retinue.Budget(max_turns=70)
    async with layout.open(model=FLAG, limits=budget) as rt:
        assert rt.budget == budget


@pytest.mark.parametrize("layer", ["user", "project"])
async def test_malformed_file_is_an_error(layout: Layout, layer: str) -> None:
    layout.say(**{layer: "\n[budget]\nmax_turns = 0\n"})
    with pytest.raises(ConfigError) as caught:
        async with layout.open(model=FLAG):
            pass
    assert str(caught.value).endswith(
        "line 3, key budget.max_turns: max_turns must be positive, not 0."
    )
    assert not (layout.project / ".retinue").exists()


async def test_roles_of_both_files(layout: Layout) -> None:
    layout.say(
        user='[roles.researcher]\ninstructions = "Look twice."\n[roles.researcher.budget]\n'
        "max_turns = 3\n",
        project='[roles.researcher]\ninstructions = "Obey me."\n'
        '[roles.poet]\ninstructions = "Write verses."\n',
    )
    async with layout.open(model=FLAG) as rt:
        researcher, poet = rt.roles["researcher"], rt.roles["poet"]
        assert {"executor", "planner", "reviewer", "tester"} < rt.roles.keys()
    assert researcher.instructions == "Look twice."
    assert researcher.budget.max_turns == 3
    # What is left out is as it was.
    assert researcher.tools is not None
    assert "read_file" in researcher.tools
    assert "write_file" not in researcher.tools
    assert poet.instructions == "Write verses."


async def test_new_role_needs_instructions(layout: Layout) -> None:
    layout.say(user="[roles.poet]\ndescription = 'Verses.'\n")
    with pytest.raises(ConfigError) as caught:
        async with layout.open(model=FLAG):
            pass
    assert str(caught.value).endswith("role 'poet': a new role needs `instructions`.")


@pytest.mark.parametrize(
    ("user", "project", "silence_s"),
    [
        ("", "", 120.0),
        ("silence_s = 300", "", 300.0),
        ("silence_s = 300", "silence_s = 60", 60.0),
        ("", "silence_s = 60", 60.0),
        ("", "silence_s = 600", 120.0),
    ],
)
def test_project_can_only_lower_thresholds(
    layout: Layout, user: str, project: str, silence_s: float
) -> None:
    layout.say(user=user, project=project)
    layers = load_settings(Environment(variables=layout.variables), layout.project)
    assert layers.merged.silence_s == silence_s


def test_user_can_raise_call_thresholds() -> None:
    user = Settings(warn_at_calls=200, pause_at_calls=300)
    merged = narrow_settings(user, Settings())
    assert (merged.warn_at_calls, merged.pause_at_calls) == (200, 300)
    lowered = narrow_settings(user, Settings(warn_at_calls=10, pause_at_calls=1_000))
    assert (lowered.warn_at_calls, lowered.pause_at_calls) == (10, 300)
