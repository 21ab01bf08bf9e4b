from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.config.agent_files import (
    AgentFile,
    one_line,
    parse_agent_file,
)
from retinue.config.agent_tools import KnownNames, NotAnAgent, clean_name
from retinue.config.tool_translation import BUILTIN_TOOLS, Dialect
from retinue.domain.grant import Mode
from retinue.domain.sampling import Sampling

DATA = Path(__file__).parent / "data" / "agents"
DIALECTS = {"github": Dialect.COPILOT} | {str(d): d for d in Dialect}
SONNET, GPT = "openai:qwen3@http://127.0.0.1:8080/v1", "openai:gpt-4.1"
NAMES = KnownNames(models={"sonnet": SONNET, "gpt-4.1": GPT}, roles=("executor", "reviewer"))

READ = ("read_file",)
LOOK = ("read_file", "search_files")
LOOKS = ("find_files", "read_file", "search_files")
WRITERS = {"edit_file", "write_file"}
NO_WRITE = tuple(sorted({*BUILTIN_TOOLS} - WRITERS))
FILE_TOOLS = (*("edit_file", "find_files", "list_dir", "read_file", "search_files", "write_file"),)
NO_RUN = tuple(sorted({*BUILTIN_TOOLS} - {"run_command"}))
NO_CHANGE = tuple(sorted({*BUILTIN_TOOLS} - WRITERS - {"run_command"}))


class Expected(NamedTuple):
    file: str
    name: str
    description: str
    tools: tuple[str, ...] | None = None
    model: str | None = None
    turns: int | None = None
    problems: tuple[str, ...] = ()
    """A part of each problem but the one about YAML."""


def no(model: str) -> str:
    return f"model {model!r} is not in your [models]"


PATTERN = "its pattern is not enforced"

FINE = [
    Expected(
        "claude/code-reviewer.md",
        "code-reviewer",
        "Reviews a diff for bugs and style after a change.",
        ("find_files", "read_file", "run_command", "search_files"),
        SONNET,
    ),
    Expected(
        "claude/debugger.md",
        "debugger",
        "Finds the root cause of a failing test: reads the trace, makes a guess, proves it.",
        ("edit_file", "read_file", "run_command", "search_files"),
        turns=25,
    ),
    Expected(
        "claude/architect.md",
        "architect",
        "Designs the parts of a system and how they talk to each other.",
        ("list_dir", "read_file", "web_fetch"),
        problems=(
            "unknown tools: TodoWrite, mcp__context7__get-library-docs",
            no("opus"),
        ),
    ),
    Expected("claude/everything.md", "everything", "May use whatever there is."),
    Expected(
        "claude/verifier.md",
        "verifier",
        "Checks a claim against the code and changes nothing.",
        NO_WRITE,
        problems=(no("haiku"), "not used here: memory"),
    ),
    Expected(
        "claude/git-historian.md",
        "git-historian",
        "Tells who changed what and why.",
        LOOK,
        problems=(f"Bash(git log:*): left out, because {PATTERN}", "Bash(git blame:*, git show:*)"),
    ),
    Expected(
        "claude/team-lead.md",
        "team-lead",
        "Splits work up and hands it out.",
        READ,
        problems=("unknown tools: TodoWrite", no("claude-opus-4-1-20250805"), "bypassPermissions"),
    ),
    Expected("claude/coordinator.md", "coordinator", "Works with two others only.", READ),
    Expected(
        "claude/Release Notes Writer.md",
        "Release-Notes-Writer",
        "Writes the notes of a release from its commits.",
        ("read_file", "search_files", "write_file"),
    ),
    Expected(
        "claude/windows.md",
        "windows",
        "Saved by an editor that likes BOMs and CRLF.",
        ("edit_file", "read_file"),
    ),
    Expected("claude/late-start.md", "late-start", "Begins after blank lines.", ("find_files",)),
    Expected(
        "claude/titled.md",
        "security-auditor",
        "Audits for holes, with evidence.",
        ("find_files", "read_file", "search_files", "write_file"),
        turns=40,
        problems=("Bash(npm audit:*)", no("opus")),
    ),
    Expected(
        "claude/unclosed.md",
        "unclosed",
        "Never closes its front matter.",
        LOOK,
        problems=("no closing ---",),
    ),
    Expected(
        "opencode/docs.md",
        "docs",
        "Writes and keeps documentation",
        NO_RUN,
        problems=(no("anthropic/claude-sonnet-4-5"),),
    ),
    Expected(
        "opencode/review.md",
        "review",
        "Reviews without editing",
        NO_CHANGE,
        turns=20,
        problems=("bash: ask: left out",),
    ),
    Expected("opencode/scout.md", "scout", "Looks around", LOOKS),
    Expected(
        "opencode/navigator.md",
        "navigator",
        "Says what to do next",
        NO_CHANGE,
        problems=("bash: left out, because its patterns",),
    ),
    Expected("opencode/manager.md", "manager", "Hands work out", NO_CHANGE),
    Expected("opencode/reader.md", "reader", "Only what is switched on", LOOK, turns=15),
    Expected(
        "gemini/backend-builder.md",
        "backend-builder",
        "Builds a backend from a specification and reports what it built.",
        tuple(sorted((*FILE_TOOLS, "run_command"))),
        turns=50,
        problems=(no("gemini-3-flash-preview"),),
    ),
    Expected(
        "gemini/api-designer.md",
        "api-designer",
        "Designs endpoints: resources, errors, paging.",
        (*LOOK, "web_fetch", "web_search"),
        turns=15,
    ),
    Expected(
        "gemini/all-tools.md",
        "all-tools",
        "Has every tool.",
        problems=("max_turns is not used: max_turns must be positive, not 0.",),
    ),
    Expected(
        "github/doc-generator.agent.md",
        "Doc-Generator",
        "Makes documentation from source code.",
        ("edit_file", "find_files", "list_dir", "run_command", "search_files", "write_file"),
        problems=("unknown tools: problems", no("Claude Sonnet 4.5 (copilot)")),
    ),
    Expected(
        "github/tdd.agent.md",
        "tdd",
        "Enforces tests before code.",
        ("find_files", "list_dir", "read_file", "run_command", "search_files", "write_file"),
        problems=(
            "unknown tools: execute/getTerminalOutput, github/*, todo",
            "not used here: handoffs",
        ),
    ),
    Expected(
        "github/planner.agent.md",
        "planner",
        "Makes a plan and hands it over.",
        ("find_files", "list_dir", "read_file", "search_files"),
        GPT,
    ),
    Expected(
        "codex/explorer.toml",
        "explorer",
        "Maps one part of the code and returns what it found.",
        problems=(no("gpt-5.3-codex"),),
    ),
    Expected("codex/implementer.toml", "implementer", "Makes one change."),
    Expected(
        "codex/fearless.toml",
        "fearless",
        "Asks nobody.",
        problems=("sandbox_mode danger-full-access", "not used here: mcp_servers"),
    ),
    Expected(
        "retinue/migrator.md",
        "migrator",
        "Writes database migrations.",
        ("read_file", "search_files", "write_file"),
        "openai:qwen3@http://127.0.0.1:8080/v1",
    ),
    Expected("retinue/bare.md", "bare", "Poet"),
]

NOT_YAML = [
    Expected(
        "claude/colon.md",
        "colon",
        "Use this agent for migrations: schema changes, backfills and rollbacks.",
        ("read_file", "run_command", "write_file"),
        SONNET,
    ),
    Expected(
        "claude/examples-inline.md",
        "boilerplate-writer",
        "Use this agent when a class has to be begun. Examples: <example>Context: The user wants a"
        " store. user: 'I need a session store' assistant: 'I will begin one.' <commentary>A class"
        " has to be begun.</commentary></example>",
        problems=(no("haiku"),),
    ),
    Expected(
        "claude/examples-lines.md",
        "quality-enforcer",
        "Use this agent to look at the quality of code as a whole. Examples: <example> Context: The"
        ' user wants a review. user: "Can you look at my service?" assistant: "I\'ll use the'
        ' quality-enforcer agent for that." <commentary> The user asks for quality, so'
        " quality-enforcer it is. </commentary> </example>",
        LOOK,
        problems=(no("opus"),),
    ),
    Expected(
        "claude/tabs.md",
        "tabbed",
        "Somebody's editor indents with tabs.",
        ("edit_file", "read_file", "search_files"),
        SONNET,
    ),
    Expected(
        "claude/open-quote.md",
        "open-quote",
        "Fixes flaky tests and says why they were flaky",
        ("edit_file", "read_file", "run_command"),
        turns=12,
    ),
    Expected(
        "claude/apostrophe.md", "apostrophe", "Doesn't guess: reads the user's code first", LOOKS
    ),
    Expected(
        "claude/star.md", "star", "*Proactively* reviews every change to the schema", LOOK, SONNET
    ),
    Expected(
        "claude/at-sign.md",
        "at-sign",
        "@docs agent, keeps the handbook true",
        ("edit_file", "read_file", "write_file"),
    ),
    Expected(
        "claude/backtick.md",
        "backtick",
        "`make test` runner and explainer",
        ("read_file", "run_command"),
        turns=8,
    ),
    Expected(
        "claude/percent.md",
        "percent",
        "%-formatting hunter, turns old formatting into f-strings",
        ("edit_file", "read_file"),
    ),
    Expected(
        "claude/after-quote.md",
        "after-quote",
        '"Quick" fixer for small things',
        ("edit_file", "read_file"),
        problems=(no("haiku"),),
    ),
    Expected("claude/twice.md", "twice", "The second description.", LOOK),
    Expected("claude/unclosed-list.md", "unclosed-list", "Forgot a bracket.", LOOKS, SONNET),
    Expected(
        "claude/loose-text.md",
        "loose-text",
        "Looks after the changelog and keeps the entries short",
        ("edit_file", "read_file"),
    ),
    Expected(
        "claude/when.md",
        "when",
        "When to use: after a release and before the next one",
        READ,
        turns=5,
    ),
    Expected("claude/no-space.md", "no-space", "Forgets the space after the colon", LOOK),
    Expected(
        "opencode/planner-lines.md",
        "planner-lines",
        "Plans: first the risks, then the steps",
        NO_CHANGE,
        problems=("bash: left out, because its patterns", no("openai/gpt-5")),
    ),
    Expected("opencode/nested-tabs.md", "nested-tabs", "A map with tabs", NO_WRITE),
    Expected(
        "gemini/flashcards.md",
        "flashcards",
        "Makes cards from notes: question, answer, source",
        READ,
        turns=18,
        problems=("unknown tools: mcp_anki_addNotes",),
    ),
    Expected(
        "github/beast.md",
        "beast",
        "GPT beast mode: doesn't stop until it is done",
        ("edit_file", "read_file", "run_command", "write_file"),
        GPT,
    ),
    Expected(
        "github/migration.agent.md",
        "migration",
        "Moves a service to ARM : containers, images, flags",
        ("edit_file", "find_files", "read_file", "search_files", "write_file"),
    ),
    Expected(
        "retinue/careless.md",
        "careless",
        "Has limits: that make no sense",
        problems=(
            "../../etc/passwd: left out",
            "unknown mode 'reckless'; there are: plan",
            "max_turns is not used: 'many' is no number",
            "timeout_s is not used: timeout_s must be at least 5 seconds, not 1.",
        ),
    ),
]

UNUSABLE = {
    "claude/README.md": "",
    "claude/notes.md": "no fields",
    "claude/only-mcp.md": "none of its tools is known here: mcp__linear__list_issues",
    "opencode/worker.md": "",
    "opencode/retired.md": "",
    "gemini/far-away.md": "remote agent",
    "github/tracker.agent.md": "none of its tools is known here: github/*, jira-mcp/search",
    "codex/broken.toml": "not valid TOML",
}


def agent(file: str) -> AgentFile:
    text = (DATA / file).read_bytes().decode()
    folder, _, name = file.partition("/")
    return parse_agent_file(text, file=name, dialect=DIALECTS[folder], names=NAMES)


def written(*lines: str, dialect: Dialect = Dialect.CLAUDE, body: str = "Do it.") -> AgentFile:
    text = "\n".join(["---", "name: x", *lines, "---", body])
    return parse_agent_file(text, file="x.md", dialect=dialect, names=NAMES)


def test_every_data_file_has_an_expectation() -> None:
    files = {str(path.relative_to(DATA)) for path in DATA.rglob("*.*")}
    assert files == {*(e.file for e in [*FINE, *NOT_YAML]), *UNUSABLE}
    assert len(files) >= 40
    assert len(NOT_YAML) >= 18


@pytest.mark.parametrize("expected", [*FINE, *NOT_YAML], ids=lambda e: e.file)
def test_agent_file_is_parsed(expected: Expected) -> None:
    found = agent(expected.file)
    assert found.name == expected.name
    assert found.spec.description == expected.description
    assert found.spec.tools == expected.tools
    assert found.spec.model == expected.model
    assert found.spec.budget.max_turns == expected.turns
    assert found.spec.system_prompt
    by_line = [p for p in found.problems if p.endswith("read line by line")]
    others = [p for p in found.problems if p not in by_line]
    assert len(by_line) == (expected in NOT_YAML)
    assert len(others) == len(expected.problems), others
    for part, problem in zip(expected.problems, others, strict=True):
        assert part in problem


@pytest.mark.parametrize("file", UNUSABLE)
def test_unusable_file_has_a_reason(file: str) -> None:
    with pytest.raises(NotAnAgent) as error:
        agent(file)
    reason = UNUSABLE[file]
    assert reason in str(error.value) if reason else str(error.value) == ""


def test_body_is_the_prompt() -> None:
    assert agent("claude/architect.md").spec.system_prompt == (
        "# Architect\n\nYou draw boxes before anybody writes code."
    )
    assert agent("codex/explorer.toml").spec.system_prompt == "You explore. Do not edit files."
    assert written("description: Only that.", body="").spec.system_prompt == "Only that."


def test_effort_of_other_programs() -> None:
    assert agent("codex/explorer.toml").spec.sampling == Sampling(effort="high")
    assert written("effort: High").spec.sampling == Sampling(effort="high")
    odd = written("effort: 11")
    assert odd.spec.sampling == Sampling()
    assert [one for one in odd.problems if "effort" in one] == [
        "effort is not used: effort must be one of none, minimal, low, medium, high, xhigh, max,"
        " not '11'."
    ]


def test_retinue_file_can_set_every_profile_field() -> None:
    found = agent("retinue/migrator.md")
    spec = found.spec
    assert found.problems == ()
    assert spec.write == ("migrations/**",)
    assert spec.mode is Mode.AUTO
    assert spec.spawns == ("reviewer",)
    assert spec.system_prompt_file == "docs/migrations.md"
    assert spec.bootstrap_files == ("AGENTS.md",)
    assert spec.budget.given() == {"max_tool_calls": 12, "timeout_s": 90.0, "max_cost_usd": 0.5}


def test_foreign_file_cannot_use_retinue_keys() -> None:
    found = written("write: false", "spawns: reviewer", "mode: auto", "max_tokens: 5")
    assert (found.spec.write, found.spec.spawns, found.spec.mode) == (None, None, None)
    assert found.spec.budget.given() == {}
    assert found.problems == ("not used here: write, spawns, max_tokens",)


def test_spawn_rights() -> None:
    assert agent("claude/team-lead.md").spec.spawns == NAMES.roles
    assert agent("opencode/manager.md").spec.spawns == NAMES.roles
    assert agent("claude/coordinator.md").spec.spawns == ("code-reviewer", "debugger")
    assert agent("claude/everything.md").spec.spawns is None
    assert written("tools: Task, Read", "disallowedTools: Task").spec.spawns is None


def test_agent_that_only_delegates_has_no_tools() -> None:
    assert written("tools: Task").spec.tools == ()


def test_empty_tool_list_means_no_tools() -> None:
    assert written("tools: []").spec.tools == ()
    assert written("tools:").spec.tools is None


@pytest.mark.parametrize(
    ("lines", "mode"),
    [
        (["permissionMode: plan"], Mode.PLAN),
        (["permissionMode: acceptEdits"], None),
        (["readonly: true"], Mode.PLAN),
        (["mode: primary"], None),
    ],
)
def test_modes(lines: list[str], mode: Mode | None) -> None:
    assert written(*lines).spec.mode is mode


def test_read_only_sandbox_is_plan_mode() -> None:
    assert agent("codex/explorer.toml").spec.mode is Mode.PLAN
    assert agent("codex/fearless.toml").spec.mode is None


@pytest.mark.parametrize(
    ("model", "route"),
    [
        ("Sonnet", SONNET),
        ("anthropic/sonnet", SONNET),
        ("GPT-4.1 (copilot)", GPT),
        ("[opus, sonnet]", SONNET),
        ("inherit", None),
        ("openai:evil@http://example.com/v1", None),
    ],
)
def test_model_names_are_resolved_by_user_settings(model: str, route: str | None) -> None:
    found = written(f"model: {model}")
    assert found.spec.model == route
    assert len(found.problems) == (route is None and model != "inherit")


def test_denied_pattern_denies_the_tool() -> None:
    found = written("tools: Read, Bash", "disallowedTools: Bash(rm:*)")
    assert found.spec.tools == READ
    assert found.problems == ("Bash(rm:*) is denied: Bash is denied as a whole",)


def test_denying_notebook_edit_keeps_edit_file() -> None:
    found = written("tools: Read, Edit", "disallowedTools: NotebookEdit")
    assert found.spec.tools == ("edit_file", "read_file")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["tools: Bash(git:*)"], "none of its tools is known here"),
        (["tools: Read", "disallowedTools: Read"], "none of its tools is left"),
        (["tools:", "  '*': false"], "all are off"),
        (["permission: deny"], "none of its tools is left"),
        (["permission:", "  '*': deny"], "none of its tools is left"),
    ],
)
def test_agent_without_any_tool_left_is_unusable(lines: list[str], reason: str) -> None:
    text = "\n".join(["---", "name: x", *lines, "---", "Do it."])
    with pytest.raises(NotAnAgent, match=re.escape(reason)):
        parse_agent_file(text, file="x.md", dialect=Dialect.OPENCODE, names=NAMES)


def test_custom_tool_is_known_by_name() -> None:
    names = KnownNames(tools=(*BUILTIN_TOOLS, "deploy"))
    text = "---\nname: x\ntools: deploy, Read\n---\nDo it."
    found = parse_agent_file(text, file="x.md", dialect=Dialect.RETINUE, names=names)
    assert found.spec.tools == ("deploy", "read_file")


def test_clean_name_and_one_line() -> None:
    assert clean_name("My Agent! (v2)") == "My-Agent-v2"
    assert clean_name("日本") == ""
    assert one_line("a\\nb\n c\x1b[2Jd", 20) == "a b c[2Jd"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"


KEYS = (
    "name", "description", "tools", "disallowedTools", "permission", "mode", "model", "maxTurns",
    "timeout_mins", "budget", "write", "bootstrap_files",
)  # fmt: skip


@pytest.mark.parametrize("dialect", Dialect)
@given(
    text=st.text()
    | st.builds(
        "---\n{}\n---\n{}".format,
        st.lists(
            st.builds(
                "{}: {}".format,
                st.sampled_from(KEYS),
                st.text(max_size=30)
                | st.sampled_from(["{a: {b: c}}", "[[x], {y: z}]", "{'*': deny}", "-1", "1e400"]),
            ),
            max_size=8,
        ).map("\n".join),
        st.text(max_size=20),
    )
)
def test_parser_raises_nothing_else(dialect: Dialect, text: str) -> None:
    with suppress(NotAnAgent):
        parse_agent_file(text, file="x.md", dialect=dialect, names=NAMES)
