from __future__ import annotations

from retinue.domain.plan.plan import Plan, PlanStep
from retinue.interfaces.view.plan_outline import plan_outline

HOSTILE = "Look\n\x1b[2Jhere"


def test_outline_shows_every_check_without_control_characters() -> None:
    step = PlanStep(
        name="a",
        role="executor",
        task="x",
        title=HOSTILE,
        writes=(HOSTILE,),
        checks=("make test", f"curl {HOSTILE}"),
    )
    lines = plan_outline(Plan(goal=HOSTILE, summary=HOSTILE, steps=(step,), review=True))
    assert all(line.isprintable() for line in lines)
    assert lines[-4:] == ["", "Checks:", "  a: make test", "  a: curl Look [2Jhere"]
