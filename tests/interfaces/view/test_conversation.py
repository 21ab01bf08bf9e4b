"""Journals folded into a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from retinue.domain.events import Event
from retinue.errors import ProviderError
from retinue.interfaces.view.agent_tree import Forest
from retinue.interfaces.view.conversation import Conversation
from retinue.interfaces.view.conversation_entries import (
    ChildrenEntry,
    Frame,
    NoticeEntry,
    ReplyEntry,
    ToolCallsEntry,
    UserEntry,
)
from retinue.interfaces.view.styled_text import Tone, plain_text
from retinue.models.scripted.model import Step, call, calls, fail, hold, say
from retinue.ports.person import Person

Record = Callable[..., Awaitable[list[Event]]]
BROKEN = fail(ProviderError("The server said no."))


def told(events: list[Event]) -> Conversation:
    forest = Forest()
    conversation = Conversation(forest)
    for event in events:
        forest.apply(event)
        conversation.apply(event)
    return conversation


def drawn(
    conversation: Conversation, width: int = 80, *, now: float = 0.0, full: bool = False
) -> str:
    frame = Frame(now)
    return "\n\n".join(
        plain_text(entry.lines(width, frame, full=full)) for entry in conversation.entries
    )


async def test_a_conversation(record: Record) -> None:
    reading = calls(
        call("list_dir", path="."), call("read_file", path="gone"), text="I **look**."
    ).using(100, 10)
    conversation = told(await record({"": [reading, say("It is empty.").using(200, 24)]}))
    assert drawn(conversation) == (
        "❯ Survey it all\n"
        "\n"
        "I look.\n"
        "\n"
        "  · list_dir .\n"
        "  ✗ read_file gone\n"
        "    [ERROR] No file 'gone'. Use list_dir or find_files to see what is there.\n"
        "\n"
        "It is empty.\n"
        "\n"
        "  0.0s (2 turns, 2 tool calls, 334 tokens)"
    )
    assert "    [The directory is empty.]" in drawn(conversation, full=True)


async def test_of_many_calls_the_last_are_shown_and_those_that_failed(record: Record) -> None:
    many = [call("read_file", path="gone"), *(call("list_dir", path=f"./{n}") for n in "abcd")]
    script: dict[str, list[Step]] = {"": [calls(call("list_dir"), *many), say("ok")]}
    conversation = told(await record(script))
    (entry,) = [entry for entry in conversation.entries if isinstance(entry, ToolCallsEntry)]
    lines = plain_text(entry.lines(80, Frame(0.0), full=False)).split("\n")
    assert lines[0] == "  · 1 earlier call"
    assert lines[1] == "  ✗ read_file gone"
    assert len([line for line in lines if "list_dir ./" in line]) == 4


async def test_children_at_work_and_their_blocks(record: Record) -> None:
    gate = asyncio.Event()
    look = [call("list_dir", path="."), hold(gate, say("All **fine**.\n\n- one\n- two\n- three"))]

    def open_gate(event: Event) -> None:
        if event.type == "turn.started" and event.agent_id == "a1" and event.summary[5] == "2":
            gate.set()

    spawn = calls(*(call("spawn_agent", role="researcher", task=t) for t in ("Look", "Break")))
    events = await record(
        {"Look": look, "Break": [BROKEN], "": [spawn, say("done")]}, hears=open_gate
    )
    second_turn = next(e.seq for e in events if e.agent_id == "a1" and e.summary == "turn 2/50")
    conversation = told(events[:second_turn])
    (children,) = [entry for entry in conversation.entries if isinstance(entry, ChildrenEntry)]
    assert children.animated
    started = children.tree.run.agents["a1"].started_at or 0.0
    lines = plain_text(children.lines(80, Frame(started + 12.4), full=False)).split("\n")
    assert lines[:2] == ['⠏ researcher.1 "Look" (turn 2/50, 12.4s)', "    list_dir ."]

    conversation = told(events)
    (children,) = [entry for entry in conversation.entries if isinstance(entry, ChildrenEntry)]
    assert not children.animated
    assert plain_text(children.lines(80, Frame(0.0), full=False)).replace(
        "  Duration", "Duration"
    ) == (
        '[researcher] Completed: "Look"\n'
        "Duration: 0.0s (2 turns, 1 tool call, "
        f"{children.tree.run.agents['a1'].usage.tokens:,} tokens)\n"
        "  Result: All fine.\n"
        "\n"
        "          • one\n"
        "          … 2 more lines\n"
        '[researcher] Ended (error): "Break"\n'
        "Duration: 0.0s (0 turns, 0 tool calls, 0 tokens)\n"
        "  Reason: The server said no."
    )
    whole = plain_text(children.lines(80, Frame(0.0), full=True))
    assert "• three" in whole
    assert "    list_dir ." in whole


async def test_many_children_are_counted_and_failures_named(record: Record) -> None:
    tasks = [f"{'Break' if n % 5 == 4 else 'Look'} {n}" for n in range(30)]
    spawned = calls(*(call("spawn_agent", role="researcher", task=task) for task in tasks))
    events = await record({"Look": [say("ok")], "Break": [BROKEN], "": [spawned, say("done")]})
    lines = drawn(told(events), 100).split("\n")
    assert "30 agents  ✓ 24 done  ✗ 6 failed" in lines
    who = "(researcher.5, researcher.10, researcher.15, …)"
    assert f"  ✗ 6× The server said no.  {who}" in lines

    started = [n for n, e in enumerate(events) if e.type == "turn.started" and e.agent_id == "a20"]
    middle = drawn(told(events[: started[0] + 1]), now=events[0].time)
    assert "agents  ● " in middle
    assert " waiting" in middle
    assert "(turn 1/50, 0.0s)" in middle


async def test_different_reasons_are_told_apart_up_to_a_number(record: Record) -> None:
    names = "ABCDEFG"
    rules: dict[str, list[Step]] = {f"Break {n}": [fail(ProviderError(f"No {n}."))] for n in names}
    spawned = calls(*(call("spawn_agent", role="researcher", task=f"Break {n}") for n in names))
    lines = drawn(told(await record({**rules, "": [spawned, say("done")]}))).split("\n")
    assert "  ✗ No A.  (researcher.1)" in lines
    assert "  ✗ 2 more failed" in lines


async def test_trouble_with_the_model_is_one_line_that_changes(record: Record) -> None:
    down = fail(ProviderError("Down.", retryable=False))
    conversation = told(await record({"": [down]}))
    notices = [e for e in conversation.entries if isinstance(e, NoticeEntry)]
    assert [n.text for n in notices] == ["! model failed: Down", "✗ error: Down."]
    assert notices[1].tone is Tone.FAILED


def test_text_that_is_being_written() -> None:
    conversation = Conversation(Forest())
    conversation.stream_reply("First **par")
    (answer,) = conversation.entries
    assert isinstance(answer, ReplyEntry)
    before = answer.version
    conversation.stream_reply("agraph**.\n\nSecond")
    assert answer.version > before
    assert drawn(conversation) == "First paragraph.\n\nSecond"


def test_a_growing_text_looks_like_the_whole() -> None:
    text = "# A\n\none two\n\n```\ncode\n\nmore\n```\n\n| a | b |\n|--|--|\n| c | d |\n\n- x\n\nend"
    growing, frame = ReplyEntry(), Frame(0.0)
    for n in range(0, len(text), 3):
        growing.append(text[n : n + 3])
        shown = growing.lines(30, frame, full=False)
        complete = ReplyEntry(growing.text).lines(30, frame, full=False)
        assert plain_text(shown) == plain_text(complete)
    assert plain_text(growing.lines(12, frame, full=False)) == plain_text(
        ReplyEntry(text).lines(12, frame, full=False)
    )


async def test_what_is_said_to_agents_at_work(record: Record) -> None:
    conversation = told(
        await record({"": [call("ask_user", question="Red?"), say("ok")]}, person=Person(ask=_blue))
    )
    assert [entry.text for entry in conversation.entries if isinstance(entry, UserEntry)] == [
        "Survey it all",
        "blue",
    ]


async def _blue(path: str, question: str) -> str:
    return "blue"


def test_a_notice_keeps_its_lines_and_its_indent() -> None:
    conversation = Conversation(Forest())
    conversation.add_notice("Head\n  one two three four five")
    assert drawn(conversation, 16) == "Head\n  one two three\n  four five"
