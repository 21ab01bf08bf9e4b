"""Commands: the process of a run obeys them, whoever it is, and its journal names their origin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retinue import Runtime
from retinue.domain.approval import ApprovalRequest
from retinue.errors import RunSuspended
from retinue.models.scripted.model import ScriptedModel, call, hold, say

if TYPE_CHECKING:
    from tests.interfaces.web.conftest import Site

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


async def never(*_: Any) -> Any:
    """A person who has left the terminal."""
    await asyncio.Event().wait()


class Seen:
    """The events of a run, as they happen."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._more = asyncio.Event()

    def __call__(self, event: Any) -> None:
        self.events.append(event)
        self._more.set()

    async def of(self, kind: str, agent: str = "a0") -> Any:
        while True:
            for event in self.events:
                if (event.type, event.agent_id) == (kind, agent):
                    return event
            self._more.clear()
            await self._more.wait()

    def facts(self, kind: str) -> list[Any]:
        return [event.fact for event in self.events if event.type == kind]


@pytest.fixture
def seen() -> Seen:
    return Seen()


def writes() -> ScriptedModel:
    return ScriptedModel([call("write_file", path="a.txt", content="hi\n"), say("Done.")])


@pytest.mark.parametrize(
    ("answer", "text", "written"),
    [("yes", "", True), ("always", "", True), ("no", "Not this file.", False)],
)
async def test_approval_is_answered_from_the_page(
    site: Site, opened: Opened, seen: Seen, project: Path, answer: str, text: str, written: bool
) -> None:
    async with opened(
        model=writes(), mode="normal", approve=never, on_event=seen, clock=None
    ) as rt:
        running = asyncio.create_task(rt.run("Write."))
        asked = await seen.of("approval.requested")
        assert asked.fact.tool == "write_file"
        await site.until(asked.run_id, "approval.requested")
        (run,) = (await site.get("/api/runs"))["runs"]
        assert run["waits_for_person"]
        body = {"agent": "a0", "request": asked.seq, "answer": answer, "text": text}
        done = await site.post(f"/api/runs/{asked.run_id}/answer", body)
        assert done["done"] == "a0 has your answer."
        await running
    assert (project / "a.txt").exists() == written
    (decided,) = seen.facts("approval.decided")
    assert (decided.request, decided.reason) == (asked.seq, text)
    (received,) = seen.facts("command.received")
    assert (received.by, received.verb, received.answer) == ("web", "answer", answer)


async def test_yes_to_all_like_this_answers_later_requests(
    site: Site, opened: Opened, seen: Seen
) -> None:
    write = [call("write_file", path="a.txt", content=f"{text}\n") for text in "abc"]
    model = ScriptedModel([*write, say("Done.")])
    async with opened(model=model, mode="normal", approve=never, on_event=seen, clock=None) as rt:
        running = asyncio.create_task(rt.run("Write."))
        asked = await seen.of("approval.requested")
        body = {"agent": "a0", "request": asked.seq, "answer": "always"}
        await site.post(f"/api/runs/{asked.run_id}/answer", body)
        assert (await running).ok
    assert len(seen.facts("approval.requested")) == 1
    assert [fact.rule for fact in seen.facts("approval.decided")] == [asked.fact.rules[0]] * 3


async def test_the_first_answer_counts(site: Site, opened: Opened, seen: Seen) -> None:
    """The person at the terminal answers; the page is told that it is too late."""

    async def approve(request: ApprovalRequest) -> bool:
        return True

    async with opened(model=writes(), mode="normal", approve=approve, on_event=seen) as rt:
        result = await rt.run("Write.")
    assert result.ok
    asked = await seen.of("approval.requested")
    body = {"agent": "a0", "request": asked.seq, "answer": "no"}
    found = await site.post(f"/api/runs/{asked.run_id}/answer", body, 409)
    assert found["error"] == f"Run {asked.run_id} has already ended (completed)."


async def test_question_in_words_is_answered_from_the_page(
    site: Site, opened: Opened, seen: Seen
) -> None:
    model = ScriptedModel([call("ask_user", question="Which one?"), say("Done.")])
    async with opened(model=model, ask=never, on_event=seen, clock=None) as rt:
        running = asyncio.create_task(rt.run("Ask."))
        asked = await seen.of("tool.started")
        change = await site.until(asked.run_id, "tool.started")
        assert change["agents"]["a0"]["question"] == "Which one?"
        assert change["agents"]["a0"]["phase"] == "person"
        await site.post(f"/api/runs/{asked.run_id}/answer", {"agent": "a0", "text": "Both."})
        await running
    (finished,) = seen.facts("tool.finished")
    assert finished.content == "Both."


async def test_agent_is_told_and_cancelled(site: Site, opened: Opened, seen: Seen) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(
        {
            "Lead.": [call("spawn_agent", task="Wait.", role="researcher"), say("It ended.")],
            "Wait.": [hold(gate, call("list_dir", path=".")), hold(asyncio.Event(), say("never"))],
        }
    )
    async with opened(model=model, on_event=seen, clock=None) as rt:
        running = asyncio.create_task(rt.run("Lead."))
        run_id = (await seen.of("run.started")).run_id
        await seen.of("turn.started", "a1")
        await site.post(f"/api/runs/{run_id}/message", {"agent": "a1", "text": "Hurry."})
        gate.set()
        told = await seen.of("agent.told", "a1")
        assert (told.agent_id, told.fact.source, told.fact.content) == ("a1", "user", "Hurry.")
        await site.post(f"/api/runs/{run_id}/cancel", {"agent": "a1"})
        assert (await running).response == "It ended."
    assert [fact.verb for fact in seen.facts("command.received")] == ["message", "cancel"]
    (failed,) = seen.facts("agent.subagent_failed")
    assert failed.reason == "stopped by the user"


async def test_run_is_started_stopped_and_resumed(site: Site, project: Path) -> None:
    steps = '[{call: write_file, args: {path: a.txt, content: "hi"}}, {say: Done.}]'
    (project / "script.yaml").write_text(f'rules: [{{match: "", steps: {steps}}}]')
    options = {"task": "Write.", "model": "scripted:script.yaml", "mode": "normal"}
    run_id = (await site.post("/api/runs", options))["run"]
    await site.until(run_id, "approval.requested")
    assert (await site.post(f"/api/runs/{run_id}/resume", status=409))["error"] == (
        f"Another process works on run {run_id}."
    )
    await site.post(f"/api/runs/{run_id}/stop")
    assert (await site.until_idle(run_id))["status"] == "interrupted"
    await site.post(f"/api/runs/{run_id}/resume")
    asked = (await site.until(run_id, "approval.requested", 2))["seq"]
    body = {"agent": "a0", "request": asked, "answer": "yes"}
    await site.post(f"/api/runs/{run_id}/answer", body)
    assert (await site.until_idle(run_id))["status"] == "completed"
    assert (project / "a.txt").read_text() == "hi"
    events = (await site.get(f"/api/runs/{run_id}/agents/a0"))["events"]
    origins = {e["type"]: e["payload"].get("by") for e in events if "by" in e["payload"]}
    assert origins == {"run.started": "web", "run.resumed": "web", "command.received": "web"}

    done = await site.post(f"/api/runs/{run_id}/undo")
    assert done["done"] == "1 file undone."
    assert not (project / "a.txt").exists()
    await site.post(f"/api/runs/{run_id}/redo", {"agent": "a0"})
    assert (project / "a.txt").read_text() == "hi"
    events = (await site.get(f"/api/runs/{run_id}/agents/a0"))["events"]
    assert [e["payload"]["by"] for e in events[-2:]] == ["web", "web"]


async def test_run_is_forked(site: Site, project: Path) -> None:
    (project / "script.yaml").write_text('rules: [{match: "", steps: [{say: One.}, {say: Two.}]}]')
    options = {"task": "Count.", "model": "scripted:script.yaml"}
    run_id = (await site.post("/api/runs", options))["run"]
    await site.until_idle(run_id)
    fork = (await site.post(f"/api/runs/{run_id}/fork", {"tell": "And on?"}))["run"]
    assert (await site.until_idle(fork))["status"] == "completed"
    started, *events = (await site.get(f"/api/runs/{fork}/agents/a0"))["events"]
    origin = started["payload"]["origin"]
    assert (origin["run_id"], started["payload"]["by"]) == (run_id, "web")
    replies = [e["payload"]["content"] for e in events if e["type"] == "model.replied"]
    assert replies == ["Two."]
    refused = await site.post(f"/api/runs/{run_id}/fork", {"at": 1}, status=409)
    assert refused["error"].startswith(f"Run {run_id} cannot be forked at event 1: ")
    refused = await site.post(f"/api/runs/{run_id}/fork", {"agent": "a7"}, status=400)
    assert refused["error"].startswith(f"No agent 'a7' in run {run_id}; there are: a0 (root).")


async def test_run_of_a_program_is_stopped_resumed_and_cancelled(
    site: Site, opened: Opened, seen: Seen
) -> None:
    """The program gets RunSuspended after the current turn; a suspended run can be cancelled."""
    gate = asyncio.Event()
    model = ScriptedModel([hold(gate, call("list_dir")), say("Partly.")])
    async with opened(model=model, on_event=seen, clock=None) as rt:
        running = asyncio.create_task(rt.run("Wait."))
        run_id = (await seen.of("turn.started")).run_id
        await site.post(f"/api/runs/{run_id}/stop")
        gate.set()
        with pytest.raises(RunSuspended, match="stopped by web"):
            await running
    assert (await site.get(f"/api/runs/{run_id}"))["status"] == "interrupted"
    assert (await site.post(f"/api/runs/{run_id}/cancel", {"agent": "a7"}, 409))["error"] == (
        f"a7 of run {run_id} has already ended, or never existed."
    )
    done = await site.post(f"/api/runs/{run_id}/cancel")
    assert done["done"] == f"{run_id} is cancelled."
    assert (await site.get(f"/api/runs/{run_id}"))["status"] == "cancelled"


async def test_fan_out_of_a_program_is_stopped_and_resumed(
    site: Site, opened: Opened, seen: Seen
) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(
        {
            "one": [say("One.")],
            "two": [hold(gate, call("list_dir")), say("Partly."), say("Two.")],
        }
    )
    async with opened(model=model, on_event=seen, clock=None) as rt:
        running = asyncio.create_task(rt.fan_out([("researcher", "one"), ("researcher", "two")]))
        run_id = (await seen.of("turn.started", "a2")).run_id
        await seen.of("agent.subagent_completed", "a1")
        await site.post(f"/api/runs/{run_id}/stop")
        gate.set()
        with pytest.raises(RunSuspended, match="stopped by web"):
            await running
    async with opened(model=model, on_event=seen, clock=None) as rt:
        result = await rt.resume(run_id)
    assert [one.response for one in result.results] == ["One.", "Two."]


async def test_message_to_an_agent_that_has_answered_is_refused(
    site: Site, opened: Opened, seen: Seen
) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(
        {
            "Lead.": [
                call("spawn_agent", task="Look.", role="researcher"),
                hold(gate, say("Led.")),
            ],
            "Look.": [say("Looked.")],
        }
    )
    async with opened(model=model, on_event=seen, clock=None) as rt:
        running = asyncio.create_task(rt.run("Lead."))
        run_id = (await seen.of("agent.subagent_closed", "a1")).run_id
        await seen.of("tool.finished")
        found = await site.post(
            f"/api/runs/{run_id}/message", {"agent": "a1", "text": "Hurry."}, 409
        )
        gate.set()
        await running
    assert found["error"] == (
        "a1 has given its answer and reads no more messages; when it has ended, a new agent can"
        " continue its conversation."
    )
    assert not seen.facts("command.received")


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("", {"task": " "}, 400, "The task is empty."),
        ("", {"task": "x", "model": "nonsense:m"}, 400, ""),
        ("", {"job": "x"}, 400, "The command cannot be read: "),
        ("/RUN/message", {"text": ""}, 400, "The message is empty."),
        ("/RUN/message", {"text": "hi"}, 409, "Run RUN has already ended (error)."),
        ("/RUN/cancel", {}, 409, "Run RUN has already ended (error)."),
        ("/RUN/stop", {}, 409, "Run RUN has already ended (error)."),
        ("/RUN/resume", {}, 409, "Run RUN has already ended (error)."),
        ("/RUN/answer", {"agent": "a0", "request": 3, "answer": "perhaps"}, 400, "The answer must"),
        ("/RUN/redo", {}, 409, "There is nothing to redo in run RUN."),
        ("/none/undo", {}, 404, "No run 'none' in"),
    ],
)
async def test_commands_that_cannot_be_done(
    site: Site, run_id: str, path: str, body: Any, status: int, message: str
) -> None:
    found = await site.post(f"/api/runs{path.replace('RUN', run_id)}", body, status)
    assert found["error"].startswith(message.replace("RUN", run_id))


async def test_read_only_server_has_no_command_routes(
    serving: Callable[..., AbstractAsyncContextManager[Site]], run_id: str
) -> None:
    async with serving(read_only=True) as site:
        for path in ("", *(f"/{run_id}/{verb}" for verb in ("undo", "cancel", "answer", "resume"))):
            await site.post(f"/api/runs{path}", {}, 405 if not path else 404)
        methods = (await site.get("/api/openapi.json"))["paths"].values()
        assert not any("post" in path for path in methods)
        assert (await site.get("/api/runs"))["read_only"]
