"""`Plan`: the steps for a goal, as plain data.

    goal = "Add JWT auth"

    [[steps]]
    name = "research"
    role = "researcher"
    task = "How does auth work here?"

    [[steps]]
    name = "implement"
    role = "executor"
    task = "Add JWT tokens."
    writes = ["src/auth/**"]
    depends_on = ["research"]
    checks = ["pytest -q tests/auth"]

`plan_file.read` makes a plan of such data, and `plan_check.problems` checks whether it can be run.
Both return all problems at once, each with its step and its field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from retinue.domain.budget import Limits
from retinue.domain.contract import title_of
from retinue.domain.framing import one_line
from retinue.domain.plural import plural
from retinue.domain.role import Role, find_role
from retinue.domain.scope import ANYWHERE, contains, intersect, scope
from retinue.errors import PlanError

MAX_STEPS = 100
MIN_STEP_TOKENS = 4_000
"""With less, a step could not even read its task and answer."""
REVIEW, REVIEWER = "review", "reviewer"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class OnFailure(StrEnum):
    """What happens to the plan when a step fails.

    STOP starts no more steps. CONTINUE runs the steps that do not need the failed one. RETRY gives
    the step to another child, with the error, and stops if that fails too. REPLAN has a planner
    write the rest of the plan anew.

    ```python
    step = retinue.PlanStep(
        name="look", role="researcher", task="Look.", on_failure=retinue.OnFailure.RETRY
    )
    ```
    """

    STOP = "stop"
    CONTINUE = "continue"
    RETRY = "retry"
    REPLAN = "replan"


class StepBudget(Limits, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of one step; its role has those that are left out.

    ```python
    step = retinue.PlanStep(
        name="look", role="researcher", task="Look.", budget=retinue.StepBudget(max_tool_calls=5)
    )
    ```
    """


class PlanBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of all steps together.

    ```python
    step = retinue.PlanStep(name="look", role="researcher", task="Look.")
    plan = retinue.Plan(goal="Look", steps=(step,), budget=retinue.PlanBudget(max_tokens=50_000))
    ```
    """

    max_tokens: int | None = None
    max_cost_usd: float | None = None


class PlanStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of work. It owns the paths in `writes`; `expect_s` is how long it should take.

    With `candidates` above 1, so many children race for it, and `checks` decide.

    ```python
    step = retinue.PlanStep(
        name="code", role="executor", task="Write it.", writes=("src/",), checks=("pytest -q",)
    )
    ```
    """

    name: str
    role: str
    task: str
    title: str = ""
    depends_on: tuple[str, ...] = ()
    writes: tuple[str, ...] | None = None
    success_criteria: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    context_files: tuple[str, ...] = ()
    on_failure: OnFailure = OnFailure.STOP
    model: str | None = None
    expect_s: float | None = None
    candidates: int = 1
    budget: StepBudget = StepBudget()

    @property
    def shown(self) -> str:
        """The step's title for people."""
        return self.title or title_of(self.task)

    @property
    def tries(self) -> int:
        """How often it may be tried."""
        return 2 if self.on_failure is OnFailure.RETRY else 1

    @property
    def children(self) -> int:
        """How many children may work on it."""
        return self.tries * self.candidates


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """With `review`, a reviewer checks the result; its findings become one more round of steps.

    ```python
    steps = (
        retinue.PlanStep(name="find", role="researcher", task="Find it."),
        retinue.PlanStep(name="judge", role="reviewer", task="Is it good?", depends_on=("find",)),
    )
    result = await rt.execute(retinue.Plan(goal="Judge it", steps=steps))
    assert [str(outcome.state) for outcome in result.steps] == ["done", "done"]
    ```
    """

    goal: str
    steps: tuple[PlanStep, ...]
    summary: str = ""
    review: bool = False
    budget: PlanBudget = PlanBudget()

    def __getitem__(self, name: str) -> PlanStep:
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)

    @property
    def work(self) -> tuple[PlanStep, ...]:
        """The steps, and the review as the last."""
        if not self.review:
            return self.steps
        everything = tuple(step.name for step in self.steps)
        review = PlanStep(name=REVIEW, role=REVIEWER, task=REVIEW, depends_on=everything)
        return (*self.steps, review)

    @property
    def needs(self) -> dict[str, tuple[str, ...]]:
        """The names of the steps that each step waits for."""
        return {step.name: step.depends_on for step in self.steps}


class Problem(msgspec.Struct, frozen=True):
    """Why a plan cannot be run. `step` is "" for a problem of the whole plan."""

    step: str
    field: str
    text: str

    def __str__(self) -> str:
        where = f"step {self.step!r}: " if self.step else ""
        return shown(f"{where}{self.field}: {self.text}", 500)


def refuse(found: Sequence[Problem], *, plan: Plan | None = None) -> None:
    """Raise PlanError if there are problems, with the plan that has them."""
    if found:
        lines = "".join(f"\n- {problem}" for problem in found)
        raise PlanError(
            f"The plan cannot be run; {plural(len(found), 'problem')}:{lines}",
            problems=tuple(map(str, found)),
            plan=plan,
        )


def shares(plan: Plan, roles: Mapping[str, Role], limit: int | None) -> dict[str, int | None]:
    """The tokens that each child of a step may use, so that all of them keep to `limit`.

    Steps without a limit get equal shares of what the others leave, at most the limit of their
    role.
    """
    own = {
        step.name: step.budget.max_tokens or find_role(roles, step.role).budget.max_tokens
        for step in plan.work
    }
    if limit is None:
        return dict(own)
    named = {s.name: s.budget.max_tokens for s in plan.steps if s.budget.max_tokens is not None}
    children = {step.name: step.children for step in plan.steps}
    unnamed = [name for name in own if name not in named]
    rest = limit - sum(value * children[name] for name, value in named.items())
    share = rest // max(1, sum(children.get(name, 1) for name in unnamed))
    return {
        name: named[name] if name in named else min(share, value or share)
        for name, value in own.items()
    }


# Where further steps may write: no person has reviewed these steps


def owned(steps: Iterable[PlanStep], path: str, roles: Mapping[str, Role]) -> list[PlanStep]:
    """The steps that may write `path`."""
    found = []
    for step in steps:
        own = roles[step.role].write_scope
        if step.writes is not None:
            own = intersect(own, scope(*step.writes))
        elif own == ANYWHERE:
            continue  # A role that may write anywhere only reads without `writes`.
        if contains(own, path):
            found.append(step)
    return found


def joint_writes(steps: Iterable[PlanStep]) -> tuple[str, ...] | None:
    """Globs that steps of one role may write together; None is everything that the role may."""
    globs: dict[str, None] = {}
    for step in steps:
        if step.writes is None:
            return None
        globs.update(dict.fromkeys(step.writes))
    return tuple(globs)


def bounds_of(step: PlanStep, plan: Plan) -> tuple[str, ...] | None:
    """Where `plan` lets the role of a further step write; None is everywhere the role may."""
    return joint_writes(other for other in plan.steps if other.role == step.role)


def shown(value: object, max_chars: int = 80) -> str:
    """A foreign value as a short part of a line."""
    text = one_line(str(value))
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"
