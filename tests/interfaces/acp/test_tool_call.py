from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.interfaces.acp.tool_call import (
    MAX_OUTPUT_CHARS,
    call_fields,
    patch_diffs,
    text_content,
)

ROOT = Path("/project")
LINES = st.lists(st.text(st.characters(categories=["L", "N", "P"]), max_size=8), min_size=1)


@given(LINES, LINES)
def test_patch_becomes_the_texts_before_and_after(old: list[str], new: list[str]) -> None:
    patch = difflib.unified_diff(old, new, "a/x.txt", "b/x.txt", n=10**6, lineterm="")
    diffs = patch_diffs("\n".join(["diff --git a/x.txt b/x.txt", *patch]), ROOT)
    if old == new:
        assert diffs == []
        return
    (diff,) = diffs
    assert diff["path"] == "/project/x.txt"
    assert diff["oldText"] == "".join(f"{line}\n" for line in old)
    assert diff["newText"] == "".join(f"{line}\n" for line in new)


def test_new_and_deleted_files_in_one_patch() -> None:
    patch = (
        "diff --git a/new.txt b/new.txt\n--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+hi\n"
        "diff --git a/gone.txt b/gone.txt\n--- a/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n"
        "\\ No newline at end of file\n"
    )
    made, gone = patch_diffs(patch, ROOT)
    assert (made["path"], made["oldText"], made["newText"]) == ("/project/new.txt", None, "hi\n")
    assert (gone["path"], gone["oldText"], gone["newText"]) == ("/project/gone.txt", "bye\n", "")


@pytest.mark.parametrize("sign", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_no_part_of_a_line_is_hidden(sign: str) -> None:
    line = f"x = 1{sign}; steal()"
    patch = f"diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+{line}\n"
    (diff,) = patch_diffs(patch, ROOT)
    assert (diff["oldText"], diff["newText"]) == ("x = 1\n", f"{line}\n")


def test_file_outside_of_the_project_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    root = tmp_path / "project"
    root.mkdir()
    arguments = '{"path": "../secret", "content": "x"}'
    (diff,) = call_fields("write_file", arguments, root, live=True)["content"]
    assert diff["oldText"] is None


def test_long_output_keeps_both_ends() -> None:
    (content,) = text_content("a" * MAX_OUTPUT_CHARS + "b" * MAX_OUTPUT_CHARS)
    text = content["content"]["text"]
    assert text.startswith("aaa")
    assert text.endswith("bbb")
    assert "[… 8,000 characters …]" in text
    assert text_content("") == []
