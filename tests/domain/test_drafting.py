"""The contract table: (parent's grant, role, spec) to what the child gets, and what is said."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.account import UNLIMITED, Resources
from retinue.domain.agent_spec import AgentSpec, Authority, RequestedOutput, RequestedPermissions
from retinue.domain.budget import Budget, Limits
from retinue.domain.contract import WorkspaceKind
from retinue.domain.drafting import ContractDrafter, DraftedContract
from retinue.domain.grant import Grant, Mode, Network
from retinue.domain.messages import Effect
from retinue.domain.permissions import root_grant, without_delegation
from retinue.domain.role import Role
from retinue.domain.scope import NOWHERE, contains, scope
from retinue.errors import ContractError

EFFECTS = {
    "ask_user": Effect.READ,
    "look": Effect.READ,
    "search": Effect.READ,
    "note": Effect.REMEMBER,
    "write": Effect.WRITE,
    "shell": Effect.EXECUTE,
    "spawn": Effect.DELEGATE,
    "wait": Effect.DELEGATE,
}
ALL = tuple(EFFECTS)
ROLES = ("boss", "maker", "reader", "viewer")

READER = Role(name="reader", description="", instructions="Read.", tools=("look", "search", "note"))
MAKER = Role(
    name="maker",
    description="",
    instructions="Make.",
    tools=("look", "write", "shell"),
    spawns=("reader",),
    budget=Budget(max_tool_calls=30, max_context_tokens=20_000),
)
VIEWER = Role(name="viewer", description="", instructions="View.", mode=Mode.PLAN)
ANYTHING = Role(name="boss", description="", instructions="Do.")


def root(mode: Mode, **fields: Any) -> Grant:
    return msgspec.structs.replace(root_grant(mode, EFFECTS, roles=ROLES, depth=2), **fields)


def authority(grant: Grant, budget: Budget | None = None, **left: int) -> Authority:
    budget = budget or Budget(
        max_tool_calls=100,
        max_turns=200,
        max_tokens=None,
        max_context_tokens=32_768,
        timeout_s=3_600,
        max_retries=0,
    )
    amounts = {"tokens": UNLIMITED, "cost_microusd": UNLIMITED, "tool_calls": 9, "turns": 9}
    return Authority(
        run_id="r",
        agent_id="a0",
        task_prompt="The goal.",
        grant=grant,
        budget=budget,
        remaining=Resources(**(amounts | left)),
        model="mine",
        working_directory="/project",
    )


def spec_of(role: Role, **asked: Any) -> AgentSpec:
    """A spec, with the requested permissions as arguments of its own."""
    fields = {*RequestedPermissions.__struct_fields__} & {*asked}
    permissions = RequestedPermissions(**{name: asked.pop(name) for name in fields})
    return AgentSpec(task="Do it.", role=role, permissions=permissions, **asked)


def drafted(role: Role, by: Authority | Grant, **asked: Any) -> DraftedContract:
    parent = authority(by) if isinstance(by, Grant) else by
    return ContractDrafter(EFFECTS).draft(spec_of(role, **asked), parent, step_idx=3)


def yes(tool: str, mode: str = "normal") -> str:
    return f"without {tool}: it needs a person's yes in {mode} mode; use mode auto"


# Tools and mode: A6 as a table. Columns: parent's mode, role, spec, tools, mode, notes.

TABLE: list[tuple[str, Mode, Role, dict[str, Any], str, Mode, list[str]]] = [
    (
        "what is asked about is not given in normal mode",
        Mode.NORMAL,
        MAKER,
        {},
        "look spawn wait",
        Mode.NORMAL,
        [yes("shell"), yes("write")],
    ),
    (
        "it is given freely under auto",
        Mode.AUTO,
        MAKER,
        {},
        "look shell spawn wait write",
        Mode.AUTO,
        [],
    ),
    (
        "and under dangerous",
        Mode.DANGEROUS,
        MAKER,
        {},
        "look shell spawn wait write",
        Mode.DANGEROUS,
        [],
    ),
    (
        "plan denies every write, and delegation with it",
        Mode.AUTO,
        MAKER,
        {"mode": Mode.PLAN},
        "look",
        Mode.PLAN,
        ["without shell: plan mode only reads", "without write: plan mode only reads"],
    ),
    (
        "what the parent has freely needs nobody's yes in a lower mode either",
        Mode.AUTO,
        MAKER,
        {"mode": Mode.NORMAL},
        "look shell spawn wait write",
        Mode.NORMAL,
        [],
    ),
    (
        "a mode above the parent's is its own",
        Mode.NORMAL,
        MAKER,
        {"mode": Mode.DANGEROUS},
        "look spawn wait",
        Mode.NORMAL,
        [
            "mode dangerous became normal: the parent has no more than that",
            yes("shell"),
            yes("write"),
        ],
    ),
    (
        "a role's mode holds against the spec",
        Mode.AUTO,
        VIEWER,
        {"mode": Mode.AUTO},
        "look search",
        Mode.PLAN,
        [
            "without ask_user: a child never talks to the user",
            "without note: plan mode only reads",
            "without shell: plan mode only reads",
            "without write: plan mode only reads",
        ],
    ),
    (
        "no tools named: all that the parent has, but for the user and for children",
        Mode.AUTO,
        ANYTHING,
        {},
        "look note search shell write",
        Mode.AUTO,
        ["without ask_user: a child never talks to the user"],
    ),
    (
        "a call's tools go before the role's",
        Mode.AUTO,
        READER,
        {"tools": ("write",)},
        "write",
        Mode.AUTO,
        [],
    ),
    ("none at all can be asked for", Mode.AUTO, READER, {"tools": ()}, "", Mode.AUTO, []),
    (
        "delegation cannot be had by naming its tools",
        Mode.AUTO,
        READER,
        {"tools": ("look", "spawn")},
        "look",
        Mode.AUTO,
        ["without spawn: reader has no right to delegate"],
    ),
    (
        "the user cannot be had by naming the tool",
        Mode.DANGEROUS,
        READER,
        {"tools": ("ask_user", "look")},
        "look",
        Mode.DANGEROUS,
        ["without ask_user: a child never talks to the user"],
    ),
]


@pytest.mark.parametrize(
    ("mode", "role", "spec", "tools", "childs", "notes"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_tools_and_mode(
    mode: Mode, role: Role, spec: dict[str, Any], tools: str, childs: Mode, notes: list[str]
) -> None:
    draft = drafted(role, root(mode), **spec)
    grant = draft.contract.permissions
    assert grant.allowed_tools == tuple(tools.split())
    assert grant.ask_tools == ()
    assert grant.mode is childs
    assert list(draft.notes) == notes
    assert grant.network is Network.NONE


def test_what_the_parent_does_not_have_is_not_given_and_told() -> None:
    parent = root(Mode.AUTO, allowed_tools=("look", "spawn"), ask_tools=())
    draft = drafted(MAKER, parent)
    assert draft.contract.permissions.allowed_tools == ("look", "spawn")
    assert draft.notes == ("without shell, write: the parent does not have it",)


def test_an_unknown_tool_is_refused() -> None:
    with pytest.raises(ContractError) as caught:
        drafted(READER, root(Mode.AUTO), tools=("fly",))
    assert str(caught.value) == (
        "Unknown tool 'fly'; there are: ask_user, look, note, search, shell, spawn, wait, write."
    )


# The right to spawn


@pytest.mark.parametrize(
    ("depth", "mode", "may"),
    [(2, Mode.AUTO, True), (1, Mode.AUTO, False), (2, Mode.PLAN, False), (2, Mode.NORMAL, True)],
)
def test_a_child_may_spawn_where_role_depth_and_mode_allow(
    depth: int, mode: Mode, may: bool
) -> None:
    parent = root(Mode.AUTO, max_delegation_depth=depth)
    grant = drafted(MAKER, parent, mode=mode).contract.permissions
    assert grant.can_spawn_children is may
    assert grant.spawn_roles == (("reader",) if may else ())
    assert grant.max_delegation_depth == (depth - 1 if may else 0)
    assert ("spawn" in grant.allowed_tools) is may


def test_a_child_employs_only_whom_its_parent_may() -> None:
    parent = root(Mode.AUTO, spawn_roles=("maker",))
    grant = drafted(MAKER, parent).contract.permissions
    assert not grant.can_spawn_children
    assert "spawn" not in grant.allowed_tools


def test_who_may_not_delegate_does_not() -> None:
    parent = root(Mode.AUTO, can_spawn_children=False)
    with pytest.raises(ContractError, match="This agent may not delegate"):
        drafted(READER, parent)
    narrow_grant = root(Mode.AUTO, spawn_roles=("maker",))
    with pytest.raises(ContractError) as caught:
        drafted(READER, narrow_grant)
    assert str(caught.value) == "This agent may not spawn 'reader'; it may spawn: maker."


def test_who_has_no_right_has_no_tools_for_it() -> None:
    grant = root(Mode.AUTO, can_spawn_children=False)
    assert without_delegation(grant, EFFECTS).allowed_tools == (
        "ask_user",
        "look",
        "note",
        "search",
        "shell",
        "write",
    )
    assert without_delegation(root(Mode.AUTO), EFFECTS) == root(Mode.AUTO)


@pytest.mark.parametrize(
    ("mode", "freely", "asked"),
    [
        (Mode.PLAN, "ask_user look search", ""),
        (Mode.NORMAL, "ask_user look note search spawn wait", "shell write"),
        (Mode.AUTO, "ask_user look note search shell spawn wait write", ""),
        (Mode.DANGEROUS, "ask_user look note search shell spawn wait write", ""),
    ],
)
def test_the_root(mode: Mode, freely: str, asked: str) -> None:
    grant = root_grant(mode, EFFECTS, roles=ROLES, depth=2)
    assert grant.allowed_tools == tuple(freely.split())
    assert grant.ask_tools == tuple(asked.split())


# Scope


@pytest.mark.parametrize(
    ("parents", "roles", "spec", "inside", "outside"),
    [
        ((), (), {}, "anything/at.all", ""),
        ((), (), {"scope": ("src",)}, "src/a.py", "lib/a.py"),
        ((), (), {"write": ("src", "lib")}, "lib/a.py", "doc/a.md"),
        ((), (), {"write": ()}, "", "src/a.py"),
        ((), scope("tests"), {"scope": ("tests/unit",)}, "tests/unit/x.py", "tests/y.py"),
        (scope("src"), (), {}, "src/a.py", "lib/a.py"),
        (scope("src"), (), {"scope": ("lib",)}, "", "lib/a.py"),
        (scope("src"), scope("**/test_*"), {}, "src/test_a.py", "src/a.py"),
        ((), NOWHERE, {"write": ("src",)}, "", "src/a.py"),
    ],
)
def test_writing_is_inside_all_that_anybody_says(
    parents: tuple[tuple[str, ...], ...],
    roles: tuple[tuple[str, ...], ...],
    spec: dict[str, Any],
    inside: str,
    outside: str,
) -> None:
    role = msgspec.structs.replace(MAKER, write_scope=roles)
    groups = drafted(role, root(Mode.AUTO, write_scope=parents), **spec)
    written = groups.contract.permissions.write_scope
    assert not inside or contains(written, inside)
    assert not outside or not contains(written, outside)
    assert groups.contract.step.scope == spec.get("scope", ())


# Budgets. Columns: parent's budget, what is left, role, spec, expected fields, notes.

PARENT = Budget(
    max_tool_calls=20,
    max_turns=40,
    max_tokens=50_000,
    max_context_tokens=9_000,
    timeout_s=60,
    max_cost_usd=2.0,
)
BUDGETS: list[
    tuple[str, Budget | None, dict[str, int], Role, dict[str, Any], dict[str, Any], list[str]]
] = [
    (
        "defaults",
        None,
        {},
        READER,
        {},
        {
            "max_tool_calls": 15,
            "max_turns": 50,
            "max_tokens": 65_536,
            "max_context_tokens": 8_192,
            "timeout_s": 300.0,
            "max_cost_usd": None,
            "max_retries": 1,
        },
        [],
    ),
    (
        "a role's own",
        None,
        {},
        MAKER,
        {},
        {"max_tool_calls": 30, "max_context_tokens": 20_000, "max_turns": 50},
        [],
    ),
    (
        "a spec changes some",
        None,
        {},
        MAKER,
        {"max_tool_calls": 5, "max_retries": 0},
        {"max_tool_calls": 5, "max_retries": 0, "max_context_tokens": 20_000},
        [],
    ),
    (
        "a role's own above the parent's is quietly the parent's",
        PARENT,
        {"tokens": 70_000},
        MAKER,
        {},
        {"max_tool_calls": 20, "max_turns": 40, "timeout_s": 60.0, "max_tokens": 65_536},
        [],
    ),
    (
        "a spec above the parent's is clamped aloud",
        PARENT,
        {},
        MAKER,
        {"max_tool_calls": 200, "max_turns": 41, "timeout_s": 90},
        {"max_tool_calls": 20, "max_turns": 40, "timeout_s": 60.0},
        [
            "max_tool_calls 200 became 20: the parent has no more",
            "max_turns 41 became 40: the parent has no more",
            "timeout_s 90 became 60: the parent has no more",
        ],
    ),
    (
        "tokens are what is left of them",
        PARENT,
        {"tokens": 1_234_567},
        READER,
        {"max_tokens": 2_000_000},
        {"max_tokens": 1_234_567},
        ["max_tokens 2000000 became 1234567: the parent has no more"],
    ),
    (
        "also where only somebody above the parent has a limit",
        None,
        {"tokens": 9_000},
        READER,
        {},
        {"max_tokens": 9_000},
        ["max_tokens 65536 became 9000: the parent has no more"],
    ),
    (
        "money too",
        PARENT,
        {"cost_microusd": 500_000},
        READER,
        {"max_cost_usd": 1.5},
        {"max_cost_usd": 0.5},
        ["max_cost_usd 1.5 became 0.5: the parent has no more"],
    ),
    (
        "what nobody limits is limited by the parent's money",
        PARENT,
        {"cost_microusd": 500_000},
        READER,
        {},
        {"max_cost_usd": 0.5},
        [],
    ),
]


@pytest.mark.parametrize(
    ("parent", "left", "role", "limits", "expected", "notes"),
    [row[1:] for row in BUDGETS],
    ids=[row[0] for row in BUDGETS],
)
def test_budgets(
    parent: Budget | None,
    left: dict[str, int],
    role: Role,
    limits: dict[str, Any],
    expected: dict[str, Any],
    notes: list[str],
) -> None:
    draft = drafted(role, authority(root(Mode.AUTO), parent, **left), limits=Limits(**limits))
    budget = draft.contract.execution.budget
    assert {name: getattr(budget, name) for name in expected} == expected
    assert list(draft.notes) == notes


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_tool_calls": 0}, "max_tool_calls must be positive, not 0."),
        ({"max_turns": -1}, "max_turns must be positive, not -1."),
        ({"max_tokens": 0}, "max_tokens must be positive, not 0."),
        ({"max_context_tokens": 0}, "max_context_tokens must be positive, not 0."),
        ({"timeout_s": 4.9}, "timeout_s must be at least 5 seconds, not 4.9."),
        ({"max_cost_usd": 0}, "max_cost_usd must be positive, not 0."),
        ({"max_retries": -1}, "max_retries must be 0 or more, not -1."),
    ],
)
def test_a_senseless_limit_is_refused_before_it_is_clamped(
    limits: dict[str, Any], message: str
) -> None:
    with pytest.raises(ContractError) as caught:
        drafted(READER, authority(root(Mode.AUTO), PARENT), limits=Limits(**limits))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("left", "message"),
    [
        ({"tokens": 0}, "No tokens are left for a child; finish with what there is."),
        ({"cost_microusd": 0}, "No money is left for a child; finish with what there is."),
    ],
)
def test_where_nothing_is_left_nobody_is_hired(left: dict[str, int], message: str) -> None:
    with pytest.raises(ContractError) as caught:
        drafted(READER, authority(root(Mode.AUTO), PARENT, **left))
    assert str(caught.value) == message


# The rest of the contract


def test_the_spec_goes_before_the_role_and_the_role_before_the_parent() -> None:
    draft = drafted(
        msgspec.structs.replace(READER, model="theirs"),
        root(Mode.AUTO),
        context="framed",
        output=RequestedOutput(schema="{}", success_criteria=("It works.",)),
        notes=("skipped a.txt: it is not text",),
    )
    contract = draft.contract
    assert draft.notes == ("skipped a.txt: it is not text",)
    assert (contract.parent.run_id, contract.parent.agent_id) == ("r", "a0")
    assert (contract.parent.step_idx, contract.parent.task_prompt) == (3, "The goal.")
    assert (contract.step.title, contract.step.description) == ("Do it.", "Do it.")
    assert (contract.step.context, contract.step.success_criteria) == ("framed", ("It works.",))
    execution = contract.execution
    assert (execution.role, execution.instructions) == ("reader", "Read.")
    assert (execution.model, execution.working_directory) == ("theirs", "/project")
    assert contract.outputs.output_schema == "{}"
    spec = spec_of(READER, model="said", directory="/p/web")
    said = ContractDrafter(EFFECTS).draft(
        spec, authority(root(Mode.AUTO)), step_idx=0, instructions="Now."
    )
    execution = said.contract.execution
    assert (execution.model, execution.working_directory) == ("said", "/p/web")
    assert execution.instructions == "Now."
    assert drafted(READER, root(Mode.AUTO)).contract.execution.model == "mine"


# And never wider


MODES = st.sampled_from(list(Mode))
NAMES = st.lists(st.sampled_from(ALL), unique=True).map(tuple)
SOME = st.none() | NAMES
GRANTS = st.builds(
    Grant,
    allowed_tools=NAMES,
    ask_tools=NAMES,
    mode=MODES,
    write_scope=st.sampled_from([(), NOWHERE, scope("src"), scope("src", "tests")]),
    can_spawn_children=st.just(True),
    spawn_roles=st.just(("any",)),
    max_delegation_depth=st.integers(1, 3),
)


@given(
    grant=GRANTS,
    role_tools=SOME,
    tools=SOME,
    role_mode=st.none() | MODES,
    mode=st.none() | MODES,
    spawns=st.sampled_from([(), ("any",), ("any", "other")]),
)
def test_no_spec_makes_a_child_wider_than_its_parent(
    grant: Grant,
    role_tools: tuple[str, ...] | None,
    tools: tuple[str, ...] | None,
    role_mode: Mode | None,
    mode: Mode | None,
    spawns: tuple[str, ...],
) -> None:
    role = Role(
        name="any",
        description="",
        instructions="",
        tools=role_tools,
        mode=role_mode,
        spawns=spawns,
    )
    child = drafted(role, authority(grant), tools=tools, mode=mode).contract.permissions
    assert set(child.allowed_tools) <= {*grant.allowed_tools, *grant.ask_tools}
    assert child.ask_tools == ()
    assert child.mode.rank <= grant.mode.rank
    assert set(child.spawn_roles) <= set(grant.spawn_roles)
    assert child.max_delegation_depth < grant.max_delegation_depth
    assert "ask_user" not in child.allowed_tools
    asked = set(grant.ask_tools) & set(child.allowed_tools)
    assert not asked or child.mode in (Mode.AUTO, Mode.DANGEROUS)
    effects = {EFFECTS[name] for name in child.allowed_tools}
    assert child.mode is not Mode.PLAN or effects <= {Effect.READ}
    assert child.can_spawn_children or Effect.DELEGATE not in effects
    for path in ("src/a", "tests/a", "x"):
        assert contains(grant.write_scope, path) or not contains(child.write_scope, path)
    assert (
        role_tools is None
        or tools is not None
        or {n for n in child.allowed_tools if EFFECTS[n] is not Effect.DELEGATE} <= set(role_tools)
    )


# Tools of servers

SERVED = {
    **EFFECTS,
    "mcp__git__log": Effect.READ,
    "mcp__git__push": Effect.EXTERNAL,
    "mcp__git__tag": Effect.EXTERNAL,
    "mcp__web__get": Effect.READ,
}


def served(role: Role, mode: Mode, /, **spec: Any) -> DraftedContract:
    grant = root_grant(mode, SERVED, roles=ROLES, depth=2)
    return ContractDrafter(SERVED).draft(spec_of(role, **spec), authority(grant), step_idx=0)


VARIED: dict[str, list[Any]] = {
    "by": [
        authority(root_grant(m, SERVED, roles=ROLES, depth=2)) for m in (Mode.AUTO, Mode.NORMAL)
    ],
    "role": [ANYTHING, MAKER, msgspec.structs.replace(ANYTHING, tools=("look", "shell"))],
    "tools": [None, ("look", "mcp__git__push", "write")],
    "mode": [None, Mode.PLAN, Mode.AUTO],
    "scope": [(), ("src",)],
    "write": [None, (), ("docs",)],
    "directory": [None, "/p/web"],
    "workspace": [None, *WorkspaceKind],
    "limits": [Limits(), Limits(max_turns=7)],
}


@given(st.lists(st.sampled_from([(name, v) for name, values in VARIED.items() for v in values])))
def test_what_a_sibling_was_given_changes_nothing(changes: list[tuple[str, Any]]) -> None:
    drafter, asked = ContractDrafter(SERVED), {name: values[0] for name, values in VARIED.items()}
    for name, value in changes:
        asked[name] = value
        by = asked["by"]
        spec = spec_of(**{name: asked[name] for name in asked if name != "by"})
        alone = ContractDrafter(SERVED).draft(spec, by, step_idx=0)
        assert drafter.draft(spec, by, step_idx=0) == alone
        assert drafter.preview(spec, by) == alone.contract.permissions


def foreign(drafted: DraftedContract) -> str:
    tools = drafted.contract.permissions.allowed_tools
    return " ".join(tool.removeprefix("mcp__") for tool in tools if tool.startswith("mcp__"))


def listing(*tools: str) -> Role:
    return msgspec.structs.replace(ANYTHING, tools=tools)


@pytest.mark.parametrize(
    ("role", "mode", "spec", "tools"),
    [
        (ANYTHING, Mode.AUTO, {}, "git__log git__push git__tag web__get"),
        (ANYTHING, Mode.NORMAL, {}, "git__log web__get"),
        (ANYTHING, Mode.AUTO, {"mode": Mode.PLAN}, "git__log web__get"),
        (ANYTHING, Mode.AUTO, {"scope": ("src",)}, "git__log web__get"),
        (ANYTHING, Mode.AUTO, {"write": ("**",)}, "git__log git__push git__tag web__get"),
        (ANYTHING, Mode.AUTO, {"write": ()}, "git__log web__get"),
        (ANYTHING, Mode.AUTO, {"directory": "/project/src"}, "git__log web__get"),
        (listing("look"), Mode.AUTO, {}, ""),
        (listing("look", "mcp__*"), Mode.AUTO, {}, "git__log git__push git__tag web__get"),
        (listing("look", "mcp:read"), Mode.AUTO, {}, "git__log web__get"),
        (listing("mcp__git__*"), Mode.AUTO, {}, "git__log git__push git__tag"),
        (listing("mcp__git"), Mode.AUTO, {}, "git__log git__push git__tag"),
        (listing("mcp__none__*"), Mode.AUTO, {}, ""),
        (listing("look"), Mode.AUTO, {"tools": ("mcp__git__p*",)}, "git__push"),
    ],
)
def test_who_gets_tools_of_servers(
    role: Role, mode: Mode, spec: dict[str, Any], tools: str
) -> None:
    assert foreign(served(role, mode, **spec)) == tools


def test_what_is_missing_of_a_server_is_one_note() -> None:
    why = "no scope can hold it, and this child is to keep to one"
    assert f"without mcp__git__push and 1 more of git: {why}" in (
        served(ANYTHING, Mode.AUTO, scope=("src",)).notes
    )
    named = listing("mcp__git__push", "mcp__*")
    assert served(named, Mode.AUTO, scope=("src",)).notes == (f"without mcp__git__push: {why}",)
    # Nobody counts on what is only in "whatever the servers have".
    assert served(listing("mcp__*"), Mode.AUTO, scope=("src",)).notes == ()


def test_a_parent_without_the_tool_cannot_give_it() -> None:
    parent = authority(Grant(allowed_tools=("look",), can_spawn_children=True, spawn_roles=ROLES,
                            max_delegation_depth=2, mode=Mode.AUTO))  # fmt: skip
    found = ContractDrafter(SERVED).draft(spec_of(listing("mcp__git__push")), parent, step_idx=0)
    assert foreign(found) == ""
    assert found.notes == ("without mcp__git__push: the parent does not have it",)


def test_an_unknown_pattern_in_a_call_is_a_mistake() -> None:
    with pytest.raises(ContractError, match=r"Unknown tool 'mcp__none__\*'; there are: ask_user"):
        served(ANYTHING, Mode.AUTO, tools=("mcp__none__*",))
    assert foreign(served(ANYTHING, Mode.AUTO, tools=("mcp:read",))) == "git__log web__get"


# The root


def test_a_root_gets_all_that_the_user_gives() -> None:
    user = msgspec.structs.replace(
        authority(root(Mode.NORMAL), Budget(max_tokens=9_000)), agent_id=None, checks=("make",)
    )
    spec = AgentSpec(role=ANYTHING, task="Do it.", context="framed", notes=("a note",))
    found = ContractDrafter(EFFECTS).draft_root(spec, user, instructions="Lead.")
    contract = found.contract
    assert found.notes == ("a note",)
    assert (contract.parent.agent_id, contract.parent.step_idx) == (None, 0)
    assert (contract.step.description, contract.step.context) == ("Do it.", "framed")
    assert contract.permissions == root(Mode.NORMAL)
    assert (contract.execution.instructions, contract.execution.model) == ("Lead.", "mine")
    assert contract.execution.workspace is WorkspaceKind.SHARED
    assert contract.execution.budget == Budget(max_tokens=9_000)
    assert contract.outputs.checks == ("make",)


def test_a_root_in_plan_mode_changes_nothing() -> None:
    spec = AgentSpec(role=ANYTHING, task="Do it.")
    user = authority(root(Mode.PLAN, can_spawn_children=False))
    contract = ContractDrafter(EFFECTS).draft_root(spec, user, instructions="").contract
    assert contract.execution.workspace is WorkspaceKind.READONLY
    assert contract.permissions.allowed_tools == ("ask_user", "look", "search")
