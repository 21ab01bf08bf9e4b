"""A run whose model does not answer any more is left, and goes on when one does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import retinue
from retinue.domain.events import Event, ModelReplied
from retinue.errors import ProviderError
from retinue.models.scripted.model import ScriptedModel, Step, call, fail, say
from retinue.project import open_journal
from retinue.runtime.history.audit import audit
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

GONE = ProviderError("The server is gone.")


async def test_run_resumes_when_its_model_is_back(opened: Opened, project: Path) -> None:
    seen: list[Event] = []
    steps: list[Step] = [call("write_file", path="a.txt", content="a\n"), fail(GONE)]
    async with opened(model=ScriptedModel({"": steps}), mode="auto", on_event=seen.append) as rt:
        left = await rt.run("Write.")
    assert (left.status, left.error) == ("error", "The server is gone.")
    assert left.total.turns == 1
    view = retinue.fold(seen)
    assert (view.status, view.suspend_reason) == (None, "The server is gone.")
    steps = [call("write_file", path="never.txt", content=""), say("Written.")]
    async with opened(model=ScriptedModel({"": steps}, strict=False), mode="auto") as rt:
        done = await rt.resume(left.id)
    assert (done.status, done.response, done.total.turns) == ("completed", "Written.", 2)
    assert (project / "a.txt").read_text() == "a\n"
    assert not (project / "never.txt").exists()
    async with open_journal(project) as store:
        await audit(store, left.id)


async def test_children_of_a_root_without_model_stay_open(opened: Opened) -> None:
    """Who works in the background goes on as well, and is not asked anew what it has answered."""
    seen: list[Event] = []
    first = call("spawn_agent", task="reader: look", role="researcher", background=True)
    rules: dict[str, list[Step]] = {
        "reader:": [call("list_dir"), say("Looked.")],
        "": [first, fail(GONE)],
    }
    async with opened(model=ScriptedModel(rules, strict=False), on_event=seen.append) as rt:
        left = await rt.run("Lead.")
    assert left.status == "error"
    assert retinue.fold(seen).agents["a1"].state != "closed"
    rules[""] = [first, call("spawn_await", job_ids="*"), say("Done.")]
    async with opened(model=ScriptedModel(rules, strict=False), on_event=seen.append) as rt:
        done = await rt.resume(left.id)
    assert done.response == "Done."
    view = retinue.fold(seen)
    assert {agent.status for agent in view.agents.values()} == {"completed"}
    bought = Counter(
        f"{e.agent_id} {e.fact.turn}" for e in seen if isinstance(e.fact, ModelReplied)
    )
    assert set(bought.values()) == {1}


async def test_run_whose_model_never_replied_is_over(opened: Opened) -> None:
    seen: list[Event] = []
    async with opened(model=ScriptedModel([fail(GONE)]), on_event=seen.append) as rt:
        done = await rt.run("Lead.")
    assert (done.status, retinue.fold(seen).status) == ("error", "error")


async def test_child_without_model_fails_to_its_parent(opened: Opened) -> None:
    rules: dict[str, list[Step]] = {
        "reader:": [call("list_dir"), fail(GONE)],
        "": [call("spawn_agent", task="reader: look", role="researcher"), say("Without it.")],
    }
    async with opened(model=ScriptedModel(rules)) as rt:
        done = await rt.run("Lead.")
    assert (done.status, done.response) == ("completed", "Without it.")
