"""Plans as data: what is wrong with one is told all at once, with the step and the field."""

from __future__ import annotations

from datetime import date
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.config.roles import builtin_roles
from retinue.domain.account import UNLIMITED, Resources
from retinue.domain.agent_spec import Authority
from retinue.domain.budget import Budget
from retinue.domain.grant import Mode
from retinue.domain.messages import Effect
from retinue.domain.permissions import root_grant
from retinue.domain.plan.plan import (
    REVIEW,
    OnFailure,
    Plan,
    PlanBudget,
    PlanStep,
    StepBudget,
    owned,
    refuse,
    shares,
)
from retinue.domain.plan.plan_check import PlanContext, problems
from retinue.domain.plan.plan_file import parse, read, to_toml
from retinue.errors import PlanError

EFFECTS = {
    "read_file": Effect.READ,
    "write_file": Effect.WRITE,
    "run_command": Effect.EXECUTE,
    "spawn_agent": Effect.DELEGATE,
}
ROLES = dict(builtin_roles())


def means(mode: Mode = Mode.AUTO, **changes: Any) -> PlanContext:
    budget = Budget(max_tool_calls=100, max_turns=200, max_tokens=None, timeout_s=3_600)
    authority = Authority(
        run_id="r",
        agent_id="a0",
        task_prompt="",
        grant=root_grant(mode, EFFECTS, roles=tuple(ROLES), depth=2),
        budget=budget,
        remaining=Resources(100, 200, UNLIMITED, UNLIMITED),
        model="m",
        working_directory="/p",
    )
    return PlanContext(**{"roles": ROLES, "authority": authority, "effects": EFFECTS, **changes})


def limited(**limits: Any) -> PlanContext:
    """What a run with these limits has to give."""
    whole = means()
    budget = msgspec.structs.replace(whole.authority.budget, **limits)
    left = budget.resources()
    authority = msgspec.structs.replace(whole.authority, budget=budget, remaining=left)
    return msgspec.structs.replace(whole, authority=authority)


def told(data: Any, with_: PlanContext | None = None) -> list[str]:
    plan, found = read(data)
    return [str(problem) for problem in (*found, *problems(plan, with_ or means()))]


def step(
    name: Any = "a", role: Any = "researcher", task: Any = "Look.", **more: Any
) -> dict[str, Any]:
    return {"name": name, "role": role, "task": task, **more}


def plan(*steps: Any, **more: Any) -> dict[str, Any]:
    return {"goal": "G", "steps": list(steps), **more}


WRITES: dict[str, Any] = {"role": "executor", "writes": ["src/**"]}

MALFORMED: list[tuple[str, Any, str]] = [
    ("no table", [1], "plan: must be a table with goal and steps"),
    ("no goal", {"steps": [step()]}, "goal: is missing; say what the plan is for"),
    ("empty goal", plan(step()) | {"goal": " "}, "goal: is empty; say what the plan is for"),
    ("goal of a wrong type", plan(step()) | {"goal": 7}, "goal: expected `str`, got `int`, not 7"),
    ("goal in half characters", plan(step()) | {"goal": "\ud800"}, "goal: is not valid Unicode"),
    ("unknown field", plan(step(), gaol="x"), "gaol: is not a field of a plan; did you mean goal?"),
    ("no steps", {"goal": "G"}, "steps: is missing; a plan has at least one step"),
    ("empty steps", plan(), "steps: is empty; a plan has at least one step"),
    ("steps of a wrong type", {"goal": "G", "steps": "x"}, "steps: must be a list of tables, not"),
    (
        "too many steps",
        plan(*(step(f"s{n}") for n in range(101))),
        "steps: are 101; the maximum is 100",
    ),
    ("a step that is none", plan("look"), "step '#1': steps: must be a table, not a text"),
    (
        "a step without a name",
        plan({"role": "planner", "task": "x"}),
        "step '#1': name: is missing",
    ),
    ("a name of a wrong type", plan(step(3)), "step '#1': name: expected `str`, got `int`, not 3"),
    ("a name with signs", plan(step("a b")), "step 'a b': name: cannot be a name; use up to 40 of"),
    ("the same name twice", plan(step(), step()), "step 'a': name: is used by another step too"),
    ("the review's name", plan(step("review")), "step 'review': name: is the name of the review"),
    (
        "unknown field of a step",
        plan(step(own=1)),
        "step 'a': own: is not a field of a step; there",
    ),
    ("no task", plan({"name": "a", "role": "planner"}), "step 'a': task: is missing"),
    ("empty task", plan(step(task=" ")), "step 'a': task: is empty; say what is to be done"),
    ("task of a wrong type", plan(step(task=["x"])), "step 'a': task: expected `str`, got `array`"),
    ("no role", plan({"name": "a", "task": "x"}), "step 'a': role: is missing"),
    ("unknown role", plan(step(role="cook")), "step 'a': role: 'cook' is unknown; there are: exec"),
    ("misspelt role", plan(step(role="reviwer")), "step 'a': role: 'reviwer' is unknown; did you"),
    ("needs itself", plan(step(depends_on=["a"])), "step 'a': depends_on: names the step itself"),
    (
        "needs nobody",
        plan(step(depends_on=["b"])),
        "step 'a': depends_on: 'b' is not a step; there",
    ),
    ("needs by a text", plan(step(depends_on="b")), "step 'a': depends_on: expected `array`, got"),
    (
        "needs one twice",
        plan(step(), step("b", depends_on=["a", "a"])),
        "step 'b': depends_on: has 'a' more than once",
    ),
    (
        "a circle",
        plan(
            step(depends_on=["c"]),
            step("b", depends_on=["a"]),
            step("c", depends_on=["b"]),
        ),
        "step 'a': depends_on: goes in a circle: a → c → b → a",
    ),
    ("writes unnamed", plan(step(role="executor")), "step 'a': writes: is missing: executor wri"),
    (
        "writes nothing",
        plan(step(role="tester", writes=[])),
        "step 'a': writes: is empty, and test",
    ),
    ("a reader that writes", plan(step(writes=["x"])), "step 'a': writes: researcher does not wr"),
    (
        "writes outside",
        plan(step(role="executor", writes=["../x"])),
        "step 'a': writes: '../x' leaves the project; name paths inside of it",
    ),
    (
        "writes by an absolute path",
        plan(step(role="executor", writes=["/etc/x"])),
        "step 'a': writes: '/etc/x' leaves the project",
    ),
    (
        "writes what is git's",
        plan(step(role="executor", writes=[".git/config"])),
        "step 'a': writes: '.git/config' is off limits",
    ),
    (
        "writes where its role cannot",
        plan(step(role="tester", writes=["src/a?.rs"])),
        "step 'a': writes: has nothing in common with what tester may write: ",
    ),
    (
        "two owners at a time",
        plan(step(**WRITES), step("b", role="executor", writes=["src/x.py"])),
        "step 'b': writes: shares paths with step 'a', which may run at the same time; let one dep",
    ),
    (
        "an empty check",
        plan(step(role="tester", checks=[" "])),
        "step 'a': checks: has an empty entry",
    ),
    ("a check of nothing", plan(step(checks=["make"])), "step 'a': checks: researcher changes no"),
    (
        "a check that no command can be",
        plan(step(role="tester", checks=["a\0b"])),
        "step 'a': checks: has a NUL character",
    ),
    ("a name like that of none", plan(step("#1/../x")), "step '#1/../x': name: cannot be a name;"),
    ("a name in other letters", plan(step("größe")), "step 'größe': name: cannot be a name;"),
    ("a name of 41", plan(step("a" * 41)), f"step '{'a' * 41}': name: cannot be a name; use up"),
    ("an empty name", plan(step(" ")), "step '#1': name: is empty; use up to 40 of"),
    ("a blank role", plan(step(role=" ")), "step 'a': role: is empty; name the role"),
    ("an empty role", plan(step(role="")), "step 'a': role: is empty; name the role"),
    ("nothing to do", plan(step(task="")), "step 'a': task: is empty; say what is to be done"),
    ("a null", plan(step(task=None)), "step 'a': task: is missing"),
    ("steps that are a date", {"goal": "G", "steps": date(2026, 1, 1)}, "steps: must be a list of"),
    ("an empty model", plan(step(model=" ")), "step 'a': model: is empty; leave it out for that"),
    (
        "a limit past all limits",
        plan(step(budget={"max_tokens": 10**30})),
        "step 'a': budget.max_tokens: must be at most 9,007,199,254,740,992",
    ),
    (
        "a time past all times",
        plan(step(budget={"timeout_s": 1e300})),
        "step 'a': budget.timeout_s: must be at most 9,007,199,254,740,992",
    ),
    (
        "writes what is git's by another spelling",
        plan(step(role="executor", writes=["./.git/config"])),
        "step 'a': writes: './.git/config' is off limits",
    ),
    (
        "writes what is git's further down",
        plan(step(role="executor", writes=["vendor/.git/config"])),
        "step 'a': writes: 'vendor/.git/config' is off limits",
    ),
    (
        "writes outside behind a blank",
        plan(step(role="executor", writes=[" /etc/x"])),
        "step 'a': writes: ' /etc/x' leaves the project",
    ),
    (
        "a field that a terminal would obey",
        plan(step(**{"x\n\x1b[2J": 1})),
        "step 'a': x  [2J: is not a field of a step",
    ),
    ("an empty criterion", plan(step(success_criteria=[""])), "step 'a': success_criteria: has an"),
    ("unknown policy", plan(step(on_failure="panic")), "step 'a': on_failure: invalid enum value"),
    ("negative time", plan(step(expect_s=-1)), "step 'a': expect_s: must be a positive number of"),
    (
        "budget of a wrong type",
        plan(step(budget=5)),
        "step 'a': budget: must be a table, not a num",
    ),
    ("unknown limit", plan(step(budget={"max_tokns": 5})), "step 'a': budget.max_tokns: is not a"),
    (
        "no tokens",
        plan(step(budget={"max_tokens": 0})),
        "step 'a': budget.max_tokens: must be posi",
    ),
    (
        "less than no turns",
        plan(step(budget={"max_turns": -2})),
        "step 'a': budget.max_turns: must be positive, not -2",
    ),
    (
        "a limit of a wrong type",
        plan(step(budget={"max_tool_calls": "ten"})),
        "step 'a': budget.max_tool_calls: expected `int | null`, got `str`, not 'ten'",
    ),
    (
        "too little time",
        plan(step(budget={"timeout_s": 1})),
        "step 'a': budget.timeout_s: must be at least 5 seconds, not 1",
    ),
    (
        "a step dearer than the plan",
        plan(step(budget={"max_tokens": 9000}), budget={"max_tokens": 8000}),
        "step 'a': budget.max_tokens: 9,000 with its retries is more than the plan has: 8,000",
    ),
    (
        "steps dearer than the plan",
        plan(
            step(budget={"max_tokens": 5000}),
            step("b", budget={"max_tokens": 5000}),
            budget={"max_tokens": 8000},
        ),
        "budget.max_tokens: the steps may use 10,000 (a 5,000, b 5,000), and the plan has 8,000",
    ),
    (
        "a retry that the plan cannot pay",
        plan(
            step(budget={"max_tokens": 5000}, on_failure="retry"),
            budget={"max_tokens": 8000},
        ),
        "step 'a': budget.max_tokens: 10,000 with its retries is more than the plan has: 8,000",
    ),
    (
        "too little for each",
        plan(step(), step("b"), budget={"max_tokens": 5000}),
        "budget.max_tokens: 5,000 leaves 2,500 for each step without a limit; the minimum is 4,000",
    ),
    (
        "unknown limit of the plan",
        plan(step(), budget={"max_turns": 5}),
        "budget.max_turns: is not a field of a budget; ",
    ),
]


@pytest.mark.parametrize(
    ("data", "text"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED]
)
def test_problem_names_step_and_field(data: Any, text: str) -> None:
    found = told(data)
    assert any(line.startswith(text) for line in found), found
    assert len(found) == 1, found


def test_there_are_forty_kinds_of_malformed_plans() -> None:
    assert len(MALFORMED) >= 40


@pytest.mark.parametrize(
    ("with_", "data", "text"),
    [
        (
            means(Mode.NORMAL),
            plan(step(**WRITES)),
            "step 'a': writes: in normal mode no child may write; use mode auto (--mode auto)",
        ),
        (
            means(checks_possible=False),
            plan(step(role="tester", checks=["make"])),
            "step 'a': checks: cannot be run: there is no sandbox to run them in",
        ),
        (
            means(wrong_with_model=lambda name: f"Unknown model {name!r}."),
            plan(step(model="x")),
            "step 'a': model: Unknown model 'x'",
        ),
        (
            means(unpriced=lambda name: name),
            plan(step(budget={"max_cost_usd": 1.0})),
            "step 'a': budget.max_cost_usd: is set, but the price of m is unknown; add it",
        ),
        (
            means(unpriced=lambda name: name),
            plan(step(), budget={"max_cost_usd": 1.0}),
            "budget.max_cost_usd: is set, but the price of m is unknown; add it",
        ),
        (
            means(Mode.NORMAL),
            plan(step(role="tester", checks=["make"])),
            "step 'a': checks: in normal mode no child runs commands; use mode auto (--mode auto)",
        ),
        (
            means(unpriced=lambda name: name if name == "x" else ""),
            plan(step(model="x"), step("b"), budget={"max_cost_usd": 1.0}),
            "step 'a': model: the cost is limited, but the price of x is unknown; add it to",
        ),
        (
            means(
                roles=ROLES | {"cook": msgspec.structs.replace(ROLES["researcher"], model="x")},
                unpriced=lambda name: name if name == "x" else "",
            ),
            plan(step(role="cook", budget={"max_cost_usd": 1.0})),
            "step 'a': budget.max_cost_usd: is set, but the price of x is unknown; add it",
        ),
        (
            limited(max_tokens=7000),
            plan(step(), budget={"max_tokens": 8000}),
            "budget.max_tokens: 8,000 are more than the run has: 7,000",
        ),
        (
            limited(max_cost_usd=0.5),
            plan(step(), budget={"max_cost_usd": 0.75}),
            "budget.max_cost_usd: 0.75 is more than the run has: 0.5",
        ),
        (
            limited(max_tokens=7000),
            plan(step(budget={"max_tokens": 9000})),
            "step 'a': budget.max_tokens: 9,000 with its retries is more than the plan has: 7,000",
        ),
    ],
)
def test_plan_that_cannot_run_here_is_refused(with_: PlanContext, data: Any, text: str) -> None:
    (line,) = told(data, with_)
    assert line.startswith(text)


def test_all_problems_are_reported_at_once() -> None:
    data = plan(
        step("one", role="cook", depends_on=["nobody"]),
        step("two", task="", budget={"max_tokens": -1}, colour="red"),
        budget="much",
    )
    read_plan, found = read(data)
    with pytest.raises(PlanError) as caught:
        refuse([*found, *problems(read_plan, means())])
    assert str(caught.value).splitlines() == [
        "The plan cannot be run; 6 problems:",
        "- step 'two': colour: is not a field of a step; there are: name, role, task, title,"
        " depends_on, writes, success_criteria, checks, context_files, on_failure, model, expect_s,"
        " candidates, budget",
        "- step 'two': task: is empty; say what is to be done",
        "- step 'two': budget.max_tokens: must be positive, not -1",
        "- budget: must be a table, not a text",
        "- step 'one': depends_on: 'nobody' is not a step; there are: one, two",
        "- step 'one': role: 'cook' is unknown; there are: executor, general, planner, researcher,"
        " reviewer, tester",
    ]
    assert len(caught.value.problems) == 6


@pytest.mark.parametrize(
    "data",
    [
        plan(step()),
        plan(step(**WRITES), step("b", role="executor", writes=["docs"])),
        plan(step(**WRITES), step("b", **WRITES, depends_on=["a"])),
        plan(step(**WRITES), step("b", depends_on=["a"]), step("c", **WRITES, depends_on=["b"])),
        plan(step(role="executor", writes=["**"])),
        plan(step(role="tester")),
        plan(step("reviewed", role="reviewer"), review=True),
        plan(step(budget={"max_tokens": 5000}), budget={"max_tokens": 5000}),
    ],
)
def test_valid_plan_has_no_problems(data: Any) -> None:
    assert told(data) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("goal = ", "p.toml is not TOML: Invalid value (at end of document)."),
        ('{"goal": ', "p.toml is not JSON: Input data was truncated."),
        (
            '{"goal":\n "ä", }',
            "p.toml is not JSON: JSON is malformed: trailing comma in object (at line 2, column"
            " 7).",
        ),
        ("x = " + "[" * 100_000, "p.toml is not a plan: it is nested too deeply."),
        ("#" * 1_000_001, "p.toml is not a plan: it has more than 1,000,000 characters."),
    ],
)
def test_unreadable_file_is_an_error(text: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse(text, source="p.toml")
    assert str(caught.value) == message


def test_problem_is_short() -> None:
    (line,) = told(plan(step("x" * 10_000, task=["y" * 10_000])))[:1]
    assert len(line) == 500


@pytest.mark.parametrize("text", ["goal = 'x'\r\n", '{"goal": "x"}'])
def test_byte_order_mark_is_ignored(text: str) -> None:
    assert parse(f"\ufeff{text}") == {"goal": "x"}


def test_unknown_step_is_a_key_error() -> None:
    given, _ = read(plan(step()))
    assert given["a"].role == "researcher"
    with pytest.raises(KeyError, match="b"):
        given["b"]


def test_plan_can_be_json() -> None:
    data = plan(step(**WRITES), review=True)
    assert parse(msgspec.json.encode(data).decode()) == data


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
STEPS = st.builds(
    PlanStep,
    name=TEXTS,
    role=TEXTS,
    task=TEXTS,
    title=TEXTS,
    depends_on=st.lists(TEXTS, max_size=2).map(tuple),
    writes=st.none() | st.lists(TEXTS, max_size=2).map(tuple),
    checks=st.lists(TEXTS, max_size=2).map(tuple),
    on_failure=st.sampled_from(OnFailure),
    expect_s=st.none() | st.floats(1, 1000),
    budget=st.builds(
        StepBudget,
        max_tokens=st.none() | st.integers(1, 10**6),
        max_cost_usd=st.none() | st.floats(0.001, 5),
    ),
)


@given(
    st.builds(
        Plan,
        goal=TEXTS,
        steps=st.lists(STEPS, max_size=3).map(tuple),
        summary=TEXTS,
        review=st.booleans(),
        budget=st.builds(PlanBudget, max_tokens=st.none() | st.integers(1, 10**9)),
    ),
    st.lists(TEXTS, max_size=2),
)
def test_written_plan_can_be_read(written: Plan, comments: list[str]) -> None:
    data = parse(to_toml(written, comments=comments))
    again = msgspec.convert(data, Plan)
    assert again == written
    # What is blank is told, and read as nothing.
    blank = any(not text.strip() for s in written.steps for text in (s.name, s.role, s.task))
    assert read(data)[0] == written or blank


def test_steps_without_limit_share_the_rest() -> None:
    given, _ = read(
        plan(
            step("a", budget={"max_tokens": 10_000}, on_failure="retry"),
            step("b"),
            step("c", on_failure="retry"),
            review=True,
        )
    )
    parts = shares(given, ROLES, 60_000)
    assert parts == {"a": 10_000, "b": 10_000, "c": 10_000, REVIEW: 10_000}
    assert shares(given, ROLES, None)["b"] == 65_536
    assert shares(given, ROLES, 10_000_000)["b"] == 65_536


def test_owners_of_a_path() -> None:
    given, _ = read(plan(step(**WRITES), step("b", role="executor", writes=["docs"])))
    assert [s.name for s in owned(given.steps, "src/x/y.py", ROLES)] == ["a"]
    assert owned(given.steps, "README.md", ROLES) == []
