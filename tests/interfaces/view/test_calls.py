from __future__ import annotations

import pytest

from retinue.interfaces.view.calls import call_text


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
def test_a_call_in_a_few_words(tool: str, arguments: str, text: str) -> None:
    assert call_text(tool, arguments) == text


def test_a_long_argument_is_cut() -> None:
    assert len(call_text("run_command", '{"command": "' + "x" * 10_000 + '"}')) < 250
