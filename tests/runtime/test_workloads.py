"""Ordinary work by a competent model, with default limits, on windows of different sizes.

Each workload must complete, and its answer must arrive whole. The server counts four bytes as a
token, refuses a prompt that leaves no room in its window, and cuts replies at the requested length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import retinue
from retinue.domain.messages import Finish
from retinue.domain.result import Result
from retinue.models.scripted.model import ScriptedReply, call, calls, say
from retinue.runtime.agent.conversation import LAST_TURN, SUMMARIZE
from retinue.runtime.runtime import Runtime
from retinue.testing.server import Answering, ModelServer, Received, failing

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

WINDOWS = [
    8_192,
    pytest.param(32_768, marks=pytest.mark.slow),
    pytest.param(131_072, marks=pytest.mark.slow),
    200_000,
]
BYTES_PER_TOKEN = 4
LINE = "    value = compute(first, second)  # why\n"


class Workload:
    """A model that follows a script for each task, and a server with a window."""

    def __init__(self, window: int, scripts: dict[str, Sequence[ScriptedReply]]) -> None:
        self.window = window
        self._scripts: dict[str, Iterator[ScriptedReply]] = {
            task: iter(steps) for task, steps in scripts.items()
        }
        self._rest: dict[str, str] = {}
        self.refused = 0
        self.last_turns = 0

    @property
    def pages(self) -> dict[str, Any]:
        card = {"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": self.window}
        return {"/v1/models": {"object": "list", "data": [card]}}

    def __call__(self, request: Received) -> Answering:
        body = request.json
        prompt = len(request.body) // BYTES_PER_TOKEN
        if prompt + body["max_tokens"] > self.window:
            self.refused += 1
            text = f"This model's maximum context length is {self.window} tokens."
            return failing(400, text, code="context_length_exceeded")
        said = [m["content"] or "" for m in body["messages"] if m["role"] == "user"]
        task = next(task for task in self._scripts for text in said if task in text)
        answer = self._answer(task, said[-1])
        longest = body["max_tokens"] * BYTES_PER_TOKEN
        if len(answer.text) > longest:
            self._rest[task] = answer.text[longest:]
            answer = msgspec.structs.replace(
                answer, text=answer.text[:longest], finish=Finish.LENGTH
            )
        written = len(answer.text) + sum(len(c.arguments) for c in answer.calls)
        return answer.using(prompt, written // BYTES_PER_TOKEN + 1)

    def _answer(self, task: str, last: str) -> ScriptedReply:
        if last == SUMMARIZE:
            return say("Notes: what was read, and what is left.")
        if last.startswith(LAST_TURN[:30]):
            self.last_turns += 1
            return say("Out of budget.")
        if last.startswith("Your answer was cut off"):
            return say(self._rest.pop(task))
        if "are passed on" in last:
            return say(f"{task} In short.")
        return next(self._scripts[task])


@pytest.fixture
def run_workload(opened: Opened) -> Callable[..., Any]:
    async def run(
        window: int,
        scripts: dict[str, Sequence[ScriptedReply]],
        *,
        child: str = "",
        **options: Any,
    ) -> tuple[Result, Workload]:
        work = Workload(window, scripts)
        task = next(iter(scripts))
        async with ModelServer(work, pages=work.pages) as server:
            model = f"openai:m@{server.base_url}"
            async with opened(model=model, mode="auto", cache=False, **options) as rt:
                result: Result = await (rt.spawn(child, task) if child else rt.run(task))
        assert (result.status, result.error) == ("completed", None)
        assert work.last_turns == work.refused == 0
        return result, work

    return run


def write_files(project: Path, count: int, lines: int) -> None:
    for number in range(count):
        (project / f"f{number}.py").write_text(LINE * lines)


def reads(count: int) -> list[ScriptedReply]:
    return [calls(call("read_file", path=f"f{n}.py"), text=f"Reading {n}.") for n in range(count)]


@retinue.tool(effect="read")
async def run_tests() -> str:
    """Run the tests."""
    return "".join(f"tests/test_{n}.py::test_case PASSED [{n}]\n" for n in range(2_000))


@pytest.mark.parametrize("window", WINDOWS)
async def test_read_thirty_files(run_workload: Any, project: Path, window: int) -> None:
    write_files(project, 30, 500)
    result, _ = await run_workload(window, {"Read all.": [*reads(30), say("Thirty files.")]})
    assert result.response == "Thirty files."


@pytest.mark.parametrize("window", WINDOWS)
async def test_read_one_long_file(run_workload: Any, project: Path, window: int) -> None:
    write_files(project, 1, 5_000)
    steps = [
        call("read_file", path="f0.py", start=start, end=start + 249)
        for start in range(1, 5_000, 250)
    ]
    result, _ = await run_workload(window, {"Read it.": [*steps, say("One file.")]})
    assert result.response == "One file."


@pytest.mark.parametrize("window", WINDOWS)
async def test_run_the_tests_five_times(run_workload: Any, window: int) -> None:
    steps = [calls(call("run_tests"), text="Again.")] * 5
    result, _ = await run_workload(
        window, {"Make the tests pass.": [*steps, say("They pass now.")]}, tools=[run_tests]
    )
    assert result.response == "They pass now."


@pytest.mark.parametrize("window", WINDOWS)
async def test_edit_twelve_files(run_workload: Any, project: Path, window: int) -> None:
    write_files(project, 12, 100)
    steps = []
    for number, read in enumerate(reads(12)):
        write = call("write_file", path=f"f{number}.py", content=LINE.replace("why", "how") * 100)
        steps += [read, write]
    result, _ = await run_workload(window, {"Edit all.": [*steps, say("Twelve edits.")]})
    assert result.response == "Twelve edits."
    assert all("how" in (project / f"f{n}.py").read_text() for n in range(12))


@pytest.mark.parametrize("window", WINDOWS)
async def test_search_with_many_hits(run_workload: Any, project: Path, window: int) -> None:
    write_files(project, 8, 50)
    steps = [call("search_files", pattern="compute"), *reads(3)]
    result, _ = await run_workload(window, {"Find it.": [*steps, say("400 hits.")]})
    assert result.response == "400 hits."


@pytest.mark.parametrize("window", WINDOWS)
async def test_research_then_writers_then_review(
    run_workload: Any, project: Path, window: int
) -> None:
    write_files(project, 6, 300)
    writers = [f"Write part {n}." for n in range(3)]
    lead = [
        call("spawn_agent", role="researcher", task="Research it."),
        calls(*(call("spawn_agent", role="executor", task=task) for task in writers)),
        call("spawn_agent", role="reviewer", task="Review it."),
        say("Built and reviewed."),
    ]
    scripts = {
        "Lead this.": lead,
        "Research it.": [*reads(4), say("Found: " + "a fact about the code. " * 300)],
        **{
            task: [
                *reads(2),
                call("write_file", path=f"part{n}.py", content=LINE * 200),
                say(f"Part {n} is written."),
            ]
            for n, task in enumerate(writers)
        },
        "Review it.": [*reads(5), say("No problem was found.")],
    }
    result, _ = await run_workload(window, scripts)
    assert result.response == "Built and reviewed."
    assert [(project / f"part{n}.py").exists() for n in range(3)] == [True] * 3


@pytest.mark.parametrize("window", WINDOWS)
async def test_child_researcher_reads_six_files(
    run_workload: Any, project: Path, window: int
) -> None:
    write_files(project, 6, 520)
    answer = "Six files: " + "each of them computes a value. " * 60
    result, _ = await run_workload(
        window, {"Survey them.": [*reads(6), say(answer)]}, child="researcher"
    )
    assert result.response == answer


@pytest.mark.parametrize("window", WINDOWS)
async def test_child_executor_edits_eight_files(
    run_workload: Any, project: Path, window: int
) -> None:
    write_files(project, 8, 150)
    steps = []
    for number, read in enumerate(reads(8)):
        write = call("write_file", path=f"f{number}.py", content=LINE.replace("why", "how") * 150)
        steps += [read, write]
    result, _ = await run_workload(
        window, {"Rename it.": [*steps, say("Renamed.")]}, child="executor"
    )
    assert len(result.files_modified) == 8


@pytest.mark.parametrize("window", WINDOWS)
async def test_child_reviewer_reads_and_searches(
    run_workload: Any, project: Path, window: int
) -> None:
    write_files(project, 10, 400)
    steps = [*reads(10), *(call("search_files", pattern=word) for word in ("value", "first", "x"))]
    result, _ = await run_workload(
        window, {"Review all.": [*steps, say("Three findings.")]}, child="reviewer"
    )
    assert result.response == "Three findings."


@pytest.mark.parametrize("window", [32_768, *WINDOWS[2:]])
async def test_write_a_long_report(run_workload: Any, project: Path, window: int) -> None:
    write_files(project, 4, 200)
    report = "".join(f"Finding {n}: the value is computed twice here.\n" for n in range(1_000))
    result, _ = await run_workload(window, {"Report.": [*reads(4), say(report)]})
    assert result.response == report
    assert result.notes == ()


@pytest.mark.parametrize("window", WINDOWS)
async def test_fan_out_with_long_reports(run_workload: Any, project: Path, window: int) -> None:
    write_files(project, 6, 300)
    tasks = [f"Look at part {n}." for n in range(6)]
    reports = {task: f"{task} " + "It computes a value from two others. " * 250 for task in tasks}
    scripts: dict[str, Sequence[ScriptedReply]] = {
        "Lead all.": [
            calls(*(call("spawn_agent", role="researcher", task=task) for task in tasks)),
            say("All parts are known."),
        ],
        **{task: [*reads(3), say(report)] for task, report in reports.items()},
    }
    result, _ = await run_workload(window, scripts)
    assert result.response == "All parts are known."


@pytest.mark.parametrize("window", WINDOWS)
async def test_five_questions_in_one_session(opened: Opened, project: Path, window: int) -> None:
    write_files(project, 15, 300)
    questions = {
        f"Question {n}?": [*reads(15)[3 * n : 3 * n + 3], say(f"Answer {n}.")] for n in range(5)
    }
    # The newest question decides.
    work = Workload(window, dict(reversed(questions.items())))
    async with ModelServer(work, pages=work.pages) as server:
        model = f"openai:m@{server.base_url}"
        async with opened(model=model, mode="auto", cache=False) as rt:
            session = None
            for number, task in enumerate(questions):
                result = await rt.run(task, session=session)
                assert (result.status, result.response) == ("completed", f"Answer {number}.")
                session = session or result.run_id
    assert work.last_turns == work.refused == 0
