"""In normal mode a person approves the contract of a child that writes, and then its change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.domain.approval import ApprovalReason, ApprovalRequest, Refusal, Rule
from retinue.domain.events import Event, FilesChanged
from retinue.domain.messages import ToolMessage
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, say
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock

if TYPE_CHECKING:
    from tests.conftest import Repo

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Settings = Callable[[str], None]
Reply = bool | Rule | Refusal

ROOT = "at work in the user's project"
SPAWN = call("spawn_agent", role="executor", task="Write a.")
WRITE: list[Step] = [call("write_file", path="a", content="one\n"), say("Written.")]


@pytest.fixture
def project(repo: Repo) -> Path:
    return repo.init().commit().root


class Asked:
    """A person who gives these answers, then says yes. Keeps the requests."""

    def __init__(self, *answers: Reply) -> None:
        self.answers = list(answers)
        self.requests: list[ApprovalRequest] = []

    async def __call__(self, request: ApprovalRequest) -> Reply:
        self.requests.append(request)
        return self.answers.pop(0) if self.answers else True

    @property
    def reasons(self) -> list[ApprovalReason]:
        return [request.why for request in self.requests]


CONTRACT, MERGE = ApprovalReason.CONTRACT, ApprovalReason.MERGE


def led(*steps: Step, **children: list[Step]) -> ScriptedModel:
    return ScriptedModel({ROOT: [*steps, say("All done.")], **children})


def told(model: ScriptedModel) -> list[str]:
    last = [r for r in model.requests if ROOT in r.messages[0].content][-1]
    return [m.content for m in last.messages if isinstance(m, ToolMessage)]


async def test_contract_and_change_are_approved(opened: Opened, project: Path) -> None:
    person = Asked()
    async with opened(model=led(SPAWN, Write=WRITE), approve=person) as rt:
        result = await rt.run("Go.")
    assert result.ok
    assert (project / "a").read_text() == "one\n"
    contract, change = person.requests
    (child,) = contract.children
    assert (contract.path, contract.why, child.role, child.task) == (
        "root",
        CONTRACT,
        "executor",
        "Write a.",
    )
    assert child.tools == ("edit_file", "write_file")
    assert child.access == "writes anywhere in the workspace, no network"
    assert child.budget == "30 tool calls, 65,536 tokens, 300 s"
    assert child.files == "works in a copy; you see the change before it is merged"
    assert (change.path, change.why) == ("root/executor.1", MERGE)
    assert change.diff.endswith("@@ -0,0 +1 @@\n+one\n")


async def test_refused_contract_is_told_with_its_reason(opened: Opened, project: Path) -> None:
    model = led(SPAWN)
    async with opened(model=model, approve=Asked(Refusal("use b"))) as rt:
        result = await rt.run("Go.")
    assert result.children == 0
    assert told(model) == [
        "[ERROR] This child needs the user's approval, because it would write or run commands, and"
        " the user said no: use b. Go on without the child, or spawn one that only reads."
    ]
    assert not (project / "a").exists()


async def test_refused_change_rejects_the_child_and_keeps_its_work(
    opened: Opened, project: Path
) -> None:
    model = led(SPAWN, Write=WRITE)
    async with opened(model=model, approve=Asked(True, Refusal("one is wrong"))) as rt:
        result = await rt.run("Go.")
        (answer,) = told(model)
        assert answer.startswith("[ERROR] rejected: the user refused its change: one is wrong\n")
        assert not (project / "a").exists()
        await rt.redo(result.run_id, "a1")
    assert (project / "a").read_text() == "one\n"


async def test_yes_to_all_like_this_covers_the_change(opened: Opened, project: Path) -> None:
    async def always(request: ApprovalRequest) -> Rule:
        assert request.why is CONTRACT
        return request.rule

    async with opened(model=led(SPAWN, Write=WRITE), approve=always) as rt:
        assert (await rt.run("Go.")).ok
    assert (project / "a").exists()


async def test_fan_out_of_one_reply_is_one_question(opened: Opened, project: Path) -> None:
    many = 30
    person = Asked()
    spawns = [
        call("spawn_agent", role="executor", task=f"Write [{n}].", scope=[f"f{n}"])
        for n in range(many)
    ]
    writers: dict[str, list[Step]] = {
        f"Write [{n}].": [call("write_file", path=f"f{n}", content="x"), say("Written.")]
        for n in range(many)
    }
    async with opened(model=led(calls(*spawns), **writers), approve=person) as rt:
        result = await rt.run("Go.")
    assert (result.ok, result.children) == (True, many)
    assert person.reasons == [CONTRACT, *[MERGE] * many]
    assert len(person.requests[0].children) == many
    assert len(person.requests[0].rules) == many
    assert all((project / f"f{n}").exists() for n in range(many))


async def test_readers_of_a_fan_out_are_not_asked_about(opened: Opened) -> None:
    person = Asked(False)
    look = call("spawn_agent", role="researcher", task="Look around.")
    model = led(calls(look, SPAWN), Look=[say("Nothing.")])
    async with opened(model=model, approve=person) as rt:
        result = await rt.run("Go.")
    assert result.children == 1
    assert [child.role for child in person.requests[0].children] == ["executor"]


async def test_subtasks_are_one_question(opened: Opened, project: Path) -> None:
    person = Asked()
    parts = [{"task": "Write a.", "role": "executor"}, {"task": "Add b.", "role": "executor"}]
    adding: list[Step] = [call("write_file", path="b", content="x"), say("Added.")]
    model = led(call("delegate_task", plan="Both.", subtasks=parts), Write=WRITE, Add=adding)
    async with opened(model=model, approve=person) as rt:
        assert (await rt.run("Go.")).ok
    assert person.reasons == [CONTRACT, MERGE, MERGE]
    assert (project / "b").exists()


async def test_typed_task_is_an_approved_contract(opened: Opened, project: Path) -> None:
    person = Asked()
    async with opened(model=ScriptedModel(WRITE), approve=person) as rt:
        result = await rt.spawn("executor", "Write a.")
    assert result.ok
    assert person.reasons == [MERGE]
    assert (project / "a").exists()


async def test_nothing_to_merge_is_not_asked_about(opened: Opened) -> None:
    person = Asked()
    async with opened(model=ScriptedModel([say("Nothing to do.")]), approve=person) as rt:
        assert (await rt.spawn("executor", "Write a.")).ok
    assert person.requests == []


async def test_auto_mode_asks_about_neither(opened: Opened, project: Path) -> None:
    person = Asked()
    async with opened(model=led(SPAWN, Write=WRITE), mode="auto", approve=person) as rt:
        assert (await rt.run("Go.")).ok
    assert person.requests == []
    assert (project / "a").exists()


@pytest.mark.parametrize(
    "allow",
    [
        '"write_file", "edit_file"',
        '"spawn_agent"',
        '"spawn_agent(executor with edit_file, write_file; writes anywhere in the workspace,'
        ' no network)"',
    ],
)
async def test_rules_of_the_user_apply_to_children(
    opened: Opened, project: Path, settings: Settings, allow: str
) -> None:
    settings(f"allow = [{allow}]\n")
    person = Asked(False)
    async with opened(model=led(SPAWN, Write=WRITE), approve=person) as rt:
        assert (await rt.run("Go.")).ok
    assert person.requests == []
    assert (project / "a").exists()


async def test_rules_of_the_user_apply_where_nobody_can_be_asked(
    opened: Opened, project: Path, settings: Settings
) -> None:
    settings('allow = ["write_file(a)"]\n')
    other = call("write_file", path="b", content="x")
    model = led(SPAWN, Write=[other, *WRITE])
    async with opened(model=model) as rt:
        assert (await rt.run("Go.")).ok
    assert (project / "a").exists()
    assert not (project / "b").exists()


async def test_child_that_could_not_write_is_rejected(opened: Opened) -> None:
    model = led(SPAWN, Write=[say("I cannot write.")])
    async with opened(model=model) as rt:
        await rt.run("Go.")
        spawned = await rt.spawn("executor", "Write a.")
    (answer,) = told(model)
    assert answer.startswith("[ERROR] rejected: could not write: needs --mode auto\n")
    assert "I cannot write." in answer
    assert (spawned.status, spawned.error) == ("rejected", "could not write: needs --mode auto")


async def test_waiting_for_an_answer_counts_towards_no_timeout(
    opened: Opened, clock: FakeClock
) -> None:
    async def slowly(request: ApprovalRequest) -> bool:
        clock.advance(100_000)
        await asyncio.sleep(0)
        return True

    async with opened(model=led(SPAWN, Write=WRITE), approve=slowly) as rt:
        assert (await rt.run("Go.")).ok


async def test_resumed_run_does_not_ask_again_about_contracts(opened: Opened) -> None:
    """The process ends while a change is asked about, after a yes to two contracts."""
    asked, seen = asyncio.Event(), list[Event]()

    async def leave(request: ApprovalRequest) -> bool:
        if request.why is MERGE:
            asked.set()
            await asyncio.Event().wait()
        return True

    other = call("spawn_agent", role="executor", task="Add b.")
    adding: list[Step] = [call("write_file", path="b", content="x"), say("Added.")]
    model = ScriptedModel({ROOT: [calls(SPAWN, other)], "Write": WRITE})
    async with opened(model=model, approve=leave, on_event=seen.append, max_concurrent=1) as rt:
        run = asyncio.ensure_future(rt.run("Go."))
        await asked.wait()
        rt.suspend("gone")
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    person = Asked()
    model = led(calls(SPAWN, other), Add=adding)
    async with opened(model=model, approve=person, max_concurrent=1) as rt:
        result = await rt.resume(seen[0].run_id)
    assert (result.error, result.children) == (None, 2)
    assert person.reasons == [MERGE, MERGE]


async def test_change_that_nobody_can_be_asked_about_any_more_is_kept(
    opened: Opened, project: Path
) -> None:
    """The contract was approved in a process with a person; another one resumes without."""
    asked, seen = asyncio.Event(), list[Event]()

    async def leave(request: ApprovalRequest) -> bool:
        if request.why is MERGE:
            asked.set()
            await asyncio.Event().wait()
        return True

    async with opened(model=led(SPAWN, Write=WRITE), approve=leave, on_event=seen.append) as rt:
        run = asyncio.ensure_future(rt.run("Go."))
        await asked.wait()
        rt.suspend("gone")
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    run_id = seen[0].run_id
    model = led(SPAWN)
    async with opened(model=model) as rt:
        await rt.resume(run_id)
        (answer,) = told(model)
        assert answer.startswith(
            "[ERROR] rejected: its change needs your approval, but no person can be asked; to merge"
            f" it: retinue redo {run_id} a1\n"
        )
        assert not (project / "a").exists()
        await rt.redo(run_id, "a1")
    assert (project / "a").read_text() == "one\n"


async def test_child_without_a_copy_is_asked_about_even_if_the_user_typed_it(
    opened: Opened, repo: Repo
) -> None:
    person = Asked(False)
    async with opened(model=ScriptedModel([]), approve=person) as rt:
        result = await rt.spawn("executor", "Write a.", workspace="shared")
    assert result.status == "rejected"
    assert person.requests[0].children[0].files == (
        "works in your files directly: the task asks for it"
    )


class EditingMeanwhile(Asked):
    """A person who edits the project while looking at the first diff."""

    def __init__(self, project: Path) -> None:
        super().__init__()
        self._project = project

    async def __call__(self, request: ApprovalRequest) -> Reply:
        if request.why is MERGE and MERGE not in self.reasons:
            lines = (self._project / "list").read_text().splitlines()
            (self._project / "list").write_text("\n".join([*lines[:-1], "mine", ""]))
        return await super().__call__(request)


async def test_edit_of_the_person_during_the_question(opened: Opened, repo: Repo) -> None:
    """The person's own edit is kept, and nothing is merged that the person has not seen."""
    project = repo.init().commit({"list": "".join(f"{n}\n" for n in range(9))}).root
    person = EditingMeanwhile(project)
    edit: list[Step] = [
        call("edit_file", path="list", old_text="0\n", new_text="child\n"),
        say("Done."),
    ]
    async with opened(model=led(SPAWN, Write=edit), approve=person) as rt:
        result = await rt.run("Go.")
    assert result.ok
    assert (project / "list").read_text().splitlines() == ["child", *"1234567", "mine"]
    (shown,) = [request.diff for request in person.requests if request.why is MERGE]
    assert "+child" in shown
    assert "mine" not in shown


async def test_edit_of_another_agent_during_the_question(opened: Opened, repo: Repo) -> None:
    """The root edits the file between the question and its answer: the approved change is added."""
    project = repo.init().commit({"list": "0\n1\n2\n"}).root
    asked, written = asyncio.Event(), asyncio.Event()
    shown: list[str] = []

    async def approve(request: ApprovalRequest) -> bool:
        if request.why is MERGE:
            shown.append(request.diff)
            asked.set()
            await written.wait()
        elif request.tool == "write_file":
            await asked.wait()
        return True

    def listen(event: Event) -> None:
        if isinstance(event.fact, FilesChanged) and event.agent_id == "a0":
            written.set()

    background = call("spawn_agent", role="executor", task="Write a.", background=True)
    edit: list[Step] = [
        call("edit_file", path="list", old_text="0\n", new_text="child\n"),
        say("Done."),
    ]
    model = led(
        background,
        call("write_file", path="list", content="0\n1\n2\nroot\n"),
        call("spawn_await", job_ids="*"),
        Write=edit,
    )
    async with opened(model=model, approve=approve, on_event=listen) as rt:
        result = await rt.run("Go.")
    assert result.ok
    (diff,) = shown
    assert ("+child" in diff, "root" in diff) == (True, False)
    assert (project / "list").read_text() == "child\n1\n2\nroot\n"


async def test_change_that_another_agent_has_made_different_is_asked_about_again(
    opened: Opened, repo: Repo
) -> None:
    """The root edits the same line during the question; a third agent resolves the conflict."""
    project = repo.init().commit({"list": "0\n1\n2\n"}).root
    asked, written = asyncio.Event(), asyncio.Event()
    shown: list[str] = []

    async def approve(request: ApprovalRequest) -> bool:
        if request.why is MERGE:
            shown.append(request.diff)
            asked.set()
            await written.wait()
        elif request.tool == "write_file" and not asked.is_set():
            await asked.wait()
        return True

    def listen(event: Event) -> None:
        if isinstance(event.fact, FilesChanged) and event.agent_id == "a0":
            written.set()

    children: dict[str, list[Step]] = {
        "Two changes contradict each other in: list.": [
            call("write_file", path="list", content="both\n1\n2\n"),
            say("Both are in."),
        ],
        "Write": [
            call("edit_file", path="list", old_text="0\n", new_text="child\n"),
            say("Done."),
        ],
    }
    model = led(
        call("spawn_agent", role="executor", task="Write a.", background=True),
        call("write_file", path="list", content="root\n1\n2\n"),
        call("spawn_await", job_ids="*"),
        **children,
    )
    async with opened(model=model, approve=approve, on_event=listen, on_conflict="resolve") as rt:
        result = await rt.run("Go.")
    assert result.ok
    assert ["+child" in diff for diff in shown] == [True, False]
    assert ("-root" in shown[1], "+both" in shown[1]) == (True, True)
    assert (project / "list").read_text() == "both\n1\n2\n"
