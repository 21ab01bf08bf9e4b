"""A plan as lines for people: a table of its steps, and the tree of who needs whom."""

from __future__ import annotations

from retinue.domain.plan.plan import OnFailure, Plan
from retinue.interfaces.view.formatting import cells, fill, one_line

HEAD = ("step", "role", "writes", "checks", "what")


def outline(plan: Plan) -> list[str]:
    """Goal, table and tree, and the commands that it would have run."""
    lines = [one_line(text) for text in (plan.goal, plan.summary) if text.strip()]
    return [*lines, "", *_table(plan), "", *_tree(plan), *_checks(plan)]


def _checks(plan: Plan) -> list[str]:
    lines = [f"  {step.name}: {one_line(check)}" for step in plan.steps for check in step.checks]
    return ["", "Checks:", *lines] if lines else []


def _table(plan: Plan) -> list[str]:
    rows = [HEAD]
    for step in plan.steps:
        writes = one_line(", ".join(step.writes or ())) or "-"
        what = one_line(step.shown)
        rows.append((step.name, step.role, writes, str(len(step.checks) or "-"), what))
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)][:-1]
    return ["  ".join([*map(fill, row[:-1], widths), row[-1]]) for row in rows]


def _tree(plan: Plan) -> list[str]:
    """Each step below the last of those that it needs; the others are named beside it."""
    place = {step.name: number for number, step in enumerate(plan.steps)}
    below: dict[str, list[str]] = {"": []}
    for step in plan.steps:
        above = max(step.depends_on, key=lambda name: place[name], default="")
        below.setdefault(above, []).append(step.name)

    def branch(name: str, indent: str) -> list[str]:
        lines = []
        children = below.get(name, [])
        for child in children:
            last = child == children[-1]
            step = plan[child]
            more = [need for need in step.depends_on if need != name]
            also = f" (also after {', '.join(more)})" if more else ""
            policy = (
                "" if step.on_failure is OnFailure.STOP else f" [on failure: {step.on_failure}]"
            )
            lines.append(f"{indent}{'└─ ' if last else '├─ '}{child}{also}{policy}")
            lines += branch(child, indent + ("   " if last else "│  "))
        return lines

    found = branch("", "")
    return [*found, "then a review"] if plan.review else found
