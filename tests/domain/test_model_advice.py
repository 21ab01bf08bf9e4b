"""Error messages for people, without advice for models."""

from __future__ import annotations

import pytest

from retinue.domain.model_advice import without_advice


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("No file 'a'. Use list_dir or find_files to see what is there.", "No file 'a'."),
        ("'a' is a directory; use list_dir.", "'a' is a directory."),
        ("its 9 tokens do not fit the 5 that are left; read it with read_file",
         "its 9 tokens do not fit the 5 that are left"),
        ("No file 'a'. Did you mean 'b'?", "No file 'a'. Did you mean 'b'?"),
        ("The user said no to edit_file: not now. Go on without it.",
         "The user said no to edit_file: not now."),
        ("[ERROR] grep: missing 'path'. Send {\"path\": string}.", "grep: missing 'path'."),
        ("[DENIED] You have no tool 'sh'. You have: grep, read_file.", "You have no tool 'sh'."),
        ("Use the door.", "Use the door."),
    ],
)  # fmt: skip
def test_advice_that_names_a_tool_is_left_out(text: str, shown: str) -> None:
    assert without_advice(text) == shown
