from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Reply,
    Request,
    ToolCall,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from retinue.models.repair.model import RepairedModel, repair
from retinue.models.scripted.model import ScriptedModel, call, raw_call, say
from retinue.ports.model import Model
from retinue.tools.builtin import builtin_tools


def spec(name: str, required: str, optional: str = "", **types: Any) -> ToolSpec:
    fields = [*required.split(), *optional.split()]
    schema = {
        "type": "object",
        "properties": {field: types.get(field, {"type": "string"}) for field in fields},
        "required": required.split(),
    }
    return ToolSpec(name, "", msgspec.Raw(msgspec.json.encode(schema)))


TOOLS = (
    *(tool.spec for tool in builtin_tools()),
    spec("spawn_agent", "role task", "max_turns", max_turns={"type": "integer"}),
    spec("spawn_await", "job_ids", job_ids={"type": "array", "items": {"type": "string"}}),
    spec("delegate_task", "task"),
    spec("agent_message", "id message"),
    spec("agent_cancel", "id"),
    spec("remember", "text"),
    spec("recall", "query"),
)
CASES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "data" / "malformed_calls.yaml").read_text("utf-8")
)
BY_NAME = {tool.name: tool for tool in TOOLS}


def reply(
    text: str = "", *calls: tuple[str, str], finish: Finish | None = None, ids: str = "native"
) -> Reply:
    return Reply(
        message=AssistantMessage(
            text, tuple(ToolCall(f"{ids}_{n}", *c) for n, c in enumerate(calls))
        ),
        usage=Usage(),
        finish=finish or (Finish.TOOLS if calls else Finish.STOP),
    )


def given_in(case: dict[str, Any]) -> Reply:
    calls = [(name, arguments) for name, arguments in case.get("calls", ())]
    finish = Finish(case["finish"]) if "finish" in case else None
    return reply(case.get("text", ""), *calls, finish=finish)


def called(reply: Reply) -> list[dict[str, Any]]:
    """The calls as the data has them: decoded, or the raw text where it is not JSON."""
    return [{one.name: decoded(one.arguments)} for one in reply.message.calls]


def decoded(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments


def title(case: dict[str, Any]) -> str:
    return f"{case['about']} ({case['seen']})"


def test_corpus_size() -> None:
    malformed = [case for case in CASES if "expect" in case]
    assert len(malformed) >= 60
    assert all(case["about"] and case["seen"] for case in CASES)
    assert len({msgspec.json.encode(case) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=title)
def test_malformed_calls(case: dict[str, Any]) -> None:
    before = given_in(case)
    after = repair(before, TOOLS)
    if case.get("unchanged"):
        assert after is before
        return
    expected = case["expect"]
    assert called(after) == expected.get("calls", [])
    assert after.message.content == expected.get("text", "")
    assert after.repairs
    assert all(note.strip() == note and "\n" not in note for note in after.repairs)
    if "finish" in case:
        assert after.finish is before.finish
    elif after.message.calls:
        assert after.finish is Finish.TOOLS
    assert repair(after, TOOLS) is after


@pytest.mark.parametrize("case", [c for c in CASES if "expect" in c], ids=title)
def test_only_offered_tools_are_called(case: dict[str, Any]) -> None:
    before = given_in(case)
    after = repair(before, (spec("unheard_of", "x"),))
    assert [one.name for one in after.message.calls] == [one.name for one in before.message.calls]
    assert repair(before, ()).message.calls == before.message.calls


class TestNotes:
    def test_a_note_says_what_was_wrong(self) -> None:
        after = repair(reply("", ("read_file", '{"path": "a",}')), TOOLS)
        assert after.repairs == ("read_file: arguments were not JSON (a trailing comma)",)

    def test_each_repair_has_a_note(self) -> None:
        after = repair(reply("", ("Read", "{'file_path': 'a'}")), TOOLS)
        assert after.repairs == (
            "read_file: was called 'Read'",
            "read_file: arguments were not JSON (single quotes)",
            "read_file: 'file_path' was taken as 'path'",
        )

    def test_truncated_arguments_are_noted_and_left(self) -> None:
        cut = '{"path": "a", "content": "half of'
        after = repair(reply("", ("write_file", cut), finish=Finish.LENGTH), TOOLS)
        assert after.message.calls[0].arguments == cut
        assert after.repairs == (
            "write_file: arguments were cut off inside a string; left as they are",
        )

    def test_calls_in_text_name_their_format(self) -> None:
        after = repair(reply('[TOOL_CALLS]list_dir{"path": "."}'), TOOLS)
        assert after.repairs == ("list_dir: was written as text, as [TOOL_CALLS]",)

    def test_earlier_notes_stay(self) -> None:
        before = msgspec.structs.replace(reply("", ("ls", "{}")), repairs=("mended before",))
        assert repair(before, TOOLS).repairs == ("mended before", "list_dir: was called 'ls'")


class TestIds:
    def test_repaired_call_keeps_its_id(self) -> None:
        after = repair(reply("", ("cat", '{"file": "a"}')), TOOLS)
        assert [one.id for one in after.message.calls] == ["native_0"]

    def test_calls_in_text_are_numbered(self) -> None:
        text = '<tool_call>{"name": "list_dir", "arguments": {}}</tool_call>'
        after = repair(reply(text * 2), TOOLS)
        assert [one.id for one in after.message.calls] == ["call_0", "call_1"]

    def test_ids_are_unique_in_the_conversation(self) -> None:
        earlier = AssistantMessage(
            "", (ToolCall("call_1", "list_dir", "{}"), ToolCall("x", "y", "{}"))
        )
        text = '<tool_call>{"name": "list_dir", "arguments": {}}</tool_call>'
        after = repair(reply(text * 2), TOOLS, (UserMessage("Hi."), earlier))
        assert [one.id for one in after.message.calls] == ["call_2", "call_3"]

    def test_calls_inside_a_call(self) -> None:
        uses = '{"name": "list_dir", "parameters": {}}'
        before = reply("", ("parallel", f'{{"tool_uses": [{uses}, {uses}]}}'), ids="call")
        assert [one.id for one in repair(before, TOOLS).message.calls] == ["call_0", "call_1"]


class TestLimits:
    def test_two_tools_of_one_spelling_are_not_mixed_up(self) -> None:
        tools = (spec("read_file", "path"), spec("readFile", "path"))
        before = reply("", ("ReadFile", '{"path": "a"}'))
        assert repair(before, tools) is before

    def test_offered_tool_is_not_taken_for_an_alias(self) -> None:
        tools = (spec("bash", "script"), spec("run_command", "command"))
        before = reply("", ("bash", '{"script": "ls"}'))
        assert repair(before, tools) is before

    @pytest.mark.parametrize(
        ("said", "meant"),
        [
            ("create_issue", "mcp__git__create_issue"),
            ("git.create_issue", "mcp__git__create_issue"),
            ("mcp_git_create_issue", "mcp__git__create_issue"),
            # Two could be meant, ours comes first, and there is none.
            ("status", "status"),
            ("search", "search_files"),
            ("mcp__git__read_file", "read_file"),
            ("mcp__git__close_issue", "mcp__git__close_issue"),
        ],
    )
    def test_mcp_tool_without_its_server(self, said: str, meant: str) -> None:
        names = ("git__create_issue", "git__status", "svn__status", "web__search")
        tools = (*TOOLS, *(spec(f"mcp__{name}", "text") for name in names))
        (call,) = repair(reply("", (said, "{}")), tools).message.calls
        assert call.name == meant

    def test_declared_field_is_not_taken_for_an_alias(self) -> None:
        tools = (spec("move", "path file"),)
        before = reply("", ("move", '{"file": "a"}'))
        assert repair(before, tools) is before

    def test_a_tool_that_takes_any_field_gets_them_as_they_are(self) -> None:
        schema = {"properties": {"path": {}}, "additionalProperties": True}
        tools = (ToolSpec("touch", "", msgspec.Raw(msgspec.json.encode(schema))),)
        before = reply("", ("touch", '{"file": "a"}'))
        assert repair(before, tools) is before

    def test_empty_schema(self) -> None:
        for schema in (b"{}", b"true", b'{"properties": [], "required": 3}', b"not json"):
            tools = (ToolSpec("ping", "", msgspec.Raw(schema)),)
            before = reply("", ("ping", '{"x": 1}'))
            assert repair(before, tools) is before

    def test_only_the_last_call_can_be_cut_off(self) -> None:
        before = reply(
            "",
            ("read_file", '{"path": "a"'),
            ("read_file", '{"path": "b"'),
            finish=Finish.LENGTH,
        )
        after = repair(before, TOOLS)
        assert called(after) == [{"read_file": {"path": "a"}}, {"read_file": '{"path": "b"'}]

    @pytest.mark.parametrize(
        "arguments",
        ['{"path": ' * 5000, '["a" ' * 20_000, '{"path": "' + 'x" y ' * 20_000, "[" * 100_000],
        ids=["nested", "a list without commas", "quotes", "brackets"],
    )
    def test_expensive_arguments_are_left(self, arguments: str) -> None:
        before = reply("", ("write_file", arguments))
        assert repair(before, TOOLS).message.calls == before.message.calls

    def test_many_markers_are_fast(self) -> None:
        for mark in ("<tool_call>", "<function=read_file>", "[TOOL_CALLS]", "```\n", "<think>"):
            assert repair(reply(mark * 5_000), TOOLS).usage == Usage()


class TestRepaired:
    async def test_replies_are_repaired(self) -> None:
        scripted = ScriptedModel([raw_call("cat", "{'file': 'a.py'}"), say("done")])
        model: Model = RepairedModel(scripted)
        request = Request(messages=(UserMessage("Go."),), tools=TOOLS)
        first = await model.reply(request)
        assert called(first) == [{"read_file": {"path": "a.py"}}]
        answer = ToolMessage(first.message.calls[0].id, "x")
        then = Request(messages=(*request.messages, first.message, answer), tools=TOOLS)
        assert (await model.reply(then)).message.content == "done"
        await model.aclose()

    async def test_ids_continue_those_of_the_conversation(self) -> None:
        text = '<tool_call>{"name": "list_dir", "arguments": {}}</tool_call>'
        model = RepairedModel(ScriptedModel([say(text), say(text)]))
        request = Request(messages=(UserMessage("Go."),), tools=TOOLS)
        first = (await model.reply(request)).message
        second = (
            await model.reply(Request(messages=(UserMessage("Go."), first), tools=TOOLS))
        ).message
        assert [first.calls[0].id, second.calls[0].id] == ["call_0", "call_1"]

    async def test_text_is_streamed_as_it_comes(self) -> None:
        heard: list[str] = []
        model = RepairedModel(ScriptedModel([say("<think>\nHm.\n</think>\nFour.")]))
        told = await model.reply(Request(messages=(UserMessage("2 + 2?"),)), heard.append)
        assert told.message.content == "Four."
        assert "".join(heard) == "<think>\nHm.\n</think>\nFour."

    async def test_name_and_close_are_those_of_the_model(self) -> None:
        model = RepairedModel(ScriptedModel([call("list_dir")], name="small"))
        assert model.name == "small"
        with pytest.raises(AssertionError, match="not used"):
            await model.aclose()


PIECES = st.sampled_from(
    [
        *"{}[]()<>\"'`:,=\\/#|\n ",
        *("path", "content", "read_file", "write_file", "list_dir", "name", "arguments", "a.py"),
        *('"path"', '"a.py"', '"name": "read_file"', '"arguments": {', "True", "None", "12", "//"),
        *("<tool_call>", "</tool_call>", "<function=read_file>", "<parameter=path>", "</function>"),
        *("<invoke name='list_dir'>", "</invoke>", "<arg_key>", "</arg_key>", "<arg_value>"),
        *("[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "```json\n", "\n```\n", "```tool_code\n"),
        *("<think>", "</think>", "\n</think>\n", "Action: read_file\nAction Input: ", "call:"),
        *("<|channel|>commentary to=functions.read_file<|message|>", "<|call|>", "to=functions."),
        *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "\nObservation: ", "“"),
        '{"name": "read_file", "arguments": {"path": "a"}}',
        "\ud800",
    ]
)
TEXTS = st.one_of(
    st.text(), st.lists(PIECES, max_size=14).map("".join), st.lists(PIECES).map(" ".join)
)
NAMES = st.one_of(st.sampled_from([*BY_NAME, "cat", "Read", "functions.ls:0", "x"]), TEXTS)
REPLIES = st.builds(
    lambda text, calls, finish: reply(text, *calls, finish=finish),
    TEXTS,
    st.lists(st.tuples(NAMES, TEXTS), max_size=2),
    st.sampled_from([None, Finish.LENGTH]),
)


@given(REPLIES)
def test_repair_never_fails_and_is_idempotent(before: Reply) -> None:
    after = repair(before, TOOLS)
    assert repair(after, TOOLS) is after
    assert (after is before) == (after == before)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def well_formed(draw: st.DrawFn) -> tuple[str, str]:
    tool = draw(st.sampled_from(TOOLS))
    fields = msgspec.json.decode(tool.parameters)["properties"]
    arguments = {field: draw(VALUES) for field in draw(st.sets(st.sampled_from(sorted(fields))))}
    return tool.name, msgspec.json.encode(arguments).decode()


@given(st.lists(well_formed(), min_size=1, max_size=3), st.sampled_from(["", "Let me look."]))
def test_well_formed_reply_is_returned_unchanged(calls: list[tuple[str, str]], text: str) -> None:
    before = reply(text, *calls)
    assert repair(before, TOOLS) is before


@pytest.mark.parametrize(
    "notation",
    ["{}", "{},", "```json\n{}\n```", "Here it is: {} I hope it helps.", "repr", "string"],
)
@given(st.text(), st.one_of(st.text(), st.lists(PIECES).map("".join)), st.data())
def test_file_content_is_exact_or_the_call_is_left(
    notation: str, path: str, content: str, data: st.DataObject
) -> None:
    meant = {"path": path, "content": content.replace("\ud800", "")}
    plain = msgspec.json.encode(meant).decode()
    match notation:
        case "repr":
            sent = repr(meant)
        case "string":
            sent = msgspec.json.encode(plain).decode()
        case _:
            sent = notation.replace("{}", plain)
    for text in (sent, sent[: data.draw(st.integers(0, len(sent)))]):
        after = repair(reply("", ("write_file", text)), TOOLS)
        arguments = after.message.calls[0].arguments
        assert arguments == text or decoded(arguments) == meant
