"""The grammar of replies admits all that is taught, and no malformed call."""

from __future__ import annotations

import ast
import json
import random
import re

import pytest

from retinue.domain.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from retinue.embedded.calls import call_grammar
from retinue.embedded.prompt import END, TOOLS
from training import wording
from training.conversations import conversation
from training.kinds import task
from training.project import Project
from training.tasks import Choice

from .test_project import FILES

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{[\d,]+\}|\w+|[()|*?]|\s+')


def as_expression(grammar: str) -> re.Pattern[str]:
    """The grammar, whose rules are not recursive, as a regular expression."""
    rules = dict(line.split(" ::= ") for line in grammar.strip().splitlines())

    def expand(rule: str) -> str:
        def part(match: re.Match[str]) -> str:
            token = match[0]
            if token[0] == '"':
                return f"(?:{re.escape(ast.literal_eval(token))})"
            if token in rules:
                return f"(?:{expand(rules[token])})"
            return token.strip()

        return _TOKEN.sub(part, rule)

    return re.compile(expand(rules["root"]))


def test_all_that_is_taught_is_admitted() -> None:
    for seed in range(400):
        project = Project("links", FILES)
        made = task(Choice(project, random.Random(seed), wording))
        admitted = as_expression(call_grammar(made.tools))
        for turn in conversation(made, project):
            assert admitted.fullmatch(turn.writes.removesuffix(END)), turn.writes


@pytest.mark.parametrize(
    "text",
    ["<b>no</b>", "<td></td></table>", "cat <<EOF\n", "a <", "</", "<\n</to\n", "</total>", "x{2}"],
)
def test_any_text_can_be_written(text: str) -> None:
    arguments = json.dumps({"path": "a.txt", "content": text})
    reply = f'<tool_call>{{"name": "write_file", "arguments": {arguments}}}</tool_call>'
    assert as_expression(call_grammar(TOOLS)).fullmatch(reply)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        '<tool_call>{"name": "read_file", "arguments": {"path": "a.py"}',
        '<tool_call>{"name": "read_file", "arguments": {"path": "a", "job_ids": "*"}}</tool_call>',
        '<tool_call>{"name": "read_file", "arguments": {"path": "a.py", "path": "a"}}</tool_call>',
        '<tool_call>{"name": "read_file", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "open_file", "arguments": {"path": "a.py"}}</tool_call>',
        r'<tool_call>{"name": "search_files", "arguments": {"pattern": "a\.py"}}</tool_call>',
        '<tool_call>{"name": "read_file", "arguments": {"path": "a.py}}</tool_call>"}}</tool_call>',
        '<tool_call>{"name": "find_files", "arguments": {"pattern": "}}</tool_call>"}}</tool_call>',
        'I read it: <tool_call>{"name": "read_file", "arguments": {"path": "a.py"}}</tool_call>',
    ],
)
def test_malformed_calls_are_not_admitted(reply: str) -> None:
    assert not as_expression(call_grammar(TOOLS)).fullmatch(reply)


def test_a_tool_that_is_not_offered_cannot_be_called() -> None:
    reply = (
        '<tool_call>{"name": "write_file", "arguments": {"path": "a", "content": "b"}}</tool_call>'
    )
    assert as_expression(call_grammar(["read_file", "write_file"])).fullmatch(reply)
    assert not as_expression(call_grammar(["read_file"])).fullmatch(reply)
    assert call_grammar(["run_command"]) == ""


READ, OTHER_READ, WRONG_EDIT = ("read_file", "a"), ("read_file", "b"), ("edit_file", "c")
CUT_EDIT, CUT_WRITE = ("edit_file", ""), ("write_file", "")


@pytest.mark.parametrize(
    ("calls", "allowed"),
    [
        ([], {"read_file", "list_dir"}),
        ([READ, OTHER_READ, READ], {"read_file", "list_dir"}),
        ([READ, READ], {"list_dir"}),
        ([WRONG_EDIT, WRONG_EDIT], {"read_file", "list_dir"}),
        ([CUT_EDIT], {"read_file", "list_dir"}),
        ([CUT_EDIT, READ, CUT_WRITE], set()),
        ([READ, READ, OTHER_READ], {"read_file", "list_dir"}),
        ([READ, OTHER_READ, READ, OTHER_READ, READ], set()),
        ([READ, READ, None], {"read_file", "list_dir"}),
        ([READ, READ, None, READ], {"read_file", "list_dir"}),
    ],
)
def test_calls_are_not_repeated_for_ever(
    calls: list[tuple[str, str] | None], allowed: set[str]
) -> None:
    messages: list[Message] = [UserMessage("What is in a?")]
    for number, call in enumerate(calls):
        if call is None:
            messages += [AssistantMessage("It is empty."), UserMessage("And now?")]
        else:
            messages += [AssistantMessage("", (ToolCall(f"c{number}", *call),))]
            messages += [ToolMessage(f"c{number}", "[The file is empty.]")]
    admitted = as_expression(call_grammar(["read_file", "list_dir", "edit_file"], messages))
    for name in ("read_file", "list_dir"):
        reply = f'<tool_call>{{"name": "{name}", "arguments": {{"path": "a"}}}}</tool_call>'
        assert bool(admitted.fullmatch(reply)) == (name in allowed)
    assert admitted.fullmatch("It is empty: a < b.")
