"""Drafting contracts: budgets, what the spec, the role and the parent say, and roots."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.account import UNLIMITED, Resources
from retinue.domain.agent_spec import (
    AgentSpec,
    Authority,
    RequestedOutput,
    RequestedPermissions,
    StepLabel,
)
from retinue.domain.budget import Budget, Limits
from retinue.domain.contract import OnConflict, WorkspaceKind
from retinue.domain.drafting import ContractDrafter, DraftedContract
from retinue.domain.grant import Grant, Mode
from retinue.domain.images import Image
from retinue.domain.messages import Effect
from retinue.domain.permissions import root_grant
from retinue.domain.role import Role
from retinue.domain.sampling import Sampling
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
            "max_context_tokens": 24_576,
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
        "all that is left needs no note",
        PARENT,
        {"tokens": 9_000, "cost_microusd": 500_000},
        READER,
        {"max_tokens": 9_000, "max_cost_usd": 0.5},
        {"max_tokens": 9_000, "max_cost_usd": 0.5},
        [],
    ),
    (
        "billed tokens too",
        Budget(max_billed_tokens=9_000),
        {"billed_tokens": 4_000},
        READER,
        {"max_billed_tokens": 5_000},
        {"max_billed_tokens": 4_000},
        ["max_billed_tokens 5000 became 4000: the parent has no more"],
    ),
    (
        "a role without a limit gets what is left",
        Budget(max_tokens=9_000),
        {"tokens": 4_000},
        msgspec.structs.replace(READER, budget=Budget(max_tokens=None)),
        {},
        {"max_tokens": 4_000},
        [],
    ),
    (
        "the last of it",
        PARENT,
        {"tokens": 1, "cost_microusd": 1},
        READER,
        {},
        {"max_tokens": 1, "max_cost_usd": 0.000001},
        ["max_tokens 65536 became 1: the parent has no more"],
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
        ({"billed_tokens": 0}, "No billed tokens are left for a child; finish with what there is."),
        ({"cost_microusd": 0}, "No money is left for a child; finish with what there is."),
    ],
)
def test_no_child_without_tokens_or_money(left: dict[str, int], message: str) -> None:
    parent = msgspec.structs.replace(PARENT, max_billed_tokens=9_000)
    with pytest.raises(ContractError) as caught:
        drafted(READER, authority(root(Mode.AUTO), parent, **{"billed_tokens": 1} | left))
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


@pytest.mark.parametrize("number", [0, 7])
def test_a_step_of_a_plan_has_its_own_number_title_and_goal(number: int) -> None:
    label = StepLabel(number=number, title="Look first", goal_summary="The plan's.")
    contract = drafted(READER, root(Mode.AUTO), step=label).contract
    assert (contract.parent.step_idx, contract.step.title) == (number, "Look first")
    assert contract.parent.goal_summary == "The plan's."


def test_a_child_keeps_to_what_its_parent_has_to_keep_to() -> None:
    parent = msgspec.structs.replace(
        authority(root(Mode.AUTO)),
        goal_summary="All of it.",
        silence_ms=7_000,
        checks=("make", "lint"),
        on_conflict=OnConflict.RESOLVE,
        report_path_pattern="{agent_id}.md",
    )
    contract = drafted(MAKER, parent, output=RequestedOutput(checks=("test", "make"))).contract
    assert contract.parent.goal_summary == "All of it."
    assert contract.execution.silence_ms == 7_000
    assert contract.outputs.checks == ("make", "lint", "test")
    assert contract.outputs.on_conflict is OnConflict.RESOLVE
    assert contract.outputs.report_path_pattern == "{agent_id}.md"
    asked = drafted(MAKER, parent, output=RequestedOutput(on_conflict=OnConflict.FAIL)).contract
    assert asked.outputs.on_conflict is OnConflict.FAIL


def test_sampling_is_inherited_with_the_model() -> None:
    parent = authority(root(Mode.AUTO))
    seeded = msgspec.structs.replace(parent, sampling=Sampling(seed=7, temperature=0.1))
    warm = msgspec.structs.replace(READER, sampling=Sampling(temperature=0.2, top_p=0.2))

    def sampling(role: Role, by: Authority, **asked: Any) -> object:
        return drafted(role, by, **asked).contract.execution.sampling

    assert sampling(READER, parent) is msgspec.UNSET
    assert sampling(READER, seeded) == seeded.sampling
    assert sampling(READER, seeded, model="another") is msgspec.UNSET
    assert sampling(warm, seeded, sampling=Sampling(top_p=0.3)) == Sampling(
        seed=7, temperature=0.2, top_p=0.3
    )


def test_a_contract_holds_the_scope_and_the_hashes_of_images() -> None:
    image = Image("image/png", "iVBORw0KGgo=", 1, 1)
    draft = drafted(MAKER, root(Mode.AUTO), images=(image,), scope=("src",))
    assert draft.images == (image,)
    assert (draft.contract.step.images, draft.contract.step.scope) == ((image.sha256,), ("src",))


def test_what_nobody_asked_for_is_not_encoded() -> None:
    """So that equal contracts of earlier versions, which did not know it, have equal bytes."""
    contract = drafted(READER, root(Mode.AUTO)).contract
    encoded = msgspec.json.decode(contract.encode().canonical)
    assert "images" not in encoded["step"]
    assert not {"max_billed_tokens", "sampling"} & encoded["execution"].keys()


# Siblings share what they may do

VARIED: dict[str, list[Any]] = {
    "by": [
        authority(root_grant(m, EFFECTS, roles=ROLES, depth=2)) for m in (Mode.AUTO, Mode.NORMAL)
    ],
    "role": [ANYTHING, MAKER, msgspec.structs.replace(ANYTHING, tools=("look", "shell"))],
    "tools": [None, ("look", "write")],
    "mode": [None, Mode.PLAN, Mode.AUTO],
    "scope": [(), ("src",)],
    "write": [None, (), ("docs",)],
    "directory": [None, "/p/web"],
    "workspace": [None, *WorkspaceKind],
    "limits": [Limits(), Limits(max_turns=7)],
}


@given(st.lists(st.sampled_from([(name, v) for name, values in VARIED.items() for v in values])))
def test_a_sibling_changes_nothing(changes: list[tuple[str, Any]]) -> None:
    drafter, asked = ContractDrafter(EFFECTS), {name: values[0] for name, values in VARIED.items()}
    for name, value in changes:
        asked[name] = value
        by = asked["by"]
        spec = spec_of(**{name: asked[name] for name in asked if name != "by"})
        alone = ContractDrafter(EFFECTS).draft(spec, by, step_idx=0)
        assert drafter.draft(spec, by, step_idx=0) == alone
        assert drafter.preview(spec, by) == alone.contract.permissions


def test_siblings_share_their_permissions() -> None:
    drafter, parent = ContractDrafter(EFFECTS), authority(root(Mode.AUTO))
    one, two = (drafter.draft(spec_of(MAKER), parent, step_idx=index) for index in range(2))
    assert one.contract.permissions is two.contract.permissions


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
    assert contract.execution.budget == Budget(max_tokens=9_000, max_context_tokens=24_576)
    assert contract.outputs.checks == ("make",)


def test_a_root_in_plan_mode_changes_nothing() -> None:
    spec = AgentSpec(role=ANYTHING, task="Do it.")
    user = authority(root(Mode.PLAN, can_spawn_children=False))
    contract = ContractDrafter(EFFECTS).draft_root(spec, user, instructions="").contract
    assert contract.execution.workspace is WorkspaceKind.READONLY
    assert contract.permissions.allowed_tools == ("ask_user", "look", "search")
