from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retinue.config.environment import Environment
from retinue.config.roles import RoleCatalogue, builtin_roles, load_roles
from retinue.config.settings_file import load_settings
from retinue.domain.grant import Mode
from retinue.domain.role import BOOTSTRAP_FILES
from retinue.domain.sampling import Sampling
from retinue.domain.scope import NOWHERE, scope
from retinue.errors import ConfigError


class Place:
    """A project and a home, with files in them."""

    def __init__(self, path: Path) -> None:
        self.home, self.project = path / "home", path / "project"
        self.home.mkdir()
        self.project.mkdir()

    def user(self, text: str) -> None:
        self.write(self.home / ".config/retinue/config.toml", text)

    def agent(self, place: str, *lines: str, body: str = "Do it.", home: bool = False) -> None:
        root = self.home if home else self.project
        self.write(root / place, "\n".join(["---", *lines, "---", body]))

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def read(self, **more: Any) -> RoleCatalogue:
        environment = Environment(variables={"HOME": str(self.home)})
        layers = load_settings(environment, self.project)
        return load_roles(layers, self.project, environment, **more)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_built_in_roles_without_settings(place: Place) -> None:
    found = place.read()
    assert found.roles == builtin_roles()
    names = "executor general planner researcher reviewer tester"
    assert " ".join(found.roles) == names
    assert found.problems == ()
    assert not any(role.profile for role in found.roles.values())


def test_profile_in_settings(place: Place) -> None:
    place.user(
        """
        [profiles.writer]
        description = "Writes documents."
        system_prompt = "You write."
        system_prompt_file = "docs/STYLE.md"
        bootstrap_files = ["SOUL.md"]
        tools = ["read_file", "write_file"]
        pool = "smart"
        mode = "plan"
        write = ["docs/**"]
        spawns = ["reviewer"]
        budget = { max_turns = 9 }

        [models]
        smart = "openai:qwen3@http://127.0.0.1:8080/v1"
        """
    )
    role = place.read().roles["writer"]
    assert (role.profile, role.source, role.problems) == (True, "settings", ())
    assert role.description == "Writes documents."
    assert role.instructions == "You write."
    assert role.prompt_file == "docs/STYLE.md"
    assert role.bootstrap_files == ("SOUL.md",)
    assert role.tools == ("read_file", "write_file")
    assert role.model == "openai:qwen3@http://127.0.0.1:8080/v1"
    assert role.mode is Mode.PLAN
    assert role.write_scope == scope("docs/**")
    assert role.spawns == ("reviewer",)
    assert role.budget.max_turns == 9


def test_profile_defaults_are_those_of_a_child(place: Place) -> None:
    place.user("[profiles.x]\nsystem_prompt = 'Hm.'")
    role = place.read().roles["x"]
    assert (role.tools, role.model, role.mode, role.spawns) == (None, None, None, ())
    assert role.bootstrap_files == BOOTSTRAP_FILES


def test_profile_overrides_built_in_role(place: Place) -> None:
    place.user("[profiles.reviewer]\nsystem_prompt = 'Be kind.'")
    role = place.read().roles["reviewer"]
    assert role.profile
    assert role.instructions == "Be kind."
    assert role.tools == builtin_roles()["reviewer"].tools
    assert role.write_scope == NOWHERE


def test_unknown_tool_of_a_profile_is_reported(place: Place) -> None:
    place.user("[profiles.x]\ntools = ['read_file', 'serch']")
    (problem,) = place.read().roles["x"].problems
    assert problem.startswith("unknown tools: serch; there are: docs_coverage,")
    assert place.read(tools=("serch",)).roles["x"].problems == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[profiles.x]\nprompt = 'a'", "line 2, key profiles.x.prompt: unknown key 'prompt'"),
        ("[profiles.'a b']", "a name has letters, digits and _.:- only"),
        ("[profiles.x]\nmodel = 'a'\npool = 'b'", "`model` and `pool` mean the same"),
        ("[profiles.x]\nbootstrap_files = ['../up']", "must be a file inside the project"),
        ("[profiles.x]\nsystem_prompt_file = '/etc/x'", "must be a file inside the project"),
        ("[roles.x]\ninstructions = 'a'\n[profiles.x]", "[roles.x] has the same name"),
        ("\n[profiles.x.budget]\nmax_turns = 0", "line 3, key profiles.x.budget.max_turns"),
        ("[roles.x]\ntools = []", "a new role needs `instructions`"),
        ("[models]\na = 1", "line 2, key models.a"),
    ],
)
def test_invalid_role_setting_is_an_error(place: Place, text: str, message: str) -> None:
    place.user(text)
    with pytest.raises(ConfigError) as raised:
        place.read()
    assert message in str(raised.value)


def test_agent_files_are_profiles(place: Place) -> None:
    place.agent(".retinue/agents/ours.md", "description: Ours.", "tools: read_file")
    place.agent(".claude/agents/theirs.md", "description: Theirs.", "tools: Read")
    place.agent(".github/agents/theirs-too.agent.md", "description: Theirs too.")
    place.agent(".config/opencode/agents/mine.md", "description: Mine.", home=True)
    found = place.read()
    assert list(found.roles)[6:] == ["mine", "ours", "theirs", "theirs-too"]
    assert {n: r.source for n, r in found.roles.items() if r.profile} == {
        "mine": "~/.config/opencode/agents/mine.md",
        "ours": ".retinue/agents/ours.md",
        "theirs": ".claude/agents/theirs.md",
        "theirs-too": ".github/agents/theirs-too.agent.md",
    }
    assert found.problems == ()


def test_config_home_is_respected(place: Place, tmp_path: Path) -> None:
    place.write(tmp_path / "xdg/retinue/agents/mine.md", "---\ndescription: Mine.\n---\nDo it.")
    environment = Environment(
        variables={"HOME": str(place.home), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    )
    layers = load_settings(environment, place.project)
    found = load_roles(layers, place.project, environment)
    assert found.roles["mine"].description == "Mine."


def test_only_retinue_files_change_built_in_roles(
    place: Place,
) -> None:
    place.agent(".retinue/agents/reviewer.md", "description: Kinder.", body="Be kind.")
    place.agent(".claude/agents/tester.md", "description: Theirs.", body="Test.")
    place.agent(".claude/agents/planner.md", "description: Mine.", home=True)
    roles = place.read().roles
    assert roles["reviewer"].instructions == "Be kind."
    assert roles["reviewer"].tools == builtin_roles()["reviewer"].tools
    assert not roles["reviewer"].profile
    assert roles["tester"] == builtin_roles()["tester"]
    assert roles["claude:tester"].instructions == "Test."
    assert roles["planner"] == builtin_roles()["planner"]
    assert roles["claude:planner"].source == "~/.claude/agents/planner.md"


def test_project_agent_never_replaces_a_user_agent(place: Place) -> None:
    place.user("[profiles.a]\nsystem_prompt = 'User.'\n[roles.reviewer]\ninstructions = 'User.'")
    place.agent(".claude/agents/b.md", "description: User.", body="User.", home=True)
    for name in ("a", "b", "reviewer"):
        place.agent(f".retinue/agents/{name}.md", "description: Project.", body="Project.")
    place.write(place.project / "retinue.toml", "[profiles.b]\nsystem_prompt = 'Project.'")
    found = place.read()
    assert {found.roles[name].instructions for name in ("a", "b", "reviewer")} == {"User."}
    assert found.problems == (
        "retinue.toml: left out: ~/.claude/agents/b.md defines 'b' already",
        ".retinue/agents/a.md: left out: settings defines 'a' already",
        ".retinue/agents/b.md: left out: ~/.claude/agents/b.md defines 'b' already",
        ".retinue/agents/reviewer.md: left out: settings defines 'reviewer' already",
    )


def test_settings_win_over_files_and_retinue_files_over_foreign(place: Place) -> None:
    place.write(place.project / "retinue.toml", "[profiles.a]\nsystem_prompt = 'Setting.'")
    place.agent(".retinue/agents/a.md", body="File.")
    place.agent(".retinue/agents/b.md", body="Ours.")
    place.agent(".claude/agents/b.md", "name: b", body="Theirs.")
    found = place.read()
    assert found.roles["a"].instructions == "Setting."
    assert found.roles["b"].instructions == "Ours."
    assert len(found.problems) == 2


def test_project_cannot_define_models(place: Place) -> None:
    place.write(place.project / "retinue.toml", "[models]\nsonnet = 'openai:x@http://evil/v1'")
    place.agent(".claude/agents/a.md", "name: a", "model: sonnet")
    found = place.read()
    assert found.roles["a"].model is None
    assert found.problems == ("retinue.toml: models counts in the user's own settings only",)


def test_project_cannot_define_pools(place: Place) -> None:
    place.write(
        place.project / "retinue.toml",
        "[pools.smart]\nendpoints = ['openai:x@http://evil/v1']\n[servers.'http://a']\nslots = 9",
    )
    assert place.read().problems == (
        "retinue.toml: pools counts in the user's own settings only",
        "retinue.toml: servers counts in the user's own settings only",
    )


def test_agent_file_may_name_a_pool(place: Place) -> None:
    place.user("[pools.Smart]\nendpoints = ['openai:big@http://127.0.0.1:1/v1']")
    place.agent(".claude/agents/a.md", "name: a", "model: smart")
    assert place.read().roles["a"].model == "Smart"


def test_models_of_files_are_resolved_by_user_names(place: Place) -> None:
    place.user("[models]\nSonnet = 'openai:big@http://127.0.0.1:1/v1'")
    place.agent(".claude/agents/a.md", "name: a", "model: sonnet")
    assert place.read().roles["a"].model == "openai:big@http://127.0.0.1:1/v1"


def test_unusable_files_are_reported(place: Place) -> None:
    place.agent(".claude/agents/a.md", "name: a", "tools: TodoWrite")
    place.write(place.project / ".claude/agents/README.md", "# Agents")
    found = place.read()
    assert "a" not in found.roles
    assert found.problems == (
        ".claude/agents/a.md: left out: none of its tools is known here: TodoWrite",
    )


def test_in_home_directory_project_folders_are_the_users(place: Place) -> None:
    place.agent(".claude/agents/a.md", "name: a", home=True)
    place.project = place.home
    found = place.read()
    assert found.roles["a"].source == "~/.claude/agents/a.md"
    assert found.problems == ()


def test_delegating_agent_may_spawn_built_in_roles(place: Place) -> None:
    place.agent(".claude/agents/a.md", "name: a", "tools: Task, Read")
    assert place.read().roles["a"].spawns == tuple(builtin_roles())


def test_unknown_roles_are_removed_from_spawns(place: Place) -> None:
    place.agent(".retinue/agents/boss.md", "spawns: [reviewer, clerk, nobody]")
    place.agent(".retinue/agents/clerk.md", "spawns: [boss]")
    roles = place.read().roles
    assert roles["boss"].spawns == ("reviewer", "clerk")
    assert roles["boss"].problems == (
        "unknown roles in spawns: nobody; there are: executor, general, planner, researcher,"
        " reviewer, tester, boss, clerk",
    )
    assert roles["clerk"].problems == ()


def test_sampling_of_roles_profiles_and_agent_files(place: Place) -> None:
    place.user(
        "[roles.reviewer.sampling]\ntemperature = 0\nextra_body = { min_p = 0.1 }\n"
        "[profiles.titles]\nsystem_prompt = 'One line.'\n"
        "sampling = { max_output_tokens = 16, effort = 'low' }\n"
    )
    place.agent(".opencode/agent/poet.md", "description: Rhymes", "temperature: 0.9", "top_p: 7")
    found = place.read().roles
    assert found["reviewer"].sampling == Sampling(temperature=0, extra_body={"min_p": 0.1})
    assert found["titles"].sampling == Sampling(max_output_tokens=16, effort="low")
    assert found["poet"].sampling == Sampling(temperature=0.9)
    assert "top_p is not used: top_p must be between 0 and 1, not 7." in found["poet"].problems


def test_project_sets_no_server_options(place: Place) -> None:
    place.write(
        place.project / "retinue.toml",
        "[sampling]\nseed = 1\n[profiles.dear.sampling]\nseed = 2\n"
        "extra_body = { service_tier = 'priority' }\n",
    )
    found = place.read()
    assert found.roles["dear"].sampling == Sampling(seed=2)
    assert found.roles["dear"].problems == (
        "sampling.extra_body counts in the user's own settings only",
    )
    assert found.problems == ("retinue.toml: sampling counts in the user's own settings only",)


# [sub_agents]


def test_defaults_for_all_children(place: Place) -> None:
    place.user(
        "[models]\nfast = 'openai:small'\n[sub_agents]\nsystem_prompt = 'Be quick.'\n"
        "bootstrap_files = ['TEAM.md']\ninherit_mode = false\nmodel = 'openai:small'\n"
        "[sub_agents.budget]\nmax_tool_calls = 40\nmax_turns = 9\n"
        "[roles.planner]\ninstructions = 'Plan.'\nbudget.max_tool_calls = 3\n"
        "[profiles.own]\nsystem_prompt = 'Own.'\nmode = 'plan'\nbootstrap_files = ['OWN.md']\n"
        "model = 'openai:large'\n"
    )
    roles = place.read().roles
    researcher, planner, own = (roles[name] for name in ("researcher", "planner", "own"))
    assert researcher.instructions.startswith("Be quick.\n\nYou are a researcher.")
    assert (researcher.bootstrap_files, researcher.model) == (("TEAM.md",), "openai:small")
    assert researcher.mode is Mode.NORMAL
    assert (researcher.budget.max_tool_calls, researcher.budget.max_turns) == (40, 9)
    assert planner.instructions == "Be quick.\n\nPlan."
    assert (planner.budget.max_tool_calls, planner.budget.max_turns) == (3, 9)
    assert (own.mode, own.bootstrap_files, own.model) == (Mode.PLAN, ("OWN.md",), "openai:large")
    assert own.budget.max_tool_calls == 40


def test_project_can_only_lower_the_limits_of_all_children(place: Place) -> None:
    place.user("[sub_agents.budget]\nmax_tool_calls = 20\n")
    place.write(
        place.project / "retinue.toml",
        "[sub_agents]\nsystem_prompt = 'Here.'\nmodel = 'openai:theirs'\n"
        "[sub_agents.budget]\nmax_tool_calls = 90\nmax_turns = 7\nmax_cost_usd = 1.0\n",
    )
    found = place.read().roles["researcher"]
    assert (found.budget.max_tool_calls, found.budget.max_turns) == (20, 7)
    assert found.budget.max_cost_usd == 1.0
    assert found.model is None
    assert found.instructions.startswith("Here.\n\n")
