from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.budget import Budget
from retinue.domain.contract import (
    Contract,
    Execution,
    Outputs,
    Parent,
    Step,
    decode_contract,
    title_of,
)
from retinue.domain.grant import Grant, Mode, Network
from retinue.errors import ContractError

LIMITS: dict[str, Any] = {
    "attempt_timeout_ms": 90_000,
    "max_retries": 1,
    "max_tool_calls": 15,
    "max_turns": 50,
    "max_tokens": 65_536,
    "max_context_tokens": 8_192,
    "max_cost_usd": None,
}


def contract(
    *,
    task: str = "Add JWT auth",
    criteria: Any = ("tests pass",),
    grant: Grant | None = None,
    outputs: Outputs | None = None,
    **limits: Any,
) -> Contract:
    return Contract(
        parent=Parent(run_id="r1", agent_id="a1", step_idx=2, task_prompt="all", goal_summary="g"),
        step=Step(title="Auth", description=task, success_criteria=criteria),
        permissions=grant or Grant(allowed_tools=("read_file",)),
        execution=Execution(
            role="coder", instructions="Be brief.", model="m", **{**LIMITS, **limits}
        ),
        outputs=outputs or Outputs(),
    )


words = st.text(max_size=12)
tools = st.lists(st.sampled_from(["read", "write", "shell"]), max_size=4).map(tuple)
globs = st.sampled_from(["src", "./src", "src/", "**", "docs/*.md", "/docs/*.md"])
ints = st.integers(1, 2**53)
contracts = st.builds(
    Contract,
    parent=st.builds(
        Parent,
        run_id=words,
        agent_id=st.none() | words,
        step_idx=st.integers(0, 9),
        task_prompt=words,
        goal_summary=words,
    ),
    step=st.builds(
        Step,
        title=words,
        description=words.map(lambda text: f"do {text}"),
        success_criteria=st.lists(words, max_size=2).map(tuple),
    ),
    permissions=st.builds(
        Grant,
        allowed_tools=tools,
        ask_tools=tools,
        mode=st.sampled_from(Mode),
        write_scope=st.lists(st.lists(globs, max_size=2).map(tuple), max_size=2).map(tuple),
        network=st.sampled_from(Network),
        can_spawn_children=st.booleans(),
        spawn_roles=tools,
        max_delegation_depth=st.integers(0, 3),
    ),
    execution=st.builds(
        Execution,
        role=words,
        instructions=words,
        model=words,
        attempt_timeout_ms=st.integers(5_000, 10**9),
        max_retries=st.integers(0, 5),
        max_tool_calls=ints,
        max_turns=ints,
        max_tokens=st.none() | ints,
        max_context_tokens=ints,
        max_cost_usd=st.none() | st.floats(0.01, 1e6) | st.integers(1, 10**6),
        working_directory=words,
        close_on_completion=st.booleans(),
    ),
    outputs=st.builds(Outputs, result_cap_tokens=ints),
)


@given(contracts)
def test_a_contract_survives_its_bytes(value: Contract) -> None:
    decoded = decode_contract(value.encode().canonical)

    assert decoded == value
    assert decoded.encode().canonical == value.encode().canonical
    assert decode_contract(value.encode().canonical.decode()) == value


@given(contracts)
def test_encoded_parts_make_up_the_stored_bytes_and_the_cache_key(value: Contract) -> None:
    encoder = msgspec.json.Encoder(order="deterministic")
    parts = (value.step, value.permissions, value.execution, value.outputs)

    assert value.encode().canonical == encoder.encode(value)
    assert b"[%b]" % value.encode().without_parent == encoder.encode(parts)


@given(contracts, contracts)
def test_bytes_are_equal_if_and_only_if_contracts_are(a: Contract, b: Contract) -> None:
    # Two random contracts are seldom equal, so one is also given the other's parts, one at a time.
    for part in ("parent", "step", "permissions", "execution", "outputs"):
        assert (a == b) == (a.encode().canonical == b.encode().canonical)
        a = msgspec.structs.replace(a, **{part: getattr(b, part)})
    assert a == b
    assert a.encode().canonical == b.encode().canonical


@given(contracts, st.data())
def test_equivalent_inputs_give_the_same_contract(value: Contract, data: st.DataObject) -> None:
    grant, execution = value.permissions, value.execution
    cost = execution.max_cost_usd
    respelled = msgspec.structs.replace(
        value,
        permissions=msgspec.structs.replace(
            grant,
            allowed_tools=tuple(data.draw(st.permutations(grant.allowed_tools * 2))),
            ask_tools=tuple(data.draw(st.permutations(grant.ask_tools + grant.allowed_tools))),
            write_scope=tuple(
                tuple(f"./{glob}" for glob in reversed(group))
                for group in data.draw(st.permutations(grant.write_scope * 2))
            ),
            spawn_roles=grant.spawn_roles[::-1],
        ),
        execution=msgspec.structs.replace(
            execution,
            attempt_timeout_ms=float(execution.attempt_timeout_ms),
            max_cost_usd=int(cost) if cost is not None and cost.is_integer() else cost,
        ),
        step=msgspec.structs.replace(
            value.step, success_criteria=list(value.step.success_criteria)
        ),
    )

    assert respelled == value
    assert respelled.encode().canonical == value.encode().canonical
    assert hash(respelled) == hash(value)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"max_cost_usd": 1}, {"max_cost_usd": 1.0}),
        ({"attempt_timeout_ms": 60_000}, {"attempt_timeout_ms": 60_000.0}),
        ({"attempt_timeout_ms": 60_000}, {"attempt_timeout_ms": 60_000.4}),
        ({"criteria": ["a", "b"]}, {"criteria": ("a", "b")}),
        (
            {"grant": Grant(allowed_tools=("b", "a", "b"), ask_tools=("a",))},
            {"grant": Grant(allowed_tools=("a", "b"))},
        ),
        (
            {"grant": Grant(write_scope=(("./src/",), ("**", "x")))},
            {"grant": Grant(write_scope=(("src/**",),))},
        ),
    ],
)
def test_numbers_are_normalized(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert contract(**a) == contract(**b)
    assert contract(**a).encode().canonical == contract(**b).encode().canonical


def test_stored_field_names_do_not_change() -> None:
    grant = Grant(
        allowed_tools=("read_file",),
        can_spawn_children=True,
        spawn_roles=("coder",),
        max_delegation_depth=1,
    )
    written = msgspec.json.decode(contract(grant=grant).encode().canonical)
    minimum: dict[str, dict[str, Any]] = {
        "parent": {"run_id": "r1", "step_idx": 2, "task_prompt": "all", "goal_summary": "g"},
        "step": {
            "title": "Auth",
            "description": "Add JWT auth",
            "success_criteria": ["tests pass"],
        },
        "permissions": {
            "allowed_tools": ["read_file"],
            "can_spawn_children": True,
            "max_delegation_depth": 1,
        },
        "execution": {
            "attempt_timeout_ms": 90_000,
            "max_retries": 1,
            "close_on_completion": True,
        },
        "outputs": {
            "report_format": "markdown",
            "report_path_pattern": ".retinue/step-<idx>-result.md",
        },
    }

    found = {
        section: {name: written[section][name] for name in fields}
        for section, fields in minimum.items()
    }

    assert found == minimum


def test_defaults_are_written_out() -> None:
    written = msgspec.json.decode(contract(grant=Grant()).encode().canonical)

    assert written["permissions"]["can_spawn_children"] is False
    assert written["permissions"]["max_delegation_depth"] == 0
    assert written["permissions"]["allowed_tools"] == []
    assert written["version"] == 1


def test_nothing_in_a_contract_can_be_assigned() -> None:
    value = contract()
    for part in (
        value,
        value.parent,
        value.step,
        value.permissions,
        value.execution,
        value.outputs,
    ):
        for field in msgspec.structs.fields(part):
            with pytest.raises(AttributeError):
                setattr(part, field.name, getattr(part, field.name))


def test_a_list_of_criteria_becomes_a_tuple() -> None:
    criteria = ["tests pass"]
    value = contract(criteria=criteria)
    before = value.encode().canonical

    criteria.append("and more")

    assert value.encode().canonical == before


@pytest.mark.parametrize("task", ["", " ", "\n\t "])
def test_an_empty_task_is_refused(task: str) -> None:
    with pytest.raises(ContractError) as caught:
        contract(task=task)
    assert str(caught.value) == "The task is empty; say what the agent should do."


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_tool_calls": 0}, "max_tool_calls must be positive, not 0."),
        ({"max_turns": 0}, "max_turns must be positive, not 0."),
        ({"max_tokens": -1}, "max_tokens must be positive, not -1."),
        ({"max_context_tokens": 0}, "max_context_tokens must be positive, not 0."),
        ({"max_retries": -1}, "max_retries must be 0 or more, not -1."),
        ({"max_cost_usd": 0.0}, "max_cost_usd must be positive, not 0."),
        ({"attempt_timeout_ms": 4_999}, "timeout_s must be at least 5 seconds, not 4.999."),
        (
            {"outputs": Outputs(result_cap_tokens=0)},
            "result_cap_tokens must be positive, not 0.",
        ),
    ],
)
def test_a_contract_with_an_invalid_limit_is_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as caught:
        contract(**limits)
    assert str(caught.value) == message


def test_stored_bytes_are_validated() -> None:
    data = contract().encode().canonical

    with pytest.raises(ContractError, match="max_turns must be positive, not 0"):
        decode_contract(data.replace(b'"max_turns":50', b'"max_turns":0'))
    with pytest.raises(msgspec.ValidationError, match="mode"):
        decode_contract(data.replace(b'"mode":"normal"', b'"mode":"reckless"'))


@given(
    st.builds(
        Budget,
        max_tool_calls=ints,
        max_turns=ints,
        max_tokens=st.none() | ints,
        max_context_tokens=ints,
        timeout_s=st.integers(5_000, 10**9).map(lambda ms: ms / 1000),
        max_cost_usd=st.none() | st.floats(0.01, 1e6),
        max_retries=st.integers(0, 9),
    )
)
def test_a_budget_survives_a_contract(budget: Budget) -> None:
    value = contract(
        attempt_timeout_ms=round(budget.timeout_s * 1000),
        max_retries=budget.max_retries,
        max_tool_calls=budget.max_tool_calls,
        max_turns=budget.max_turns,
        max_tokens=budget.max_tokens,
        max_context_tokens=budget.max_context_tokens,
        max_cost_usd=budget.max_cost_usd,
    )

    assert value.execution.budget == budget
    assert decode_contract(value.encode().canonical).execution.budget == budget


@pytest.mark.parametrize(
    ("task", "title"),
    [
        ("Add auth", "Add auth"),
        ("\n\n  Add auth  \nwith JWT", "Add auth"),
        ("", ""),
        (" \n ", ""),
        ("x" * 72, "x" * 72),
        ("x" * 73, "x" * 71 + "…"),
        ("word and " * 20, "word and " * 7 + "word and…"),
    ],
)
def test_a_title_is_the_first_line_of_the_task(task: str, title: str) -> None:
    assert title_of(task) == title


@given(st.text(), st.integers(1, 40))
def test_a_title_is_one_row(task: str, width: int) -> None:
    title = title_of(task, width)

    assert len(title) <= width
    assert len(title.splitlines()) <= 1
    assert title == title.strip()
