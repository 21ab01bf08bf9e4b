from __future__ import annotations

import pytest

from retinue.interfaces.view.file_diff import collapsed, diff_lines, patch_lines
from retinue.interfaces.view.styled_text import Tone, plain_text, segments, styled
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
    assert plain_text(lines).split("\n")[1:] == ["  a.py (+1 −1)", "  1 - x", "  1 + y"]


def test_a_write_of_the_same_content_is_no_change() -> None:
    assert plain_text(patch_lines("diff --git a/a.py b/a.py\n", 60)) == "  a.py (no change)"


def test_a_diff_has_line_numbers_signs_and_colours() -> None:
    patch = """diff --git a/m.py b/m.py
--- a/m.py
+++ b/m.py
@@ -9,3 +9,3 @@ class A:
 def f():
-    return 1
+    return "two"
     # end
@@ -99,1 +99,2 @@
 x = 1
+y = 2
diff --git a/gone.txt b/gone.txt
deleted file mode 100644
--- a/gone.txt
+++ /dev/null
@@ -1 +0,0 @@
-bye
diff --git a/new.bin b/new.bin
Binary files /dev/null and b/new.bin differ
diff --git a/old.bin b/old.bin
Binary files a/old.bin and /dev/null differ
"""
    lines = patch_lines(patch, 60)
    assert plain_text(lines).split("\n") == [
        "  m.py (+2 −1)",
        "   9   def f():",
        "  10 -     return 1",
        '  10 +     return "two"',
        "  11       # end",
        "  ⋮",
        "   99   x = 1",
        "  100 + y = 2",
        "  gone.txt (deleted, +0 −1)",
        "  1 - bye",
        "  new.bin (new file, binary)",
        "  old.bin (deleted, binary)",
    ]
    assert Tone.ADDED in [span.style for span in lines[3].spans]
    assert Tone.REMOVED in [span.style for span in lines[2].spans]
    colours = {str(segment.style) for segment in segments(lines[1])}
    assert len(colours - {"none", "dim"}) >= 1, "the code has colours of its own"


@pytest.mark.parametrize("sign", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_no_part_of_a_line_is_hidden(sign: str) -> None:
    patch = f"--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 1{sign}; steal()\n"
    assert plain_text(patch_lines(patch, 60)).split("\n")[-1] == "  1 + x = 1; steal()"


def test_a_long_diff_is_collapsed() -> None:
    lines = [styled(str(number)) for number in range(50)]
    assert len(collapsed(lines, full=False)) == 20
    assert collapsed(lines, full=False)[-1].plain == (
        "  … 31 more lines (ctrl+o or a click shows them)"
    )
    assert collapsed(lines, full=True) == lines
    assert collapsed(lines[:20], full=False) == lines[:20]
