"""What a child is told: little, nothing of its parent's, and its siblings the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.config.roles import builtin_roles
from retinue.domain.messages import (
    AssistantMessage,
    Request,
    SystemMessage,
    Thought,
    Thoughts,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    estimate_tokens,
)
from retinue.domain.role import GENERAL
from retinue.models.scripted.model import ScriptedModel, call, say
from retinue.runtime.agent.conversation import CallAnswer, Conversation, max_answer_bytes
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

ROLES = ("executor", "planner", "researcher", "reviewer", "tester")


def test_the_five_roles_are_there() -> None:
    assert {*builtin_roles()} == {*ROLES, GENERAL}


async def first_request(opened: Opened, role: str, task: str) -> Request:
    model = ScriptedModel([say("ok")])
    async with opened(model=model, mode="auto", shell=True, unsafe_no_sandbox=True) as rt:
        await rt.spawn(role, task)
    return model.requests[0]


@pytest.mark.parametrize("role", ROLES)
async def test_prompt_overhead_is_at_most_a_hundred_tokens(
    opened: Opened, project: Path, role: str
) -> None:
    task = "Find out how the door is painted."
    request = await first_request(opened, role, task)
    words = "\n".join(message.content for message in request.messages)
    assert words.count(task) == 1
    assert words.count(str(project)) == 1
    ours = words.replace(task, "").replace(str(project), "")
    assert estimate_tokens(ours) <= 100, ours


async def test_a_child_is_told_its_task_its_directory_and_its_budget(
    opened: Opened, project: Path
) -> None:
    request = await first_request(opened, "researcher", "Find out.\nIn detail.")
    system, user = request.messages
    assert isinstance(system, SystemMessage)
    assert system.content.startswith("You are a researcher. ")
    assert system.content.endswith("End with a short summary of what you found or did.")
    assert isinstance(user, UserMessage)
    assert user.content == (
        f"Find out.\nIn detail.\n\nDirectory: {project}\nBudget: 15 tool calls, 50 turns."
    )


async def test_siblings_share_the_bytes_of_system_message_and_tools(opened: Opened) -> None:
    model = ScriptedModel({"": [say("ok")]})
    async with opened(model=model, mode="auto") as rt:
        await rt.fan_out([("executor", f"Task {n}.") for n in range(4)])
        await rt.spawn("executor", "Another task.", max_tool_calls=3, max_tokens=9_999)
    prefixes = {msgspec.json.encode((r.messages[0], r.tools)) for r in model.requests}
    assert len(model.requests) == 5
    assert len(prefixes) == 1
    names = [tool.name for tool in model.requests[0].tools]
    assert names == sorted(names)


async def test_the_prefix_of_a_conversation_never_changes(opened: Opened) -> None:
    model = ScriptedModel([call("list_dir"), call("list_dir"), say("ok")])
    async with opened(model=model) as rt:
        await rt.run("Look.")
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.tools == before.tools


async def test_child_prompt_holds_nothing_of_other_conversations(opened: Opened) -> None:
    model = ScriptedModel({"": [call("list_dir"), say("A secret of the first.")]})
    async with opened(model=model) as rt:
        await rt.run("The first task.")
        await rt.spawn("researcher", "The second task.")
        await rt.spawn("researcher", "The third task.")
    first = [request for request in model.requests if len(request.messages) == 2]
    words = [request.messages[1].content for request in first]
    assert [text.splitlines()[0] for text in words] == [
        "The first task.",
        "The second task.",
        "The third task.",
    ]
    for request in first[1:]:
        text = "".join(message.content for message in request.messages)
        assert "secret" not in text
        assert "first" not in text


# Sizes


def test_thoughts_count_towards_the_prompt() -> None:
    """They are part of the next prompt, signatures included."""
    plain, thinking = Conversation([UserMessage("x")], ()), Conversation([UserMessage("x")], ())
    calls = (ToolCall("c", "read_file", "{}"),)
    plain.add(AssistantMessage("", calls))
    thinking.add(
        AssistantMessage("", calls, Thoughts("m", (Thought("ä" * 100), Thought("x" * 50))))
    )
    assert thinking.ceiling == plain.ceiling + 250
    assert thinking.estimate >= plain.estimate + 60


def test_server_count_replaces_the_estimate() -> None:
    talk = Conversation((SystemMessage("s" * 400), UserMessage("u" * 400)), ())
    assert talk.ceiling >= 800
    assert 200 <= talk.estimate < 250
    talk.add_reply(AssistantMessage("a" * 40), Usage(208, 0, 12))
    assert talk.estimate == 220
    talk.add(ToolMessage("1", "t" * 400))
    assert 320 <= talk.estimate < 340
    assert talk.ceiling >= 220 + 400


def counted(talk: Conversation, usage: Usage, *, model: str = "", tools: bool = True) -> int:
    """The tokens that a reply with that usage counts for `max_tokens`; adds the reply."""
    repeated = talk.repeated_tokens(usage, model=model, tools=tools)
    assert 0 <= repeated <= usage.tokens_in
    talk.add_reply(AssistantMessage("a" * 40), usage, model=model, tools=tools)
    return usage.billed_tokens - repeated


OPENING = (SystemMessage("s" * 400), UserMessage("u" * 400))


def test_each_token_counts_once() -> None:
    talk = Conversation(OPENING, ())
    assert counted(talk, Usage(210, 0, 10)) == 220
    talk.add(ToolMessage("1", "t" * 400))
    assert counted(talk, Usage(330, 0, 15)) == 110 + 15
    assert counted(talk, Usage(345, 0, 5)) == 5


def test_growth_is_estimated_if_the_server_counts_in_another_way() -> None:
    talk = Conversation(OPENING, ())
    counted(talk, Usage(210, 0, 10), model="one")
    talk.add(ToolMessage("1", "t" * 872))
    # Half of the bytes are new, whatever the other model calls a token.
    assert counted(talk, Usage(1_000, 0, 7), model="two") == pytest.approx(500 + 7, abs=15)
    talk.add(ToolMessage("2", "t" * 872))
    assert counted(talk, Usage(1_500, 0, 7), model="two") == 1_500 - 1_007 + 7


def test_masking_makes_no_token_count_twice() -> None:
    talk = Conversation(OPENING, ())
    for number in range(4):
        talk.add(ToolMessage(str(number), "t" * 4_000))
        counted(talk, Usage(1_000 * (number + 1), 0, 10))
    talk.mask(10)
    talk.add(UserMessage("u" * 84))
    new = counted(talk, Usage(2_500, 0, 10))
    assert 10 < new < 60


def test_earlier_messages_of_a_session_are_not_new() -> None:
    talk = Conversation(OPENING, (), earlier=(UserMessage("e" * 16_000),))
    assert counted(talk, Usage(4_200, 0, 10)) == pytest.approx(210 + 10, abs=20)


def test_thinking_that_is_not_sent_back_does_not_hide_what_is_new() -> None:
    talk = Conversation(OPENING, ())
    assert counted(talk, Usage(210, 0, 5_000)) == 5_210
    talk.add(ToolMessage("1", "t" * 400))
    # The reply itself is sent back, and counted already.
    assert counted(talk, Usage(210 + 13 + 104, 0, 10)) == pytest.approx(104 + 10, abs=5)


def test_server_that_counts_less_than_before_charges_nothing_negative() -> None:
    talk = Conversation(OPENING, ())
    counted(talk, Usage(210, 0, 10))
    talk.add(ToolMessage("1", "t" * 400))
    assert counted(talk, Usage(100, 0, 10)) == 10


def test_masking_shortens_the_oldest_answers_first_and_only_as_many_as_needed() -> None:
    talk = Conversation((SystemMessage("s"), UserMessage("u")), ())
    for number in range(5):
        talk.add(AssistantMessage("", (ToolCall(str(number), "look", "{}"),)))
        talk.add(ToolMessage(str(number), f"{number}" * 4_000))
    assert talk.mask(100_000) == 0
    assert talk.mask(4_200) == 1
    answers = [m.content[:9] for m in talk.messages if isinstance(m, ToolMessage)]
    assert answers == ["[masked: ", "1" * 9, "2" * 9, "3" * 9, "4" * 9]
    assert talk.mask(10) == 2, "the two newest stay"
    assert talk.mask(10) == 0, "there is nothing more to shorten"


def test_short_answers_are_not_worth_masking() -> None:
    talk = Conversation((SystemMessage("s" * 4_000), UserMessage("u")), ())
    for number in range(5):
        talk.add(ToolMessage(str(number), "short"))
    assert talk.mask(10) == 0


@given(st.lists(st.integers(0, 400), max_size=8), st.integers(0, 300))
def test_answers_of_a_turn_are_cut_to_one_length_and_no_more_than_needed(
    sizes: list[int], room: int
) -> None:
    answers = [CallAnswer(str(number), "x" * size) for number, size in enumerate(sizes)]
    longest = max_answer_bytes(answers, room)
    room = max(room, 10 * len(sizes))  # The least that is told of anything.
    if longest is None:
        assert sum(sizes) <= 4 * room
        return
    assert sum(min(size, longest) for size in sizes) <= 4 * room
    assert sum(min(size, longest + 1) for size in sizes) > 4 * room


def test_unread_answers_are_not_masked() -> None:
    talk = Conversation((SystemMessage("s"), UserMessage("u")), ())
    talk.add(AssistantMessage("", tuple(ToolCall(str(n), "look", "{}") for n in range(5))))
    talk.answer([CallAnswer(str(n), "x" * 4_000) for n in range(5)])
    assert talk.mask(10) == 0
    talk.add(AssistantMessage("I see."))
    assert talk.mask(10) == 3
