from __future__ import annotations

import asyncio

import pytest

from retinue.domain.approval import ApprovalReason, ApprovalRequest, Refusal, Rule
from retinue.interfaces.chat.questions import QuestionQueue


def request(path: str = "root", tool: str = "write_file", command: str = "") -> ApprovalRequest:
    return ApprovalRequest(
        path=path, tool=tool, arguments="{}", why=ApprovalReason.MODE, subject=command
    )


class Counter:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


async def ask(
    questions: QuestionQueue, path: str = "root", tool: str = "write_file", command: str = ""
) -> asyncio.Task[bool | Rule | Refusal]:
    task = asyncio.ensure_future(questions.approve(request(path, tool, command)))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize(
    ("text", "approved"),
    [
        ("y", True),
        (" YES ", True),
        ("a", Rule("write_file")),
        ("n", False),
        ("no", False),
        ("no, use b", Refusal("use b")),
    ],
)
async def test_approval_answers(text: str, approved: bool | Rule | Refusal) -> None:
    changes = Counter()
    questions = QuestionQueue(changes)
    task = await ask(questions)
    (question,) = questions.open
    assert question.accepts(text)
    question.answer(text)
    assert await task == approved
    assert questions.open == []
    assert changes.times == 2


async def test_other_text_does_not_answer_an_approval() -> None:
    questions = QuestionQueue(Counter())
    task = await ask(questions)
    assert not questions.open[0].accepts("yes, but not now")
    assert not questions.open[0].accepts("")
    task.cancel()


async def test_always_covers_similar_requests() -> None:
    rules: list[Rule] = []
    questions = QuestionQueue(Counter(), rules.append)
    first, second = await ask(questions), await ask(questions, path="root/tester.1")
    make = await ask(questions, "root", "run_command", "make test -k")
    questions.open[0].answer("always")
    assert await first == await second == Rule("write_file")
    assert await questions.approve(request()) == Rule("write_file")
    assert [q.request and q.request.tool for q in questions.open] == ["run_command"]
    questions.open[0].answer("a")
    assert str(await make) == "run_command(make test *)"
    again = await questions.approve(request("root", "run_command", "make test"))
    assert str(again) == "run_command(make test *)"
    clean = await ask(questions, "root", "run_command", "make clean")
    assert [str(rule) for rule in rules] == ["write_file", "run_command(make test *)"]
    clean.cancel()


async def test_cancelled_question_is_removed() -> None:
    questions = QuestionQueue(Counter())
    task = await ask(questions)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert questions.open == []


async def test_question_accepts_any_text() -> None:
    questions = QuestionQueue(Counter())
    task = asyncio.ensure_future(questions.ask("root", "Which colour?"))
    await asyncio.sleep(0)
    (question,) = questions.open
    assert question.accepts("blue, mostly")
    question.answer("  ")
    question.answer("too late")
    assert await task == "(no answer)"
