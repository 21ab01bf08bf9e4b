from __future__ import annotations

import msgspec
import pytest

from retinue.interfaces.view.styled_text import Tone, plain_text
from retinue.interfaces.view.tool_calls import call_text, edit_lines


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("read_file", '{"path": "src/a.py", "start": 3}', "read_file src/a.py"),
        ("search", '{"path": "src", "pattern": "x"}', "search src"),
        ("run_command", '{"command": "make\\n  test"}', "run_command make test"),
        ("spawn_agent", '{"role": "tester", "task": "Test it"}', "spawn_agent Test it"),
        ("weather", '{"city": "Ulm", "days": 2}', "weather city=Ulm, days=2"),
        ("weather", '{"query": ["a", 1]}', 'weather ["a",1]'),
        ("list_dir", "{}", "list_dir"),
        ("list_dir", '{"path": ', 'list_dir {"path":'),
        ("list_dir", "[1]", "list_dir [1]"),
        ("deep", "[" * 100_000, "deep " + "[" * 200),
    ],
)
def test_call_text(tool: str, arguments: str, text: str) -> None:
    assert call_text(tool, arguments) == text


def test_long_argument_is_shortened() -> None:
    assert len(call_text("run_command", '{"command": "' + "x" * 10_000 + '"}')) < 250


def test_edit_shows_added_and_removed_lines() -> None:
    long = msgspec.json.encode({"path": "a", "content": "\n".join("x" * 99)}).decode()
    lines = edit_lines("write_file", long, 40, limit=3)
    assert plain_text(lines) == "  + x\n  + x\n  + x\n  … 96 more lines"
    assert [line.spans[0].style for line in lines[:3]] == [Tone.ADDED] * 3
    assert edit_lines("write_file", "{", 40) == []
    assert edit_lines("write_file", "[1]", 40) == []
    assert edit_lines("read_file", long, 40) == []
