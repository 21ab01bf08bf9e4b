from __future__ import annotations

import asyncio

import pytest

from retinue.domain.approval import ApprovalReason, ApprovalRequest, Rule
from retinue.interfaces.chat.questions import QuestionQueue


def request(path: str = "root", tool: str = "write_file", command: str = "") -> ApprovalRequest:
    return ApprovalRequest(
        path=path, tool=tool, arguments="{}", why=ApprovalReason.MODE, subject=command
    )


class Told:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


async def asked(
    questions: QuestionQueue, path: str = "root", tool: str = "write_file", command: str = ""
) -> asyncio.Task[bool | Rule]:
    task = asyncio.ensure_future(questions.approve(request(path, tool, command)))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize(
    ("words", "leave"), [("y", True), (" YES ", True), ("a", True), ("n", False), ("no", False)]
)
async def test_leave_is_given_or_not(words: str, leave: bool) -> None:
    told = Told()
    questions = QuestionQueue(told)
    task = await asked(questions)
    (question,) = questions.open
    assert question.accepts(words)
    question.answer(words)
    assert await task is leave
    assert questions.open == []
    assert told.times == 2


async def test_other_words_are_no_answer() -> None:
    questions = QuestionQueue(Told())
    task = await asked(questions)
    assert not questions.open[0].accepts("yes, but not now")
    assert not questions.open[0].accepts("")
    task.cancel()


async def test_always_holds_for_all_that_is_alike() -> None:
    rules: list[Rule] = []
    questions = QuestionQueue(Told(), rules.append)
    first, second = await asked(questions), await asked(questions, path="root/tester.1")
    make = await asked(questions, "root", "run_command", "make test -k")
    questions.open[0].answer("always")
    assert await first is True
    assert await second is True
    assert await questions.approve(request()) == Rule("write_file")
    assert [q.request and q.request.tool for q in questions.open] == ["run_command"]
    questions.open[0].answer("a")
    assert await make is True
    again = await questions.approve(request("root", "run_command", "make test"))
    assert str(again) == "run_command(make test *)"
    clean = await asked(questions, "root", "run_command", "make clean")
    assert [str(rule) for rule in rules] == ["write_file", "run_command(make test *)"]
    clean.cancel()


async def test_who_stops_asking_is_forgotten() -> None:
    questions = QuestionQueue(Told())
    task = await asked(questions)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert questions.open == []


async def test_a_question_takes_any_words() -> None:
    questions = QuestionQueue(Told())
    task = asyncio.ensure_future(questions.ask("root", "Which colour?"))
    await asyncio.sleep(0)
    (question,) = questions.open
    assert question.accepts("blue, mostly")
    question.answer("  ")
    question.answer("too late")
    assert await task == "(no answer)"
