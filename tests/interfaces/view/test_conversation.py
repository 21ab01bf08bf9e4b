"""Journals folded into a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from retinue.domain.events import Event
from retinue.errors import ProviderError
from retinue.interfaces.view.agent_table import Tone
from retinue.interfaces.view.agent_tree import Forest
from retinue.interfaces.view.conversation import Answer, Calls, Moment, Notice, Said, Staff, Talk
from retinue.interfaces.view.result_blocks import plain
from retinue.models.scripted.model import Step, call, calls, fail, hold, say

Record = Callable[..., Awaitable[list[Event]]]
BROKEN = fail(ProviderError("The server said no."))


def told(events: list[Event]) -> Talk:
    forest = Forest()
    talk = Talk(forest)
    for event in events:
        forest.apply(event)
        talk.apply(event)
    return talk


def drawn(talk: Talk, width: int = 80, *, now: float = 0.0, whole: bool = False) -> str:
    moment = Moment(now)
    return "\n\n".join(plain(entry.lines(width, moment, whole=whole)) for entry in talk.entries)


async def test_a_conversation(record: Record) -> None:
    reading = calls(
        call("list_dir", path="."), call("read_file", path="gone"), text="I **look**."
    ).using(100, 10)
    talk = told(await record({"": [reading, say("It is empty.").using(200, 24)]}))
    assert drawn(talk) == (
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
    assert "    [The directory is empty.]" in drawn(talk, whole=True)


async def test_of_many_calls_the_last_are_shown_and_those_that_failed(record: Record) -> None:
    many = [call("read_file", path="gone"), *(call("list_dir", path=f"./{n}") for n in "abcd")]
    script: dict[str, list[Step]] = {"": [calls(call("list_dir"), *many), say("ok")]}
    talk = told(await record(script))
    (entry,) = [entry for entry in talk.entries if isinstance(entry, Calls)]
    lines = plain(entry.lines(80, Moment(0.0), whole=False)).split("\n")
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
    talk = told(events[:second_turn])
    (children,) = [entry for entry in talk.entries if isinstance(entry, Staff)]
    assert children.moving
    started = children.tree.run.agents["a1"].started_at or 0.0
    lines = plain(children.lines(80, Moment(started + 12.4), whole=False)).split("\n")
    assert lines[:2] == ['⠏ researcher.1 "Look" (turn 2/50, 12.4s)', "    list_dir ."]

    talk = told(events)
    (children,) = [entry for entry in talk.entries if isinstance(entry, Staff)]
    assert not children.moving
    assert plain(children.lines(80, Moment(0.0), whole=False)).replace(
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
    whole = plain(children.lines(80, Moment(0.0), whole=True))
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
    talk = told(await record({"": [down]}))
    notices = [e for e in talk.entries if isinstance(e, Notice)]
    assert [n.text for n in notices] == ["! model failed: Down", "✗ error: Down."]
    assert notices[1].tone is Tone.FAILED


def test_text_that_is_being_written() -> None:
    talk = Talk(Forest())
    talk.heard("First **par")
    (answer,) = talk.entries
    assert isinstance(answer, Answer)
    before = answer.version
    talk.heard("agraph**.\n\nSecond")
    assert answer.version > before
    assert drawn(talk) == "First paragraph.\n\nSecond"


def test_a_growing_text_looks_like_the_whole() -> None:
    text = "# A\n\none two\n\n```\ncode\n\nmore\n```\n\n| a | b |\n|--|--|\n| c | d |\n\n- x\n\nend"
    growing, moment = Answer(), Moment(0.0)
    for n in range(0, len(text), 3):
        growing.add(text[n : n + 3])
        shown = growing.lines(30, moment, whole=False)
        assert plain(shown) == plain(Answer(growing.text).lines(30, moment, whole=False))
    assert plain(growing.lines(12, moment, whole=False)) == plain(
        Answer(text).lines(12, moment, whole=False)
    )


async def test_what_is_said_to_agents_at_work(record: Record) -> None:
    talk = told(await record({"": [call("ask_user", question="Red?"), say("ok")]}, ask=_blue))
    assert [entry.text for entry in talk.entries if isinstance(entry, Said)] == [
        "Survey it all",
        "blue",
    ]


async def _blue(path: str, question: str) -> str:
    return "blue"


def test_a_notice_keeps_its_lines_and_its_indent() -> None:
    talk = Talk(Forest())
    talk.notice("Head\n  one two three four five")
    assert drawn(talk, 16) == "Head\n  one two three\n  four five"
