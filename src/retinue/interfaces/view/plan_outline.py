"""A plan as text: a table of its steps, a tree of their dependencies, and its checks."""

from __future__ import annotations

from retinue.domain.plan.plan import OnFailure, Plan
from retinue.interfaces.view.formatting import aligned, one_line

TABLE_HEADING = ("step", "role", "writes", "checks", "what")


def plan_outline(plan: Plan) -> list[str]:
    """Lines for the goal, the steps, their dependencies, and the check commands of the plan."""
    lines = [one_line(text) for text in (plan.goal, plan.summary) if text.strip()]
    return [*lines, "", *_table_lines(plan), "", *_dependency_tree(plan), *_check_lines(plan)]


def _check_lines(plan: Plan) -> list[str]:
    lines = [f"  {step.name}: {one_line(check)}" for step in plan.steps for check in step.checks]
    return ["", "Checks:", *lines] if lines else []


def _table_lines(plan: Plan) -> list[str]:
    rows = [TABLE_HEADING]
    for step in plan.steps:
        writes = one_line(", ".join(step.writes or ())) or "-"
        what = one_line(step.shown)
        rows.append((step.name, step.role, writes, str(len(step.checks) or "-"), what))
    return aligned(rows)


def _dependency_tree(plan: Plan) -> list[str]:
    """Each step below the last step that it depends on; other dependencies are named beside it."""
    position = {step.name: number for number, step in enumerate(plan.steps)}
    children_of: dict[str, list[str]] = {"": []}
    for step in plan.steps:
        parent = max(step.depends_on, key=lambda name: position[name], default="")
        children_of.setdefault(parent, []).append(step.name)

    def branch(name: str, indent: str) -> list[str]:
        lines = []
        children = children_of.get(name, [])
        for child in children:
            last = child == children[-1]
            step = plan[child]
            others = [need for need in step.depends_on if need != name]
            also = f" (also after {', '.join(others)})" if others else ""
            policy = (
                "" if step.on_failure is OnFailure.STOP else f" [on failure: {step.on_failure}]"
            )
            lines.append(f"{indent}{'└─ ' if last else '├─ '}{child}{also}{policy}")
            lines += branch(child, indent + ("   " if last else "│  "))
        return lines

    lines = branch("", "")
    return [*lines, "then a review"] if plan.review else lines
