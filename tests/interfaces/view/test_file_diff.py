from __future__ import annotations

import pytest

from retinue.interfaces.view.file_diff import diff_lines
from retinue.interfaces.view.styled_text import Tone, plain_text
from retinue.runtime.history.undo import ChangePatch

PATCH = "diff --git a/a.py b/a.py\nindex 1..2 100644\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x\n+y\n"


@pytest.mark.parametrize(
    ("state", "number", "agent", "head"),
    [
        ("undone", 2, "a1", "step 2, undone, by a1 (root): t"),
        ("kept", None, "a1", "not merged, by a1 (root): t"),
        ("made", None, "a1", "applied by redo, by a1 (root): t"),
        ("made", 2, "", "step 2, by an unknown agent: t"),
    ],
)
def test_change_heading(state: str, number: int | None, agent: str, head: str) -> None:
    path = "root" if agent else ""
    change = ChangePatch(
        state=state, number=number, agent_id=agent, path=path, title="t", patch=PATCH
    )
    lines = diff_lines(change, 76)
    assert plain_text(lines).split("\n")[0] == head
    assert [line[-1].tone for line in lines[4:]] == [Tone.REMOVED, Tone.ADDED]
