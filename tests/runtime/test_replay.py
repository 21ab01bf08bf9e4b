"""A run that is recorded and replayed: the same results, and the same journal but for the clock."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.config.environment import Environment
from retinue.domain.events import AgentCreated
from retinue.domain.result import Result
from retinue.errors import ConfigError, UsageError
from retinue.models.replay.model import ReplayModel
from retinue.models.scripted.model import ScriptedModel, ScriptedReply, call, calls, say
from retinue.project import open_journal
from retinue.runtime.runtime import Runtime
from retinue.testing.server import Answering, ModelServer, Received, failing, streamed

Open = Callable[..., AbstractAsyncContextManager[Runtime]]

_VARYING = {
    "tokens_repeated",
    "seal",
    "contract_sha256",
    "directory",
    "model",
    "output_sha256",
    "retry_in_s",
    "timing",
}


@pytest.fixture
def opened(
    tmp_path: Path, open_project: Callable[..., AbstractAsyncContextManager[Runtime]]
) -> Open:
    variables = {"HOME": str(tmp_path), "DEPLOY_TOKEN": "swordfish-swordfish"}
    return partial(open_project, environment=Environment(variables=variables))


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return _project(tmp_path / "there")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return _project(tmp_path / "in" / "quite" / "another" / "place")


def _project(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "notes.txt").write_text("The token is swordfish-swordfish.\n")
    return path


class Crew:
    """A model that leads two executors, each of which has two reviewers and asks for a report.

    They are given nothing to write with, or they would work one after the other. The first is
    answered last, so that the ids of the reviewers are not in the order in which they would be if
    nobody had to wait.
    """

    def __init__(self) -> None:
        self._second_is_ahead = asyncio.Event()
        self._refused = False

    def __call__(self, received: Received) -> Answering:
        _, task, *rest = (str(m.get("content") or "") for m in received.json["messages"])
        turn = sum(m["role"] == "assistant" for m in received.json["messages"])
        match task.split("\n")[0].split():
            case ["Build", *_]:
                if turn == 0:
                    tools = ["agent_result", "read_file", "spawn_agent"]
                    return calls(
                        _spawn("executor", "Part one", tools=tools),
                        _spawn("executor", "Part two", tools=tools),
                    )
                return say("All parts are built and checked.")
            case ["Part", number]:
                return self._executor(number, turn, rest)
            case ["Check", number, *_]:
                if number == "two":
                    self._second_is_ahead.set()
                if not self._refused:
                    self._refused = True
                    return failing(503, "Loading model")
                if turn == 0:
                    return call("read_file", path="notes.txt")
                return say(f"Part {number} is sound.")
            case _:
                raise AssertionError(task)

    def _executor(self, number: str, turn: int, rest: list[str]) -> Answering:
        if turn == 0:
            spawning = calls(
                _spawn("reviewer", f"Check {number} early"),
                _spawn("reviewer", f"Check {number} late"),
            )
            gate = self._second_is_ahead if number == "one" else None
            return msgspec.structs.replace(streamed(spawning), gate=gate)
        (first, *_) = re.findall(r"\ba\d+\b", rest[1])
        if turn == 1:
            return call("agent_result", id=first)
        return say(f"Part {number} was checked by {first}.").using(900, 9, tokens_cached=800)


def _spawn(role: str, task: str, **more: Any) -> ScriptedReply:
    return call("spawn_agent", role=role, task=task, **more)


def in_order_of_calls(events: list[Any]) -> list[Any]:
    ends = iter(
        sorted(
            (event for event in events if event["type"] == "tool.finished"),
            key=lambda event: str(event["call_id"]),
        )
    )
    return [next(ends) if event["type"] == "tool.finished" else event for event in events]


async def journal(project: Path) -> dict[str, list[Any]]:
    """What each agent of the latest run did, by its path, without what the clock decides."""
    async with open_journal(project) as store:
        (row, *_) = await store.runs()
        events = await store.events(row.id)
    paths = {e.agent_id: f.path for e in events if isinstance(f := e.fact, AgentCreated)}

    def plain(text: str) -> str:
        text = re.sub(r"\ba\d+\b", lambda found: paths[found[0]], text)
        text = text.replace(str(project), "⟨project⟩")
        text = text.replace("swordfish-swordfish", "⟨hidden DEPLOY_TOKEN⟩")
        text = re.sub(r"\b\d+\.\ds\b", "0.0s", text)
        text = re.sub(r"\b[\d,]+ tokens\b", "0 tokens", text)
        return re.sub(r"\breport-[0-9a-f]{8}\b", "report-0", text)

    def still(value: Any) -> Any:
        match value:
            case str():
                return plain(value)
            case dict():
                return {k: still(v) for k, v in value.items() if k not in _VARYING}
            case list() | tuple():
                return [still(item) for item in value]
            case _:
                return value

    told: dict[str, list[Any]] = {}
    for event in events:
        told.setdefault(paths[event.agent_id], []).append(still(msgspec.to_builtins(event.fact)))
    return told


def outcome(result: Result) -> tuple[Any, ...]:
    usage = msgspec.structs.replace(result.usage, duration_s=0.0, tokens_repeated=0)
    return result.status, result.response, usage, result.files_read, result.attempts


async def test_a_run_of_parallel_children_gives_the_same_journal(
    opened: Open, there: Path, elsewhere: Path, tmp_path: Path
) -> None:
    recording = tmp_path / "run.jsonl"
    async with ModelServer(Crew()) as server:
        model = f"openai:m@{server.base_url}"
        async with opened(there, model=model, mode="auto", record=recording) as rt:
            first = await rt.run("Build it")
        asked = len(server.requests)
        async with opened(elsewhere, model=f"replay:{recording}", mode="auto") as rt:
            again = await rt.run("Build it")
        assert len(server.requests) == asked
    assert first.ok
    assert outcome(again) == outcome(first)
    was, now = await journal(there), await journal(elsewhere)
    assert sorted(was) == [
        "root",
        "root/executor.1",
        "root/executor.1/reviewer.1",
        "root/executor.1/reviewer.2",
        "root/executor.2",
        "root/executor.2/reviewer.1",
        "root/executor.2/reviewer.2",
    ]
    for path in was:
        # Of calls side by side, which ends first is nobody's promise.
        assert in_order_of_calls(now[path]) == in_order_of_calls(was[path])
    # The test is about nothing unless the ids were dealt out in another order.
    assert await ids(there) != await ids(elsewhere)
    text = recording.read_text()
    assert "swordfish" not in text
    assert str(there) not in text


def versioned(project: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)


async def test_children_that_write_in_copies_replay_elsewhere(
    opened: Open, there: Path, elsewhere: Path, tmp_path: Path
) -> None:
    def answer(received: Received) -> Answering:
        task, *rest = (str(m.get("content") or "") for m in received.json["messages"][1:])
        if task.startswith("Lead"):
            return say("Led.") if rest else calls(*(_spawn("executor", f"Write {n}") for n in "ab"))
        name = task.split()[1]
        return say(f"Wrote {name}.") if rest else call("write_file", path=name, content=task)

    for project in (there, elsewhere):
        versioned(project)
    recording = tmp_path / "run.jsonl"
    async with ModelServer(answer) as server:
        model, terms = f"openai:m@{server.base_url}", {"mode": "auto", "shell": False}
        async with opened(there, model=model, record=recording, **terms) as rt:
            first = await rt.run("Lead")
    async with opened(elsewhere, model=f"replay:{recording}", **terms) as rt:
        again = await rt.run("Lead")
    assert first.ok
    assert outcome(again) == outcome(first)
    assert str(elsewhere) in (elsewhere / "b").read_text()


async def ids(project: Path) -> list[str]:
    async with open_journal(project) as store:
        (row, *_) = await store.runs()
        return [agent.path for agent in await store.agents(row.id)]


async def test_a_fan_out_of_equal_tasks_gives_each_child_its_own_answer(
    opened: Open, there: Path, tmp_path: Path
) -> None:
    recording = tmp_path / "run.jsonl"
    numbers = iter(range(1000))

    def answer(received: Received) -> Answering:
        if received.json["messages"][-1]["role"] == "user":
            return call("read_file", path="notes.txt")
        return say(f"It is the answer {next(numbers)}.")

    tasks = [("researcher", "Which token?")] * 40
    async with ModelServer(answer) as server:
        model = f"openai:m@{server.base_url}"
        async with opened(there, model=model, record=recording, max_concurrent=20) as rt:
            first = await rt.fan_out(tasks)
    async with opened(there, model=f"replay:{recording}", max_concurrent=7) as rt:
        again = await rt.fan_out(tasks)
    assert len({result.response for result in first}) == 40
    assert [outcome(result) for result in again] == [outcome(result) for result in first]


async def test_recording_replaces_every_model(opened: Open, there: Path, tmp_path: Path) -> None:
    recording = tmp_path / "run.jsonl"
    lead = ScriptedModel(
        [call("spawn_agent", task="Look", role="researcher", model="small"), say("Done.")],
        name="big",
    )
    small = ScriptedModel([say("I looked.")], name="small")
    async with opened(there, model=lead, models={"small": small}, record=recording) as rt:
        assert (await rt.run("Go")).ok
    async with opened(there, model=f"replay:{recording}") as rt:
        result = await rt.run("Go")
    assert (result.ok, result.response, result.children) == (True, "Done.", 1)


async def test_replay_uses_no_cached_results(opened: Open, there: Path, tmp_path: Path) -> None:
    recording = tmp_path / "run.jsonl"
    answers = [say("One."), say("Two."), say("Three.")]
    async with ModelServer(answers) as server:
        model = f"openai:m@{server.base_url}"
        async with opened(there, model=model) as rt:
            assert (await rt.spawn("researcher", "Count")).response == "One."
        async with opened(there, model=model, record=recording, cache=True) as rt:
            assert (await rt.spawn("researcher", "Count")).response == "Two."
        # Twice: the second must not be answered from what the first left in the journal.
        for _ in range(2):
            async with opened(there, model=f"replay:{recording}", cache=True) as rt:
                result = await rt.spawn("researcher", "Count")
            assert (result.response, result.cached) == ("Two.", False)
        async with opened(there, model=model) as rt:
            result = await rt.spawn("researcher", "Count")
            assert (result.response, result.cached) == ("One.", True)


async def test_replay_uses_the_recorded_window(
    opened: Open, there: Path, elsewhere: Path, tmp_path: Path
) -> None:
    """In a small window there is less room for what is read."""
    recording = tmp_path / "run.jsonl"
    (there / "long.txt").write_text("heron\n" * 1200)
    (elsewhere / "long.txt").write_text("heron\n" * 1200)
    card = {"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": 3000}
    reading = call("read_file", path="long.txt")
    steps = [_spawn("researcher", "Read"), reading, say("Herons."), say("Done.")]
    pages = {"/v1/models": {"object": "list", "data": [card]}}
    async with ModelServer(steps, pages=pages) as server:
        model = f"openai:m@{server.base_url}"
        async with opened(there, model=model, record=recording) as rt:
            first = await rt.run("Go")
        asked = [msgspec.json.decode(request.body) for request in server.requests if request.body]
    async with opened(elsewhere, model=f"replay:{recording}") as rt:
        again = await rt.run("Go")
    assert outcome(again) == outcome(first)
    was, now = await journal(there), await journal(elsewhere)
    assert now == was
    contents = [request["messages"][-1]["content"] for request in asked]
    assert any("there is no room for more" in content for content in contents)


async def test_changed_files_are_reported(opened: Open, there: Path, tmp_path: Path) -> None:
    recording = tmp_path / "run.jsonl"
    script = [call("read_file", path="notes.txt"), say("A secret.")]
    async with opened(there, model=ScriptedModel(script), record=recording) as rt:
        assert (await rt.spawn("researcher", "What is it?")).ok
    (there / "notes.txt").write_text("Nothing.\n")
    model = ReplayModel.from_file(recording, directory=there)
    async with opened(there, model=model) as rt:
        result = await rt.spawn("researcher", "What is it?")
    assert result.status == "error"
    assert result.error == (
        f"replay:{recording}: root/researcher.1 sent a request that is not recorded: message 4"
        r" (tool) is 'Nothing.\n', and 'The token is ⟨hidden DEPLOY_TOKEN⟩.\n' in line 4, of"
        " root/researcher.1. Replay it on the files that it was recorded with, or record it again."
    )
    assert model.leftovers() == ["line 4, of root/researcher.1"]


async def test_a_recording_must_not_lie_where_agents_look(opened: Open, there: Path) -> None:
    with pytest.raises(UsageError) as caught:
        async with opened(there, model=ScriptedModel([]), record="run.jsonl"):
            pass
    assert str(caught.value) == (
        f"Cannot record to '{there}/run.jsonl': agents would see the file change, and a replay"
        " would not match. Name a file outside the project, or .retinue/run.jsonl."
    )
    assert not (there / "run.jsonl").exists()


async def test_a_recording_in_the_state_directory(opened: Open, there: Path) -> None:
    async with opened(there, model=ScriptedModel([say("Hi.")]), record=".retinue/r.jsonl") as rt:
        await rt.spawn("researcher", "Greet")
    async with opened(there, model="replay:.retinue/r.jsonl") as rt:
        assert (await rt.spawn("researcher", "Greet")).response == "Hi."


async def test_a_file_that_is_not_there_is_told_before_anything_begins(
    opened: Open, there: Path
) -> None:
    with pytest.raises(ConfigError, match=r"nix\.jsonl' cannot be read: No such file or directory"):
        async with opened(there, model="replay:nix.jsonl"):
            pass
