"""Many children at once: in order, within bounds, and none the worse for another's failure."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import pytest

import retinue
from retinue.domain.events import Event
from retinue.domain.messages import AssistantMessage, Finish, Reply, Request, Usage
from retinue.errors import ConfigError, ContractError, ProviderError, UsageError
from retinue.models.scripted.model import ScriptedModel, fail, hold, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


class Gates:
    """A model whose every reply waits until the test lets that task go."""

    name = "gates"

    def __init__(self) -> None:
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.active = self.most = 0

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        task = request.messages[1].content.splitlines()[0]
        self.active += 1
        self.most = max(self.most, self.active)
        self.asked.put_nowait(task)
        await self.gates[task].wait()
        self.active -= 1
        return Reply(
            message=AssistantMessage(f"did {task}"), usage=Usage(10, 0, 5), finish=Finish.STOP
        )

    async def aclose(self) -> None:
        pass


async def test_results_come_in_the_order_of_the_tasks(opened: Opened) -> None:
    model, tasks = Gates(), [f"task {n}" for n in range(5)]
    closed: asyncio.Queue[str] = asyncio.Queue()

    def listen(event: Event) -> None:
        if event.type == "agent.subagent_closed":
            closed.put_nowait(event.agent_id)

    async with opened(model=model, on_event=listen) as rt:
        fan = asyncio.create_task(
            rt.fan_out([("researcher", task) for task in tasks], max_concurrent=5)
        )
        for _ in tasks:
            await model.asked.get()
        for task in reversed(tasks):
            model.gates[task].set()
            await closed.get()
        results = await fan
    assert [result.response for result in results] == [f"did {task}" for task in tasks]
    assert [result.task for result in results] == tasks


@pytest.mark.parametrize("most", [1, 3])
async def test_max_concurrent(opened: Opened, most: int) -> None:
    model, tasks = Gates(), [f"task {n}" for n in range(7)]
    async with opened(model=model) as rt:
        fan = asyncio.create_task(
            rt.fan_out([("researcher", task) for task in tasks], max_concurrent=most)
        )
        waiting = [await model.asked.get() for _ in range(most)]
        for _ in range(most, len(tasks)):
            model.gates[waiting.pop(0)].set()
            waiting.append(await model.asked.get())
            assert model.active == most
        for task in waiting:
            model.gates[task].set()
        assert len(await fan) == 7
    assert model.most == most


async def test_max_concurrent_is_three_by_default(opened: Opened) -> None:
    model = Gates()
    async with opened(model=model) as rt:
        fan = asyncio.create_task(rt.fan_out([("researcher", f"task {n}") for n in range(5)]))
        first = [await model.asked.get() for _ in range(3)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert model.asked.empty()
        for task in (*first, "task 3", "task 4"):
            model.gates[task].set()
        await fan


async def test_a_failed_child_does_not_affect_its_siblings(opened: Opened) -> None:
    broken, last = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(
        {
            "task bad": [fail(ProviderError("The server refused."))],
            "task good": [hold(last, say("fine"))],
        }
    )

    def listen(event: Event) -> None:
        if event.type == "agent.subagent_failed":
            broken.set()

    async with opened(model=model, on_event=listen) as rt:
        fan = asyncio.create_task(
            rt.fan_out([("researcher", "task bad"), ("researcher", "task good")])
        )
        await broken.wait()
        last.set()
        bad, good = await fan
    assert (bad.status, bad.error) == ("error", "The server refused.")
    assert (good.status, good.response) == ("completed", "fine")


@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        (
            ("resercher", "x"),
            ConfigError,
            "Unknown role 'resercher'; there are: executor, general, planner, researcher, reviewer,"
            " tester.",
        ),
        (("researcher", " \n"), ContractError, "The task is empty; say what the agent should do."),
        (
            retinue.Task(role="researcher", task="x", tools=("read_fil",)),
            ContractError,
            "Unknown tool 'read_fil'; there are: ",
        ),
        (
            retinue.Task(role="researcher", task="x", model="opnai:gpt"),
            ConfigError,
            "Unknown provider 'opnai' in model 'opnai:gpt'; write openai:…",
        ),
        (
            retinue.Task(role="researcher", task="x", max_turns=0),
            ContractError,
            "max_turns must be positive, not 0.",
        ),
    ],
)
async def test_a_wrong_task_is_refused_before_any_starts(
    opened: Opened, task: retinue.Task, error: type[UsageError], message: str
) -> None:
    seen: list[Event] = []
    async with opened(model=ScriptedModel([]), on_event=seen.append) as rt:
        with pytest.raises(error) as caught:
            await rt.fan_out([("researcher", "fine"), task])
    assert str(caught.value).startswith(message)
    assert seen == []


async def test_a_role_with_a_wrong_model_is_refused_before_any_starts(
    opened: Opened, project: Path
) -> None:
    (project / "retinue.toml").write_text('[roles.researcher]\nmodel = "opnai:gpt"\n')
    seen: list[Event] = []
    async with opened(model=ScriptedModel([]), on_event=seen.append) as rt:
        with pytest.raises(ConfigError, match="Unknown provider 'opnai'"):
            await rt.fan_out([("planner", "fine"), ("researcher", "not fine")])
    assert seen == []


async def test_max_concurrent_must_be_positive(opened: Opened) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(UsageError, match=r"max_concurrent must be at least 1, not 0\."):
            await rt.fan_out([("researcher", "x")], max_concurrent=0)


async def test_no_tasks_give_no_results(opened: Opened) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        assert await rt.fan_out([]) == []


async def test_ids_and_paths_of_children(opened: Opened) -> None:
    seen: list[Event] = []
    roles = ["researcher", "planner", "researcher"]
    async with opened(model=ScriptedModel({"": [say("ok")]}), on_event=seen.append) as rt:
        results = await rt.fan_out([(role, "x") for role in roles])
    view = retinue.fold(seen)
    assert [result.agent_id for result in results] == ["a1", "a2", "a3"]
    assert {a.id: a.path for a in view.agents.values()} == {
        "a0": "root",
        "a1": "root/researcher.1",
        "a2": "root/planner.1",
        "a3": "root/researcher.2",
    }
    assert [a.step_idx for a in view.agents.values()][1:] == [0, 1, 2]
    assert len({result.run_id for result in results}) == 1


async def test_two_hundred_children_stay_within_one_budget(opened: Opened) -> None:
    class Counting:
        name = "counting"

        def __init__(self) -> None:
            self.spent = 0

        async def reply(
            self, request: Request, on_text: Callable[[str], None] | None = None
        ) -> Reply:
            await asyncio.sleep(0)
            usage = Usage(300, 0, min(200, request.max_output_tokens or 200))
            self.spent += usage.tokens
            return Reply(message=AssistantMessage("x" * 800), usage=usage, finish=Finish.STOP)

        async def aclose(self) -> None:
            pass

    model = Counting()
    budget = retinue.Budget(max_tokens=40_000)
    async with opened(model=model, limits=budget) as rt:
        tasks = [("researcher", f"task {n}") for n in range(200)]
        results = await rt.fan_out(tasks, max_concurrent=20)
    assert model.spent <= 40_000
    assert sum(result.usage.tokens for result in results) == model.spent
    done = [result for result in results if result.ok]
    assert len(done) >= 60, "the budget is used, not only guarded"
    assert {result.status for result in results} <= {"completed", "budget_exceeded"}
    for result in results:
        assert result.ok or "tokens" in str(result.error)


async def test_join_takes_jobs_only(opened: Opened) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(UsageError, match=r"Jobs are what `start` returns, .*; not 'a1'"):
            await rt.join(["a1"])  # type: ignore[list-item]


class Stubborn:
    """A model that answers when it is cancelled."""

    name = "stubborn"

    def __init__(self) -> None:
        self.asked = 0
        self.busy = asyncio.Event()

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        self.asked += 1
        if self.asked == 3:
            self.busy.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return Reply(message=AssistantMessage("Yes."), usage=Usage(10, 0, 5), finish=Finish.STOP)

    async def aclose(self) -> None:
        pass


async def test_a_cancelled_fan_out_starts_no_more_children(
    opened: Opened,
) -> None:
    model = Stubborn()
    async with opened(model=model) as rt:
        tasks = [("researcher", f"Look {number}.") for number in range(9)]
        fan_out = asyncio.create_task(rt.fan_out(tasks, max_concurrent=3))
        await model.busy.wait()
        fan_out.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fan_out
    assert model.asked == 3
