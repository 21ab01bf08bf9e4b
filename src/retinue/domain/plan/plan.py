"""A plan: steps for a goal, as plain data, and what follows from it alone.

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

`plan_file.read` makes a plan of such data, and `plan_check.problems` looks at one with the eyes of
those who would carry it out. Both tell of all that is wrong at once, each problem with its step and
its field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from retinue.domain.budget import Limits
from retinue.domain.contract import title_of
from retinue.domain.role import Role
from retinue.domain.scope import ANYWHERE, contains, intersect, scope
from retinue.errors import PlanError

MAX_STEPS = 100


MIN_STEP_TOKENS = 4_000
"""Less than that, and a step could not even read its task and answer."""


REVIEW, REVIEWER = "review", "reviewer"


NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class OnFailure(StrEnum):
    """What becomes of the plan when a step has failed.

    STOP begins nothing more. CONTINUE goes on with what does not need it. RETRY gives it to another
    child, with what went wrong, and stops if that fails too. REPLAN has the rest planned anew.
    """

    STOP = "stop"
    CONTINUE = "continue"
    RETRY = "retry"
    REPLAN = "replan"


class StepBudget(Limits, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of one step; what is left out is as for its role."""


class PlanBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all steps together may use."""

    max_tokens: int | None = None
    max_cost_usd: float | None = None


class PlanStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of work. `writes` are the paths that it owns, `expect_s` how long it may take."""

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
    budget: StepBudget = StepBudget()

    @property
    def shown(self) -> str:
        """What it is called before people."""
        return self.title or title_of(self.task)

    @property
    def tries(self) -> int:
        return 2 if self.on_failure is OnFailure.RETRY else 1


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`review` has a reviewer look at the end, whose findings become one more round of steps."""

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
        return {step.name: step.depends_on for step in self.steps}


class Problem(msgspec.Struct, frozen=True):
    """Something that keeps a plan from being run. `step` is empty for the plan as a whole."""

    step: str
    field: str
    text: str

    def __str__(self) -> str:
        where = f"step {self.step!r}: " if self.step else ""
        return shown(f"{where}{self.field}: {self.text}", 500)


def refuse(found: Sequence[Problem], *, draft: Plan | None = None) -> None:
    """Raise PlanError if there are problems, with the plan that has them."""
    if found:
        count = f"{len(found)} problem{'' if len(found) == 1 else 's'}"
        lines = "".join(f"\n- {problem}" for problem in found)
        raise PlanError(
            f"The plan cannot be run; {count}:{lines}", problems=tuple(map(str, found)), draft=draft
        )


def shares(plan: Plan, roles: Mapping[str, Role], limit: int | None) -> dict[str, int | None]:
    """The tokens that each try of a step may use, so that all together keep to `limit`.

    What names no limit has an equal part of what the others leave, at most what its role has.
    """
    own = {
        step.name: step.budget.max_tokens or roles[step.role].budget.max_tokens
        for step in plan.work
    }
    if limit is None:
        return dict(own)
    named = {s.name: s.budget.max_tokens for s in plan.steps if s.budget.max_tokens is not None}
    tries = {step.name: step.tries for step in plan.steps}
    unnamed = [name for name in own if name not in named]
    rest = limit - sum(value * tries[name] for name, value in named.items())
    share = rest // max(1, sum(tries.get(name, 1) for name in unnamed))
    return {
        name: named[name] if name in named else min(share, value or share)
        for name, value in own.items()
    }


# What further steps may write, which no person has looked at


def owned(steps: Iterable[PlanStep], path: str, roles: Mapping[str, Role]) -> list[PlanStep]:
    """The steps that may write `path`."""
    found = []
    for step in steps:
        own = roles[step.role].write_scope
        if step.writes is not None:
            own = intersect(own, scope(*step.writes))
        elif own == ANYWHERE:
            continue  # Who writes anywhere says where; this one reads.
        if contains(own, path):
            found.append(step)
    return found


def joint(steps: Iterable[PlanStep]) -> tuple[str, ...] | None:
    """What steps of one role may write together; None is all that their role may."""
    globs: dict[str, None] = {}
    for step in steps:
        if step.writes is None:
            return None
        globs.update(dict.fromkeys(step.writes))
    return tuple(globs)


def bounds_of(step: PlanStep, plan: Plan) -> tuple[str, ...] | None:
    """Where `plan` lets the role of a further step write; None is all that the role may."""
    return joint(other for other in plan.steps if other.role == step.role)


def shown(value: object, most: int = 80) -> str:
    """A value of somebody's as a part of a line."""
    text = printed(str(value))
    return text if len(text) <= most else text[: most - 1] + "…"


def printed(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
