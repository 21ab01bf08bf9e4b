"""Ask, act, answer: what one agent does with its model and its tools."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

import retinue
from retinue.domain.contract import decode_contract
from retinue.domain.events import Event
from retinue.domain.messages import Request, ToolMessage
from retinue.errors import ToolFailure
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, raw_call, say
from retinue.ports.tool import ToolContext
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


def told(request: Request) -> list[str]:
    """What the tools have answered so far, as the model reads it."""
    return [m.content for m in request.messages if isinstance(m, ToolMessage)]


def types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


async def test_ask_act_answer(opened: Opened, project: Path) -> None:
    (project / "notes.txt").write_text("The door is green.\n")
    model = ScriptedModel([call("read_file", path="notes.txt"), say("Green.")])
    seen: list[Event] = []
    async with opened(model=model, on_event=seen.append) as rt:
        result = await rt.run("Which colour is the door?")
    assert (result.status, result.response, result.error) == ("completed", "Green.", None)
    assert result.files_read == ("notes.txt",)
    assert (result.usage.turns, result.usage.tool_calls) == (2, 1)
    assert "The door is green." in told(model.requests[1])[0]
    assert types(seen) == [
        "run.started",
        "agent.subagent_created",
        "agent.subagent_started",
        "agent.subagent_attempt",
        "turn.started",
        "model.replied",
        "tool.started",
        "tool.finished",
        "turn.started",
        "model.replied",
        "agent.subagent_waiting_for_merge",
        "agent.subagent_completed",
        "agent.subagent_closed",
        "run.finished",
    ]


async def test_calls_that_only_read_run_side_by_side(opened: Opened) -> None:
    everybody = asyncio.Barrier(3)

    @retinue.tool(effect="read")
    async def meet(name: str) -> str:
        """Come back when three are here."""
        await everybody.wait()
        return f"met {name}"

    names = ("a", "b", "c")
    model = ScriptedModel([calls(*(call("meet", name=name) for name in names)), say("done")])
    async with opened(model=model, tools=[meet]) as rt:
        result = await rt.run("Meet.")
    assert result.ok
    assert [text.splitlines()[0] for text in told(model.requests[1])] == ["met a", "met b", "met c"]


async def test_calls_that_write_run_one_after_the_other_in_order(opened: Opened) -> None:
    log: list[str] = []

    @retinue.tool(effect="write")
    async def step(name: str) -> str:
        """Do something."""
        log.append(f"{name} begins")
        for _ in range(5):
            await asyncio.sleep(0)
        log.append(f"{name} ends")
        return name

    model = ScriptedModel([calls(*(call("step", name=name) for name in "abc")), say("done")])
    async with opened(model=model, tools=[step], mode="auto") as rt:
        await rt.run("Go.")
    assert log == ["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]


async def test_a_read_between_two_writes_waits_for_the_first(opened: Opened, project: Path) -> None:
    model = ScriptedModel(
        [
            calls(
                call("write_file", path="a", content="one\n"),
                call("read_file", path="a"),
                call("write_file", path="a", content="two\n"),
                call("read_file", path="a"),
            ),
            say("done"),
        ]
    )
    async with opened(model=model, mode="auto") as rt:
        await rt.run("Write and read.")
    answers = told(model.requests[1])
    assert "one" in answers[1]
    assert "two" in answers[3]


async def test_a_tool_that_raises_is_a_tool_result(opened: Opened) -> None:
    @retinue.tool(effect="read")
    async def broken() -> str:
        """Break."""
        raise ZeroDivisionError("no")

    @retinue.tool(effect="read")
    async def failing() -> str:
        """Fail."""
        raise ToolFailure("There is no such thing; try another.")

    model = ScriptedModel([calls(call("broken"), call("failing")), say("I see.")])
    async with opened(model=model, tools=[broken, failing]) as rt:
        result = await rt.run("Try.")
    assert result.ok
    assert told(model.requests[1]) == [
        "[ERROR] broken broke: ZeroDivisionError: no",
        "[ERROR] There is no such thing; try another.",
    ]
    assert [receipt.ok for receipt in result.receipts] == [False, False]


async def test_an_unknown_tool_is_answered_and_counted(opened: Opened) -> None:
    model = ScriptedModel([call("launch_rocket"), say("Then not.")])
    seen: list[Event] = []
    async with opened(model=model, on_event=seen.append) as rt:
        result = await rt.spawn("researcher", "Launch.")
    assert result.ok
    assert result.usage.tool_calls == 1
    (said,) = told(model.requests[1])
    assert said.startswith(
        "[DENIED] You have no tool 'launch_rocket'. You have: docs_coverage, find_files, "
    )
    assert "tool.denied" in types(seen)
    assert "tool.started" not in types(seen)


async def test_a_tool_outside_the_contract_does_not_run(opened: Opened, project: Path) -> None:
    model = ScriptedModel([call("write_file", path="a", content="x"), say("Then not.")])
    async with opened(model=model, mode="auto") as rt:
        result = await rt.spawn("researcher", "Write.")
    assert result.ok
    assert result.usage.tool_calls == 1
    assert "You have no tool 'write_file'" in told(model.requests[1])[0]
    assert not (project / "a").exists()


async def test_a_write_outside_the_scope_is_refused(opened: Opened, project: Path) -> None:
    model = ScriptedModel(
        [
            calls(
                call("write_file", path="app.py", content="x"),
                call("write_file", path="tests/test_app.py", content="x"),
            ),
            say("done"),
        ]
    )
    async with opened(model=model, mode="auto") as rt:
        result = await rt.spawn("tester", "Write both.")
    assert [receipt.ok for receipt in result.receipts] == [False, True]
    assert told(model.requests[1])[0] == "[ERROR] The contract does not let you write 'app.py'."
    assert not (project / "app.py").exists()
    assert (project / "tests/test_app.py").read_text() == "x"


async def test_arguments_that_are_not_json_are_answered(opened: Opened) -> None:
    model = ScriptedModel(
        [
            calls(
                raw_call("list_dir", '{"path": '),
                raw_call("list_dir", '["."]'),
                raw_call("list_dir", ""),
                raw_call("read_file", '{"colour": "red"}'),
            ),
            say("I see."),
        ]
    )
    async with opened(model=model) as rt:
        result = await rt.run("List.")
    assert result.ok
    truncated, a_list, nothing, misnamed = told(model.requests[1])
    assert truncated.startswith("[ERROR] The arguments of list_dir are not JSON (")
    assert truncated.endswith("Send one JSON object.")
    assert a_list == "[ERROR] The arguments of list_dir must be one JSON object."
    assert nothing == "[The directory is empty.]"
    assert "read_file: missing 'path' (there is no 'colour')" in misnamed
    assert result.usage.tool_calls == 4


async def test_what_a_tool_says_reaches_the_model_as_valid_text(opened: Opened) -> None:
    @retinue.tool(effect="read")
    async def odd() -> str:
        """Say something odd."""
        return "half \ud83d a pair"

    model = ScriptedModel([call("odd"), say("ok")])
    async with opened(model=model, tools=[odd]) as rt:
        assert (await rt.run("Look.")).ok
    assert told(model.requests[1]) == ["half \\ud83d a pair"]


async def test_receipts_say_what_was_read_and_changed(opened: Opened, project: Path) -> None:
    (project / "old.txt").write_text("a\nb\n")
    model = ScriptedModel(
        [
            call("read_file", path="old.txt"),
            call("edit_file", path="old.txt", old_text="b", new_text="B"),
            call("write_file", path="new.txt", content="1\n2\n3\n"),
            call("edit_file", path="new.txt", old_text="1\n", new_text=""),
            say("Changed."),
        ]
    )
    async with opened(model=model, mode="auto") as rt:
        result = await rt.run("Change.")
    assert result.files_read == ("old.txt",)
    assert sorted(map(str, result.files_modified)) == [
        "new.txt (+3/-1 lines, new file)",
        "old.txt (+1/-1 lines)",
    ]
    read, edited, written, cut = result.receipts
    assert (read.tool, read.ok, read.read, read.changed) == ("read_file", True, ("old.txt",), ())
    assert edited.before_sha256 == hashlib.sha256(b"a\nb\n").hexdigest()
    assert edited.after_sha256 == hashlib.sha256(b"a\nB\n").hexdigest()
    assert written.before_sha256 is None
    assert written.after_sha256 == cut.before_sha256
    assert cut.after_sha256 == hashlib.sha256((project / "new.txt").read_bytes()).hexdigest()


async def test_tool_context_names_the_agent(opened: Opened, project: Path) -> None:
    given: list[ToolContext] = []

    @retinue.tool(effect="read")
    async def look(ctx: ToolContext) -> str:
        """Look."""
        given.append(ctx)
        return "ok"

    async with opened(model=ScriptedModel([call("look"), say("ok")]), tools=[look]) as rt:
        result = await rt.spawn("researcher", "Look.", tools=("look",))
    assert given[0].agent_id == result.agent_id
    assert given[0].workspace.root == str(project)
    assert given[0].sandbox is None


async def test_a_model_that_says_nothing_is_asked_again(opened: Opened) -> None:
    async with opened(model=ScriptedModel([say(" "), say("Here I am.")])) as rt:
        result = await rt.spawn("researcher", "Speak.")
    assert (result.status, result.response, result.attempts) == ("completed", "Here I am.", 2)


async def test_a_model_that_never_says_anything_has_failed(opened: Opened) -> None:
    async with opened(model=ScriptedModel([say(""), say("")])) as rt:
        result = await rt.spawn("researcher", "Speak.")
    assert (result.status, result.error) == ("error", "the model answered nothing")


async def test_text_of_the_root_is_streamed(opened: Opened) -> None:
    heard: list[str] = []
    model = ScriptedModel([say("One two three.")])
    async with opened(model=model, on_text=heard.append) as rt:
        await rt.run("Count.")
    assert "".join(heard) == "One two three."
    assert len(heard) > 1


# What is on record before the next thing happens


class Database:
    """The file as another process sees it at that moment."""

    def __init__(self, project: Path) -> None:
        self._path = project / ".retinue" / "retinue.db"

    def rows(self, query: str) -> list[tuple[str, ...]]:
        with closing(sqlite3.connect(self._path)) as connection:
            return connection.execute(query).fetchall()

    @property
    def types(self) -> list[str]:
        return [kind for (kind,) in self.rows("SELECT type FROM events ORDER BY seq")]


async def test_the_contract_is_on_record_before_the_model_is_asked(
    opened: Opened, project: Path
) -> None:
    found: list[tuple[str, ...]] = []

    def look(request: Request) -> Step:
        found.extend(Database(project).rows("SELECT path, context_json FROM sub_agents"))
        return say("ok")

    async with opened(model=ScriptedModel([look])) as rt:
        await rt.spawn("researcher", "Look around.")
    (_, (path, context_json)) = found
    assert path == "root/researcher.1"
    assert decode_contract(context_json).step.description == "Look around."


async def test_a_reply_and_the_start_of_a_write_are_on_record_before_it_happens(
    opened: Opened, project: Path
) -> None:
    found: list[str] = []

    @retinue.tool(effect="write")
    async def act() -> str:
        """Act."""
        found.extend(Database(project).types)
        return "acted"

    async with opened(
        model=ScriptedModel([call("act"), say("ok")]), tools=[act], mode="auto"
    ) as rt:
        await rt.run("Act.")
    assert found[-3:] == ["turn.started", "model.replied", "tool.started"]


async def test_a_receipt_is_on_record_before_the_model_is_asked_again(
    opened: Opened, project: Path
) -> None:
    found: list[str] = []

    def look(request: Request) -> Step:
        found.extend(Database(project).types)
        return say("ok")

    model = ScriptedModel([call("write_file", path="a", content="x"), look])
    async with opened(model=model, mode="auto") as rt:
        await rt.run("Act.")
    assert "tool.finished" in found


async def test_closing_is_on_record_before_the_result_is_read(
    opened: Opened, project: Path
) -> None:
    async with opened(model=ScriptedModel([say("ok")])) as rt:
        await rt.spawn("researcher", "Speak.")
        assert Database(project).types[-1] == "agent.subagent_closed"
