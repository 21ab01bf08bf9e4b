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


def conversation_of(events: list[Event]) -> Conversation:
    forest = Forest()
    conversation = Conversation(forest)
    for event in events:
        forest.apply(event)
        conversation.apply(event)
    return conversation


def text_of(
    conversation: Conversation, width: int = 80, *, now: float = 0.0, full: bool = False
) -> str:
    frame = Frame(now)
    return "\n\n".join(
        plain_text(entry.lines(width, frame, full=full)) for entry in conversation.entries
    )


async def test_conversation(record: Record) -> None:
    reading = calls(
        call("list_dir", path="."), call("read_file", path="gone"), text="I **look**."
    ).using(100, 10)
    conversation = conversation_of(
        await record({"": [reading, say("It is empty.").using(200, 24)]})
    )
    assert text_of(conversation) == (
        "❯ Survey it all\n"
        "\n"
        "I look.\n"
        "\n"
        "  · list_dir .\n"
        "  ✗ read_file gone\n"
        "    No file 'gone'.\n"
        "\n"
        "It is empty.\n"
        "\n"
        "  0.0s (2 turns, 2 tool calls, 224 tokens)"
    )
    assert "    [The directory is empty.]" in text_of(conversation, full=True)


async def test_latest_and_failed_calls_are_shown(record: Record) -> None:
    many = [call("read_file", path="gone"), *(call("list_dir", path=f"./{n}") for n in "abcd")]
    script: dict[str, list[Step]] = {"": [calls(call("list_dir"), *many), say("ok")]}
    conversation = conversation_of(await record(script))
    (entry,) = [entry for entry in conversation.entries if isinstance(entry, ToolCallsEntry)]
    lines = plain_text(entry.lines(80, Frame(0.0), full=False)).split("\n")
    assert lines[0] == "  · 1 earlier call"
    assert lines[1] == "  ✗ read_file gone"
    assert len([line for line in lines if "list_dir ./" in line]) == 4


async def test_running_children_become_result_blocks(record: Record) -> None:
    gate = asyncio.Event()
    look = [
        call("list_dir", path="."),
        hold(gate, say("All **fine**.\n\n- one\n- two\n- three\n- four")),
    ]

    def open_gate(event: Event) -> None:
        if event.type == "turn.started" and event.agent_id == "a1" and event.summary[5] == "2":
            gate.set()

    spawn = calls(*(call("spawn_agent", role="researcher", task=t) for t in ("Look", "Break")))
    events = await record(
        {"Look": look, "Break": [BROKEN], "": [spawn, say("done")]}, on_event=open_gate
    )
    second_turn = next(e.seq for e in events if e.agent_id == "a1" and e.summary == "turn 2/50")
    conversation = conversation_of(events[:second_turn])
    (children,) = [entry for entry in conversation.entries if isinstance(entry, ChildrenEntry)]
    assert children.animated
    started = children.tree.run.agents["a1"].started_at or 0.0
    lines = plain_text(children.lines(80, Frame(started + 12.4), full=False)).split("\n")
    assert lines[:2] == ['⠏ researcher.1 "Look" (turn 2/50, 12.4s)', "    list_dir ."]

    conversation = conversation_of(events)
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
        "           • one\n"
        "          … 3 more lines\n"
        '[researcher] Ended (error): "Break"\n'
        "Duration: 0.0s (0 turns, 0 tool calls, 0 tokens)\n"
        "  Reason: The server said no."
    )
    whole = plain_text(children.lines(80, Frame(0.0), full=True))
    assert "• three" in whole
    assert "    list_dir ." in whole


async def test_many_children_are_counted(record: Record) -> None:
    tasks = [f"{'Break' if n % 5 == 4 else 'Look'} {n}" for n in range(30)]
    spawned = calls(*(call("spawn_agent", role="researcher", task=task) for task in tasks))
    events = await record({"Look": [say("ok")], "Break": [BROKEN], "": [spawned, say("done")]})
    lines = text_of(conversation_of(events), 100).split("\n")
    assert "30 agents  ✓ 24 done  ✗ 6 failed" in lines
    who = "(researcher.5, researcher.10, researcher.15, …)"
    assert f"  ✗ 6× The server said no.  {who}" in lines

    started = [n for n, e in enumerate(events) if e.type == "turn.started" and e.agent_id == "a20"]
    middle = text_of(conversation_of(events[: started[0] + 1]), now=events[0].time)
    assert " of 30 agents done  ● " in middle
    assert " waiting" in middle
    assert "(turn 1/50, 0.0s)" in middle


async def test_limited_number_of_failure_reasons(record: Record) -> None:
    names = "ABCDEFG"
    rules: dict[str, list[Step]] = {f"Break {n}": [fail(ProviderError(f"No {n}."))] for n in names}
    spawned = calls(*(call("spawn_agent", role="researcher", task=f"Break {n}") for n in names))
    lines = text_of(conversation_of(await record({**rules, "": [spawned, say("done")]}))).split(
        "\n"
    )
    assert "  ✗ No A.  (researcher.1)" in lines
    assert "  ✗ 2 more failed" in lines


async def test_the_outcome_replaces_the_problem_with_the_model(record: Record) -> None:
    down = fail(ProviderError("Down.", retryable=False))
    conversation = conversation_of(await record({"": [down]}))
    notices = [e for e in conversation.entries if isinstance(e, NoticeEntry)]
    problem, _usage = notices
    assert (problem.text, problem.tone) == ("✗ error: Down.", Tone.FAILED)


def test_streamed_reply() -> None:
    conversation = Conversation(Forest())
    conversation.stream_reply("First **par")
    (reply,) = conversation.entries
    assert isinstance(reply, ReplyEntry)
    before = reply.version
    conversation.stream_reply("agraph**.\n\nSecond")
    assert reply.version > before
    assert text_of(conversation) == "First paragraph.\n\nSecond"


async def test_answer_to_ask_user_is_shown(record: Record) -> None:
    conversation = conversation_of(
        await record({"": [call("ask_user", question="Red?"), say("ok")]}, person=Person(ask=_blue))
    )
    assert [entry.text for entry in conversation.entries if isinstance(entry, UserEntry)] == [
        "Survey it all",
        "blue",
    ]


async def _blue(path: str, question: str) -> str:
    return "blue"


async def test_unsupported_claim_of_the_lead_is_marked(record: Record) -> None:
    conversation = conversation_of(await record({"": [say("All tests pass.")]}))
    (notice,) = [entry for entry in conversation.entries if isinstance(entry, NoticeEntry)][:1]
    assert plain_text(notice.lines(80, Frame(0.0), full=False)) == "  Unverified: All tests pass."
    assert notice.tone is Tone.FAILED
