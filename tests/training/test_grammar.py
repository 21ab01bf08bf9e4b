"""The grammar of replies admits all that is taught, and no malformed call."""

from __future__ import annotations

import json
import random
import re

import pytest

from retinue.domain.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from retinue.embedded.grammar import call_grammar
from retinue.embedded.prompt import END, TOOLS
from tests.embedded.gbnf import Grammar
from training import wording
from training.conversations import conversation
from training.kinds import task
from training.project import Project
from training.tasks import Choice

from .test_project import FILES


def call(name: str, **arguments: object) -> str:
    """A reply with one call."""
    written = json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>{{"name": "{name}", "arguments": {written}}}</tool_call>'


def conversation_with(question: str, *calls: tuple[str, dict[str, str], str]) -> list[Message]:
    """A question, and calls with their results."""
    messages: list[Message] = [UserMessage(question)]
    for number, (name, arguments, result) in enumerate(calls):
        made = ToolCall(f"c{number}", name, json.dumps(arguments))
        messages += [AssistantMessage("", (made,)), ToolMessage(made.id, result)]
    return messages


def admits(messages: list[Message], reply: str) -> bool:
    return Grammar(call_grammar(sorted(TOOLS), messages)).admits(reply)


def test_all_that_is_taught_is_admitted() -> None:
    for seed in range(250):
        project = Project("links", FILES)
        made = task(Choice(project, random.Random(seed), wording))
        for turn in conversation(made, project):
            if turn.learn:
                admitted = Grammar(call_grammar(made.tools, turn.before))
                assert admitted.admits(turn.writes.removesuffix(END)), turn


@pytest.mark.parametrize(
    "text",
    ["<b>no</b>", "<td></td></table>", "cat <<EOF\n", "a <", "</", "<\n</to\n", "</total>", "x{2}"],
)
def test_any_text_can_be_written(text: str) -> None:
    arguments = json.dumps({"path": "a.txt", "content": text})
    reply = f'<tool_call>{{"name": "write_file", "arguments": {arguments}}}</tool_call>'
    assert Grammar(call_grammar(TOOLS)).admits(reply)


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
    assert not Grammar(call_grammar(TOOLS)).admits(reply)


def test_a_tool_that_is_not_offered_cannot_be_called() -> None:
    reply = (
        '<tool_call>{"name": "write_file", "arguments": {"path": "a", "content": "b"}}</tool_call>'
    )
    assert Grammar(call_grammar(["read_file", "write_file"])).admits(reply)
    assert not Grammar(call_grammar(["read_file"])).admits(reply)
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
    admitted = Grammar(call_grammar(["read_file", "list_dir", "edit_file"], messages))
    for name in ("read_file", "list_dir"):
        reply = f'<tool_call>{{"name": "{name}", "arguments": {{"path": "a"}}}}</tool_call>'
        assert admitted.admits(reply) == (name in allowed)
    assert admitted.admits("It is empty: a < b.")


LISTED = ("list_dir", {"path": "docs"}, "guide/\nintro.md (1,204 bytes)")
FOUND = ("search_files", {"pattern": "PORT"}, "src/net.py:12: PORT = 80")


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("docs/intro.md", True),
        ("docs/guide", True),
        ("src/net.py", True),
        ("src", True),
        ("Makefile", True),
        ("docs/introduction.md", False),
        ("net.py", False),
        ("src/src/net.py", False),
    ],
)
def test_paths_are_those_of_the_conversation(path: str, known: bool) -> None:
    messages = conversation_with("What does Makefile do?", LISTED, FOUND)
    assert admits(messages, call("read_file", path=path)) == known
    task = f"What does {path} do? Answer in one sentence."
    assert admits(messages, call("spawn_agent", role="researcher", task=task)) == (
        known or path == "net.py"
    )
    assert admits([UserMessage("What is this?")], call("read_file", path=path))


@pytest.mark.parametrize(
    ("name", "known"), [("HarborMap", True), ("HarbourMap", False), ("Harbor", False)]
)
def test_a_pattern_has_words_of_the_conversation(name: str, known: bool) -> None:
    messages: list[Message] = [UserMessage("Where is HarborMap?")]
    for pattern in (rf"(class|def|fn) {name}\b", f"{name}.{{0,3}}[:=]", rf"{name}\.\w+\("):
        assert admits(messages, call("search_files", pattern=pattern)) == known
    assert admits(messages, call("find_files", pattern=f"**/{name}*.py")) == known


PAGE = '# Tides\n\nThe "high" tide.\n\tsame\tline \\o/\n'
PAGE_READ = ("read_file", {"path": "a.md"}, PAGE)


def edit(old: str, new: str, path: str = "a.md") -> str:
    return call("edit_file", path=path, old_text=old, new_text=new)


def test_an_edit_replaces_text_that_was_read() -> None:
    messages = conversation_with("Make a.md shorter, version 2.1.", PAGE_READ)
    pieces = re.findall(r"\w+|\W", PAGE)
    for start in range(len(pieces)):
        for end in range(start + 1, len(pieces) + 1):
            assert admits(messages, edit("".join(pieces[start:end]), "Tides 2.1"))
    for old in ("shorter", "Tide", "# Tides\n\nThe tide.", "The tide", "high tide"):
        assert not admits(messages, edit(old, "Tides"))
    # A name or number that nobody mentioned.
    assert not admits(messages, edit("Tides", "Tides 2.2"))
    assert not admits(messages, edit("Tides", "tide_table"))


@pytest.mark.parametrize(
    ("old", "new", "admitted"),
    [
        ("# Tides", "low water", True),
        ("# Tides", "# Tides\nlow water", True),
        ("# Tides", "low water\n# Tides", True),
        ("# Tides\n", "", True),
        ("# Tides", "low waters", False),
        ("# Tides", "# Tides", False),
        ("low water", "# Tides", False),
        ("same", "low water", False),
    ],
)
def test_quoted_text_is_exact(old: str, new: str, admitted: bool) -> None:
    messages = conversation_with('In a.md, put "low water" after "# Tides".', PAGE_READ)
    assert admits(messages, edit(old, new)) == admitted


def test_the_lines_about_the_contract_are_not_copied() -> None:
    lines = "\n\nDirectory: /home/ana/tides\nBudget: 15 tool calls, 50 turns."
    messages: list[Message] = [UserMessage(f"All waves in a.md should become tides_2.{lines}")]
    assert admits(messages, edit("waves", "tides_2"))
    assert not admits(messages, edit("waves in a.md should become", "tides_2"))
    assert not admits(messages, call("read_file", path="/home/ana"))


def test_an_edit_has_the_text_that_is_quoted() -> None:
    messages = conversation_with("The last line of a.md shall be \"It's 5 o'clock\".", PAGE_READ)
    last = "same\tline \\o/"
    assert admits(messages, edit(last, f"{last}\nIt's 5 o'clock"))
    assert admits(messages, edit("# Tides", "It's 5 o'clock\n# Tides"))
    assert not admits(messages, edit(last, f"{last}\nIt is 5"))
    assert not admits(messages, edit('The "high" tide.', "It's 5 o'clock"))
    # Also in a file that was not read; there, the text may also be what is replaced.
    assert admits(messages, edit("It's 5 o'clock", "It", path="b/c.md")) is False
    unread = conversation_with('Replace "5 o\'clock" in a.md by noon.')
    assert admits(unread, edit("5 o'clock", "noon"))
    assert not admits(unread, edit("5 o'clocks", "noon"))


@pytest.mark.parametrize(
    ("answer", "admitted"),
    [
        ("It defines tide_of.", True),
        ("- a.md: The high tide.", True),
        ("Harbour 2.10 measures tides.", True),
        ("Tides.", False),
        ("Tides. It is high.", False),
        ("Harbour 2.10.", False),
        ("Harbour 2.10. High tides.", False),
    ],
)
def test_an_answer_after_reading_is_a_sentence(answer: str, admitted: bool) -> None:
    read = ("read_file", {"path": "a.md"}, "Harbour 2.10\n============\n\nTides.")
    assert admits(conversation_with("What is a.md?", read), answer) == admitted
    assert admits([UserMessage("Hello")], answer)


ERROR = "[ERROR] old_text is not in 'a.md'."


@pytest.mark.parametrize(
    ("results", "allowed"),
    [
        ([], {"edit_file", "write_file"}),
        ([ERROR], {"edit_file"}),
        ([ERROR, ERROR], {"edit_file"}),
        ([ERROR, ERROR, ERROR], set()),
        ([ERROR, ERROR, "Edited a.md (+1 line)."], {"edit_file", "write_file"}),
    ],
)
def test_edits_that_fail_are_not_tried_for_ever(results: list[str], allowed: set[str]) -> None:
    made = [
        ("edit_file", {"path": "a.md", "old_text": f"a{n}", "new_text": "b"}, result)
        for n, result in enumerate(results)
    ]
    messages = conversation_with("Replace a by b in a.md.", *made)
    assert admits(messages, edit("a", "b")) == ("edit_file" in allowed)
    written = call("write_file", path="a.md", content="b")
    assert admits(messages, written) == ("write_file" in allowed)
    again: list[Message] = [*messages, AssistantMessage("I cannot."), UserMessage("Try again.")]
    assert admits(again, edit("a", "b"))


FOUND_FILES = ("find_files", {"pattern": "*.toml"}, "a.toml\nb/c.toml")


@pytest.mark.parametrize(
    ("answer", "admitted"),
    [
        ("These files match: a.toml, b/c.toml.", True),
        ("Many files match, among them a.toml and more.", True),
        ("There are no TOML files.", False),
        ("No file matches: a.toml.", False),
        ("It has no description.", False),
        ("These files match: a.toml, c.toml.", False),
    ],
)
def test_files_that_were_found_are_named(answer: str, admitted: bool) -> None:
    messages = conversation_with("Which TOML files are there?", FOUND_FILES)
    assert admits(messages, answer) == admitted
    nothing = ("find_files", {"pattern": "*.toml"}, "[No file matches '*.toml'.]")
    assert admits(conversation_with("Which TOML files?", nothing), "No file matches *.toml.")


@pytest.mark.parametrize(
    ("question", "glob", "admitted"),
    [
        ("What matches te*?", "te*", True),
        ("What matches te*.", "te*", True),
        ("What matches te*.", "te.*", False),
        ("Which test files are there?", "*test*", True),
        ("Which Python files are there?", "**/*.py", True),
        ("Which Python files are there?", "*java*", False),
    ],
)
def test_a_glob_of_the_question_is_exact(question: str, glob: str, admitted: bool) -> None:
    assert admits([UserMessage(question)], call("find_files", pattern=glob)) == admitted


def every(old: str, **more: object) -> str:
    return call("edit_file", path="a.md", old_text=old, new_text="low", **more)


def test_a_text_in_several_places_is_replaced_in_all_if_the_question_has_it() -> None:
    error = (
        "[ERROR] old_text is in 'a.md' 2 times, at lines 1, 3. Make it longer, or send all=true."
    )
    for old, asked in (("tide", True), (" ", True), ("water", False)):
        made = ("edit_file", {"path": "a.md", "old_text": old, "new_text": "low"}, error)
        messages = conversation_with("In a.md, tide should be low.", made)
        assert admits(messages, every("tide", all=True))
        assert admits(messages, every("tide")) == (not asked)


def test_a_file_is_read_before_text_is_added_once_more() -> None:
    question = 'Append "low water" to a.md.'
    wrong = {"path": "a.md", "old_text": "low water", "new_text": "low water\n"}
    error = "[ERROR] old_text is not in 'a.md'. No line is like its first one; read the file again."
    messages = conversation_with(question, ("edit_file", wrong, error))
    assert admits(messages, call("read_file", path="a.md"))
    assert not admits(messages, edit("low water", "low water\n"))
    assert not admits(messages, "I changed nothing in a.md.")
    # A text that should have been replaced is not there: that is the answer.
    replaced = wrong | {"new_text": "high"}
    other = conversation_with(
        'Replace "low water" in a.md by high.', ("edit_file", replaced, error)
    )
    assert admits(other, '"low water" is not in a.md. I changed nothing.')
    missing = conversation_with(question, ("edit_file", wrong, "[ERROR] No file 'a.md'."))
    assert admits(missing, "There is no file a.md.")


def test_a_file_that_was_read_is_not_written_over() -> None:
    messages = conversation_with("Make b.md from a.md.", PAGE_READ)
    assert admits(messages, call("write_file", path="b.md", content="x"))
    assert not admits(messages, call("write_file", path="a.md", content="x"))
