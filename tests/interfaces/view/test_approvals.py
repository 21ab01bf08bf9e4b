from __future__ import annotations

import tomllib

import msgspec
import pytest

from retinue.domain.approval import ApprovalReason, ApprovalRequest, ChildTerms, Refusal, Rule
from retinue.interfaces.view.approvals import (
    children_lines,
    permanent_rule_hint,
    read_answer,
    request_lines,
)
from retinue.interfaces.view.styled_text import plain_text


def request(command: str) -> ApprovalRequest:
    return ApprovalRequest(
        path="root/executor.1",
        tool="run_command",
        arguments="{}",
        why=ApprovalReason.MODE,
        subject=command,
    )


def shown(request: ApprovalRequest, width: int = 80) -> list[str]:
    return plain_text(request_lines(request, width)).split("\n")


def test_a_command_is_shown_whole() -> None:
    long = "echo " + "x" * 100_000 + "; rm -rf src"
    head, *lines = shown(request(long))
    assert head == "executor.1 asks to run a command:"
    assert "".join(line[4:] for line in lines) == long
    assert shown(request("echo harmless\nrm -rf src\t-v\x1b[2K\u202e"))[1:] == [
        "  $ echo harmless",
        "    rm -rf src  -v�[2K�",
    ]


def test_a_change_of_a_file_is_shown_whole() -> None:
    patch = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,200 @@\n x = 1\n" + "+y = 2\n" * 199
    writes = ApprovalRequest(
        path="root",
        tool="write_file",
        arguments='{"path": "a.py", "content": "…"}',
        why=ApprovalReason.MODE,
        file="a.py",
        preview=patch,
    )
    lines = shown(writes)
    assert lines[:4] == [
        "The agent asks to change a file:",
        "  a.py (+199 −0)",
        "    1   x = 1",
        "    2 + y = 2",
    ]
    assert lines[-1] == "  200 + y = 2"


def test_other_calls_show_their_arguments_one_by_one() -> None:
    call = ApprovalRequest(
        path="root",
        tool="send",
        arguments='{"to": "all", "text": "one\\ntwo", "count": 2}',
        why=ApprovalReason.MODE,
    )
    assert shown(call) == [
        "The agent asks to call send:",
        "  to: all",
        "  text: one",
        "    two",
        "  count: 2",
    ]
    assert shown(msgspec.structs.replace(call, arguments="{"))[1:] == ["  {"]
    assert shown(msgspec.structs.replace(call, arguments="{}"))[1:] == ["  (without arguments)"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("y", True),
        ("Yes", True),
        ("n", False),
        ("no,", False),
        ("no, use pytest", Refusal("use pytest")),
        ("a", Rule("run_command", "git log *")),
        ("always run_command(git *)", Rule("run_command", "git *")),
        ("always use pytest", None),
        ("yes but later", None),
        ("hello", None),
    ],
)
def test_read_answer(text: str, answer: object) -> None:
    assert read_answer(text, request("git log -3")) == answer


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
    assert children_lines(request) == [
        "The agent asks to spawn 2 children that can change things:",
        "  2 × executor:",
        "    - Write a. (writes a, no network)",
        "    - Write b. (writes b, no network)",
        "    tools: edit_file, write_file",
        "    budget: 30 tool calls",
        "    works in a copy",
    ]
    alone = msgspec.structs.replace(request, children=(terms,))
    assert children_lines(alone)[:2] == [
        "The agent asks to spawn a child that can change things:",
        "  executor: Write a.",
    ]
    many = msgspec.structs.replace(request, children=(terms,) * 100)
    assert len(children_lines(many)) == 106, "each child is shown"
