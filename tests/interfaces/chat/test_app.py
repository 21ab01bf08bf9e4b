"""Questions on the screen, and which input answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from retinue.domain.approval import ApprovalReason, ApprovalRequest, Refusal, Rule
from retinue.interfaces.chat.slash_commands import submit
from retinue.models.scripted.model import ScriptedModel, call, say

Opening = Callable[..., AbstractAsyncContextManager[Any]]


def request(arguments: str, *, tool: str = "send_mail", command: str = "") -> ApprovalRequest:
    return ApprovalRequest(
        path="root", tool=tool, arguments=arguments, why=ApprovalReason.MODE, subject=command
    )


def ask(shown: Any, approval: ApprovalRequest) -> asyncio.Task[bool | Rule | Refusal]:
    return asyncio.ensure_future(shown.chat.questions.approve(approval))


async def test_approval_shows_the_full_call(screen: Opening) -> None:
    sent = '{"text": "Hello", "to": "' + "a@example.com, " * 12 + 'eve@example.net"}'
    async with screen(ScriptedModel([])) as shown:
        task = ask(shown, request(sent))
        await shown.shows("The agent asks to call send_mail:", "eve@example.net", "a always send")
        await shown.type("y\n")
        assert await task is True


@pytest.mark.parametrize("command", ["x" * 9_000 + "; rm -rf src", "true\n" * 90 + "rm -rf src"])
async def test_a_long_command_can_be_read_to_its_end(screen: Opening, command: str) -> None:
    async with screen(ScriptedModel([])) as shown:
        task = ask(shown, request("{}", tool="run_command", command=command))
        text = await shown.shows("asks to run a command:", "more lines: page down", "y yes")
        assert "rm -rf src" not in text
        assert "Answer the question above" in text
        assert "f1 help" in text
        while "(end)" not in shown.text:
            await shown.press("pagedown")
        await shown.shows("rm -rf src", "y yes")
        await shown.type("n\n")
        assert await task is False


async def test_one_key_answers_half_a_second_after_the_question(screen: Opening) -> None:
    async with screen(ScriptedModel([])) as shown:
        clock = shown.chat.clock
        tasks = [ask(shown, request("{}", tool="run_command", command="git log -3"))]
        await shown.shows("git log -3", "a always run_command(git log *)")
        await shown.press("y")
        assert shown.field.text == "y", "type-ahead approves nothing"
        await shown.press("backspace")
        clock.advance(0.5)
        await shown.press("y")
        assert await tasks[0] is True

        refused = ask(shown, request("{}", tool="run_command", command="make"))
        await shown.shows("$ make")
        clock.advance(0.5)
        await shown.press("n")
        assert shown.field.text == "no, "
        await shown.type("use pytest\n")
        assert await refused == Refusal("use pytest")

        always = ask(shown, request("{}", tool="run_command", command="git status"))
        await shown.shows("$ git status")
        clock.advance(0.5)
        await shown.press("e")
        assert shown.field.text == "always run_command(git status *)"
        shown.field.text = "always run_command(git *)"
        await shown.press("enter")
        assert await always == Rule("run_command", "git *")
        assert await ask(shown, request("{}", tool="run_command", command="git add a")), "covered"


@pytest.mark.parametrize(
    ("keys", "answer"),
    [
        ("no, use pytest\n", Refusal("use pytest")),
        ("no: on Friday\n", Refusal("on Friday")),
        ("no  \n", False),
        ("no\n", False),
        ("n\n", False),
        ("none of it\n", Refusal("one of it")),
        ("yes\n", True),
        ("always\n", Rule("run_command", "make *")),
    ],
)
async def test_an_answer_may_be_typed_as_a_word(
    screen: Opening, keys: str, answer: bool | Rule | Refusal
) -> None:
    async with screen(ScriptedModel([])) as shown:
        asked = ask(shown, request("{}", tool="run_command", command="make"))
        await shown.shows("$ make")
        shown.chat.clock.advance(0.5)
        named = {"\n": "enter", ",": "comma", ":": "colon", " ": "space"}
        for key in keys:
            await shown.press(named.get(key, key))
        assert await asked == answer
        assert shown.field.text == ""
        assert "❯" not in shown.text, "no message was sent"


async def test_questions_are_answered_one_by_one(screen: Opening) -> None:
    async with screen(ScriptedModel([])) as shown:
        tasks = [ask(shown, request(f"letter {n}")) for n in range(40)]
        await shown.shows("letter 0", "your answer, 39 more questions waiting")
        await shown.type("n\n")
        await shown.shows("letter 1", "your answer, 38 more questions waiting")
        assert await tasks[0] is False
        await shown.type("a\n")
        assert all(await asyncio.gather(*tasks[1:]))


async def test_only_the_visible_question_is_answered(screen: Opening, wait: Any) -> None:
    async with screen(ScriptedModel([say("ok")])) as shown:
        deciding = asyncio.ensure_future(shown.chat.questions.choose("The plan?", ("yes", "no")))
        task = ask(shown, request("letter"))
        await shown.shows("The plan?")
        await shown.type("always\n")
        await shown.shows("❯ always")
        assert not task.done(), "the visible question is about the plan"
        await shown.type("no\n")
        assert await deciding == "no"
        await shown.shows("The agent asks to call send_mail:", "letter")
        task.cancel()


async def test_text_typed_before_a_question_does_not_answer_it(screen: Opening, wait: Any) -> None:
    async with screen(ScriptedModel([])) as shown:
        first = ask(shown, request("letter 1"))
        second = ask(shown, request("letter 2"))
        await shown.shows("letter 1")
        await shown.type("y")
        first.cancel()
        await shown.shows("letter 2")
        await shown.press("enter")
        await shown.shows("The question came while you were typing")
        assert shown.field.text == "y"
        assert not second.done()
        await shown.press("enter")
        assert await second is True
        assert shown.field.text == ""


async def test_writing_an_empty_file_is_shown(screen: Opening) -> None:
    model = ScriptedModel([call("write_file", path="a.txt", content=""), say("ok")])
    async with screen(model) as shown:
        submit(shown.chat, "Go")
        await shown.shows("The agent asks to change a file:", "a.txt (new file, +0 −0)")
        await shown.type("y\n")
        await shown.shows(" ok")


async def test_the_chat_says_what_it_waits_for_while_it_opens(
    screen: Opening, tmp_path: Path
) -> None:
    with (tmp_path / ".config" / "retinue" / "config.toml").open("a") as file:
        file.write('[mcp.mute]\ncommand = "sleep"\nargs = ["60"]\n')
    async with screen(ScriptedModel([]), ready=False) as shown:
        await shown.shows("starting MCP servers to see what they offer: mute")
