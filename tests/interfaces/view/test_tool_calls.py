from __future__ import annotations

import tomllib

import msgspec
import pytest

from retinue.domain.approval import ApprovalReason, ApprovalRequest, ChildTerms, Rule
from retinue.interfaces.view.styled_text import Tone, plain_text
from retinue.interfaces.view.tool_calls import (
    approval_lines,
    call_text,
    edit_lines,
    permanent_rule_hint,
)


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


def request(command: str) -> ApprovalRequest:
    return ApprovalRequest(
        path="root/executor.1",
        tool="run_command",
        arguments="{}",
        why=ApprovalReason.MODE,
        subject=command,
    )


def test_approval_lines_show_the_full_command() -> None:
    long = "echo " + "x" * 700 + "; rm -rf src"
    assert approval_lines(request(long)) == [f"root/executor.1 requests run_command: {long}"]
    assert approval_lines(request("echo harmless\nrm -rf src\t-v\x1b[2K\u202e")) == [
        "root/executor.1 requests run_command: echo harmless",
        "  rm -rf src  -v�[2K�",
    ]


def test_approval_lines_of_a_very_long_command() -> None:
    lines = approval_lines(request("x" * 100_000 + "; rm -rf src"), 10)
    assert len(lines) == 11
    assert lines[5] == "  [… 491 lines not shown …]"
    assert lines[-1].endswith("; rm -rf src")
    lines = approval_lines(request("true\n" * 100 + "rm -rf src"), 10)
    assert (len(lines), lines[-1]) == (11, "  rm -rf src")


def test_edit_shows_added_and_removed_lines() -> None:
    long = msgspec.json.encode({"path": "a", "content": "\n".join("x" * 99)}).decode()
    lines = edit_lines("write_file", long, 40, limit=3)
    assert plain_text(lines) == "  + x\n  + x\n  + x\n  … 96 more lines"
    assert [line[1].tone for line in lines[:3]] == [Tone.ADDED] * 3
    assert edit_lines("write_file", "{", 40) == []
    assert edit_lines("write_file", "[1]", 40) == []
    assert edit_lines("read_file", long, 40) == []


def test_rule_hint_is_valid_toml() -> None:
    rule = Rule("run_command", "echo \x1b]0;taken over\x07\x9b31m\u202e words")
    text = permanent_rule_hint(rule)
    assert text.isprintable()
    (read,) = tomllib.loads(text.rpartition("your settings: ")[2])["allow"]
    assert read == str(rule)


def test_children_to_approve_share_what_is_the_same() -> None:
    terms = ChildTerms(
        role="executor",
        task="Write a.",
        tools=("edit_file", "write_file"),
        access="writes a, no network",
        budget="30 tool calls",
        files="works in a copy",
    )
    other = msgspec.structs.replace(terms, task="Write b.", access="writes b, no network")
    request = ApprovalRequest(
        path="root",
        tool="spawn_agent",
        arguments="",
        why=ApprovalReason.CONTRACT,
        children=(terms, other),
    )
    assert approval_lines(request) == [
        "root wants to spawn 2 such children:",
        "  2 × executor:",
        "    - Write a. (writes a, no network)",
        "    - Write b. (writes b, no network)",
        "    tools: edit_file, write_file",
        "    budget: 30 tool calls",
        "    works in a copy",
    ]
    alone = msgspec.structs.replace(request, children=(terms,))
    assert approval_lines(alone)[:2] == [
        "root wants to spawn a child that writes or runs commands:",
        "  executor: Write a.",
    ]
    many = msgspec.structs.replace(request, children=(terms,) * 100)
    assert len(approval_lines(many)) == 106, "each child is shown"
