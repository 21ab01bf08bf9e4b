"""Prompts for planners and reviewers, and the parsing of their answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from retinue.domain.plan.outcome import StepOutcome, StepState
from retinue.domain.plan.plan import MIN_STEP_TOKENS, OnFailure, Plan, Problem
from retinue.domain.plan.plan_check import PlanContext
from retinue.domain.plan.plan_file import read
from retinue.domain.plural import listed
from retinue.domain.result import Result
from retinue.domain.role import GENERAL
from retinue.runtime.delegation.attachments import failure_report

PLANNER = "planner"
MOST_STEPS = 20
MOST_FINDINGS = 5
MOST_FILES = 100

_RULES = """\
Each step is the work of one child, which sees its task, and the reports of the steps it depends on.
- name: short, of a-z, 0-9 and -; not "review", which comes at the end by itself if a step writes.
- role: one of those below.
- depends_on: names of the steps whose results it needs. What needs nothing runs at the same time.
- writes: the paths (globs) that it owns, where its role writes. Steps share none, unless one
  depends on the other.
{checks}- Few steps: as many as the work needs, {most} at most.
Roles:
{roles}"""

_CHECKS = "- checks: shell commands that must succeed on its work, where there are some.\n"
_TEXTS = {"type": "array", "items": {"type": "string"}}


def most_steps(context: PlanContext) -> int:
    """How many steps a planner may write: as many as the budget has `MIN_STEP_TOKENS` for.

    One share is for the review. 0 if the budget is too small for even one step.
    """
    if context.authority.budget.max_tokens is None:
        return MOST_STEPS
    parts = context.authority.remaining.tokens // MIN_STEP_TOKENS
    return min(MOST_STEPS, max(parts - 1, min(parts, 1)))


def plan_task(goal: str, context: PlanContext) -> str:
    return f"Write a plan for this goal: {goal}\n\n{_rules(context)}"


def replan_task(plan: Plan, outcomes: Sequence[StepOutcome], context: PlanContext) -> str:
    """The task of a planner after a step of a plan has failed."""
    done = [o.step.name for o in outcomes if o.state is StepState.DONE]
    failed = [o.step.name for o in outcomes if o.state is StepState.FAILED]
    left = [o.step.name for o in outcomes if o.state is StepState.SKIPPED]
    return (
        f"A step of the plan for this goal has failed: {plan.goal}\n"
        f"Done: {', '.join(done) or 'nothing'}. Failed: {', '.join(failed)}."
        f" Not started: {', '.join(left) or 'nothing'}.\n"
        "Write the steps that lead to the goal from here. They replace what was not done; their"
        " names must be new, and depends_on may name steps that are done. They may write where"
        f" steps of the plan with the same role may: {_owners(plan)}.\n\n"
        f"{_rules(context)}"
    )


def _owners(plan: Plan) -> str:
    of_role: dict[str, dict[str, None]] = {}
    for step in plan.steps:
        for glob in step.writes or ():
            of_role.setdefault(step.role, {})[glob] = None
    return "; ".join(f"{role} {', '.join(globs)}" for role, globs in of_role.items()) or "nowhere"


def replan_reports(outcomes: Sequence[StepOutcome]) -> dict[str, str]:
    """The reports of the steps that have run, with evidence for those that failed."""
    return {
        o.step.name: failure_report(o.result) if o.state is StepState.FAILED else o.result.summary
        for o in outcomes
        if o.result is not None
    }


def _rules(context: PlanContext) -> str:
    listed = "\n".join(f"- {n}: {context.roles[n].description}" for n in _step_roles(context))
    checks = "" if context.wrong_with_command is None else _CHECKS
    return _RULES.format(most=most_steps(context) or 1, roles=listed, checks=checks)


def _step_roles(context: PlanContext) -> list[str]:
    """The roles that a planner may give to a step: a planner names one for each."""
    return [name for name in context.roles if name != GENERAL]


def _step_fields(context: PlanContext) -> dict[str, Any]:
    """Fields of a step that a planner may set. Models, limits and context files are the user's."""
    fields = {
        "name": {"type": "string"},
        "title": {"type": "string"},
        "role": {"type": "string", "enum": sorted(_step_roles(context))},
        "task": {"type": "string"},
        "depends_on": _TEXTS,
        "writes": _TEXTS,
        "success_criteria": _TEXTS,
        "on_failure": {"type": "string", "enum": [str(policy) for policy in OnFailure]},
    }
    return fields if context.wrong_with_command is None else {**fields, "checks": _TEXTS}


def plan_schema(context: PlanContext) -> dict[str, Any]:
    step = {
        "type": "object",
        "properties": _step_fields(context),
        "required": ["name", "role", "task"],
    }
    return {
        "type": "object",
        "properties": {
            "summary": {"type": "string"},
            "steps": {
                "type": "array",
                "minItems": 1,
                "maxItems": most_steps(context) or 1,
                "items": step,
            },
        },
        "required": ["steps"],
    }


def read_plan(
    goal: str, answer: Mapping[str, Any], context: PlanContext
) -> tuple[Plan, list[Problem]]:
    """The plan in a planner's answer as far as it can be read, and problems with the rest."""
    fields = _step_fields(context)
    steps = [{name: step[name] for name in step if name in fields} for step in answer["steps"]]
    plan, found = read({"goal": goal, "summary": answer.get("summary"), "steps": steps})
    found += _wrong_with_checks(plan, context)
    # A planner gives an empty list for a step that writes nothing; in a plan that is an error.
    read_steps = tuple(msgspec.structs.replace(s, writes=s.writes or None) for s in plan.steps)
    writes = any(step.writes for step in read_steps)
    return msgspec.structs.replace(plan, steps=read_steps, review=writes), found


def _wrong_with_checks(plan: Plan, context: PlanContext) -> Iterator[Problem]:
    """Checks that a model has written, and that may not run."""
    for step in plan.steps:
        for check in step.checks:
            if context.wrong_with_command is not None and (
                why := context.wrong_with_command(check)
            ):
                yield Problem(step.name, "checks", f"{check!r} {why}")


def problems_text(found: Sequence[Problem]) -> str:
    """The prompt for a second planner, with the problems of a plan that cannot be run."""
    lines = "\n".join(f"- {problem}" for problem in found)
    return f"An earlier plan could not be run. Avoid this:\n{lines}"


# The review


def review_task(plan: Plan, outcomes: Sequence[StepOutcome]) -> str:
    done = [o for o in outcomes if o.state is StepState.DONE]
    changed = sorted({c.path for o in done if o.result for c in o.result.files_modified})
    return (
        f"Review what was done for this goal: {plan.goal}\n"
        f"Steps done: {', '.join(o.step.name for o in done)}."
        f" Files changed: {listed(changed, MOST_FILES) or 'none'}.\n"
        "Report what is wrong or missing, and nothing that is a matter of taste. For each finding"
        " say what is to be done and which files have to be changed. No findings is a good answer."
    )


REVIEW_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "summary": {"type": "string"},
        "findings": {
            "type": "array",
            "maxItems": MOST_FINDINGS,
            "items": {
                "type": "object",
                "properties": {
                    "title": {"type": "string"},
                    "task": {"type": "string"},
                    "files": _TEXTS,
                },
                "required": ["task", "files"],
            },
        },
    },
    "required": ["summary", "findings"],
}


def findings(review: Result) -> list[Mapping[str, Any]]:
    data = review.data
    return list(data["findings"]) if review.ok and isinstance(data, Mapping) else []
