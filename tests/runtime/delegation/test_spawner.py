"""`spawn_agent`: a child for a task, inside what the parent has to give."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.domain.contract import Contract
from retinue.domain.events import AgentCreated, Event
from retinue.domain.messages import Reply, Request, ToolMessage
from retinue.errors import ContractError, ProviderError, UsageError
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, hold, say
from retinue.project import open_journal
from retinue.runtime.history.audit import audit
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Contracts = Callable[[], Awaitable[dict[str, Contract]]]
Settings = Callable[[str], None]

ROOT = "at work in the user's project"


def told(model: ScriptedModel) -> list[str]:
    """What the root's tool calls were answered, as it saw them in the end."""
    last = [r for r in model.requests if ROOT in r.messages[0].content][-1]
    return [m.content for m in last.messages if isinstance(m, ToolMessage)]


def led(*steps: Step, **children: list[Step]) -> ScriptedModel:
    """A root that takes `steps` and then says so, and its children, by a word of their task."""
    return ScriptedModel({ROOT: [*steps, say("All done.")], **children})


def names(request: Request) -> list[str]:
    return [tool.name for tool in request.tools]


# The call


async def test_a_child_does_its_task_and_reports(opened: Opened) -> None:
    model = led(
        call("spawn_agent", role="researcher", task="Look into the shed."),
        shed=[call("list_dir"), say("It is empty.")],
    )
    async with opened(model=model) as rt:
        result = await rt.run("What is in the shed?")
    assert result.ok
    assert result.children == 1
    (report,) = told(model)
    head, *body = report.splitlines()
    assert head.startswith("[completed] a1 researcher: 2 turns, 1 tool call, ")
    assert head.endswith(" tokens, 0.0s")
    assert body[0].startswith("<report-")
    assert body[1] == "It is empty."


async def test_scope_is_in_the_prompt_and_limits_writes(
    opened: Opened, project: Path, contracts: Contracts
) -> None:
    model = led(
        call("spawn_agent", task="Paint.", role="executor", scope="shed, src/door.py"),
        Paint=[
            calls(
                call("write_file", path="shed/wall.txt", content="red"),
                call("write_file", path="house.txt", content="red"),
            ),
            say("Painted."),
        ],
    )
    async with opened(model=model, mode="auto") as rt:
        await rt.run("Paint the shed.")
    assert "Keep to: shed, src/door.py" in model.requests[1].messages[1].content
    assert (project / "shed" / "wall.txt").exists()
    assert not (project / "house.txt").exists()
    child = (await contracts())["a1"]
    assert child.step.scope == ("shed", "src/door.py")
    assert child.permissions.write_scope == (("shed", "src/door.py"),)
    assert "Files modified: shed/wall.txt (+1 line, new file)" in told(model)[0]


async def test_plan_mode_reads_and_auto_mode_edits(
    opened: Opened, project: Path, contracts: Contracts
) -> None:
    write = call("write_file", path="a.txt", content="x")
    model = led(
        call("spawn_agent", task="First", mode="plan", role="executor"),
        call("spawn_agent", role="executor", task="Second", mode="auto"),
        First=[write, say("I could not.")],
        Second=[write, say("I could.")],
    )
    async with opened(model=model, mode="auto") as rt:
        await rt.run("Edit.")
    first, second = (await contracts())["a1"], (await contracts())["a2"]
    assert set(first.permissions.allowed_tools) == {
        "find_files",
        "find_symbol",
        "git_read",
        "list_dir",
        "read_file",
        "recall",
        "search_files",
    }
    assert "write_file" in second.permissions.allowed_tools
    assert (project / "a.txt").read_text() == "x"
    assert "note: without write_file: plan mode only reads" in told(model)[0]


@pytest.mark.parametrize("spelling", ["plan", "PLAN", " Plan "])
async def test_mode_is_parsed_leniently(
    opened: Opened, contracts: Contracts, spelling: str
) -> None:
    model = led(call("spawn_agent", role="planner", task="Edit", mode=spelling), Edit=[say("ok")])
    async with opened(model=model, mode="auto") as rt:
        await rt.run("Go.")
    assert (await contracts())["a1"].permissions.mode == "plan"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ({"task": " "}, "[ERROR] The task is empty; say what the child should do."),
        (
            {"task": "x", "role": "cook"},
            "[ERROR] Unknown role 'cook'; you may spawn: executor, general, planner, researcher,"
            " reviewer, tester.",
        ),
        ({"task": "x", "mode": "turbo"}, "[ERROR] Unknown mode 'turbo'; there are: plan, auto."),
        (
            {"task": "x", "tools": ["fly"]},
            "[ERROR] Unknown tool 'fly'; there are: agent_cancel, agent_message, agent_result,"
            " delegate_task, docs_coverage, edit_file, find_files, find_symbol, git_read, list_dir,"
            " overview, race_agents, read_file, recall, remember, search_files, spawn_agent,"
            " spawn_await, write_file.",
        ),
    ],
)
async def test_a_wrong_call_is_answered_and_nothing_is_spawned(
    opened: Opened, arguments: dict[str, str], answer: str
) -> None:
    model = led(call("spawn_agent", **arguments))
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert told(model) == [answer]
    assert result.children == 0


async def test_missing_task_is_answered_with_the_right_form(opened: Opened) -> None:
    model = led(call("spawn_agent", role="planner"))
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    (answer,) = told(model)
    assert answer.startswith("[ERROR] spawn_agent: missing 'task'. Send {")
    assert result.children == 0


# Budgets


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_tool_calls", 0, "max_tool_calls must be positive, not 0."),
        ("max_tool_calls", -3, "max_tool_calls must be positive, not -3."),
        ("max_turns", 0, "max_turns must be positive, not 0."),
        ("max_tokens", -1, "max_tokens must be positive, not -1."),
        ("timeout_s", 1, "timeout_s must be at least 5 seconds, not 1."),
        ("timeout_s", -1, "timeout_s must be at least 5 seconds, not -1."),
    ],
)
async def test_invalid_limit_of_a_call_is_named(
    opened: Opened, field: str, value: Any, message: str
) -> None:
    model = led(call("spawn_agent", task="x", **{field: value}))
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
        with pytest.raises(ContractError) as caught:
            await rt.spawn("researcher", "x", **{field: value})
    assert told(model) == [f"[ERROR] {message}"]
    assert result.children == 0
    assert str(caught.value) == message


async def test_role_supplies_what_a_call_leaves_out(opened: Opened, contracts: Contracts) -> None:
    model = led(
        call("spawn_agent", role="researcher", task="Count", max_tool_calls=5), Count=[say("3")]
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    budget = (await contracts())["a1"].execution.budget
    assert budget == retinue.Budget(max_tool_calls=5, max_context_tokens=24_576)
    assert (budget.max_turns, budget.max_tokens, budget.timeout_s) == (50, 65_536, 300)


async def test_limits_above_the_parents_are_clamped_and_noted(
    opened: Opened, contracts: Contracts
) -> None:
    seen: list[Event] = []
    above = {"max_tool_calls": 500, "timeout_s": 9_999, "max_tokens": 10**9}
    model = led(
        call("spawn_agent", role="planner", task="Count", **above),
        Count=[say("3")],
    )
    limits = {"max_tokens": 50_000}
    async with opened(model=model, limits=limits, on_event=seen.append) as rt:
        await rt.run("Go.")
    budget = (await contracts())["a1"].execution.budget
    assert (budget.max_tool_calls, budget.timeout_s) == (100, 3_600)
    assert budget.max_tokens is not None
    assert budget.max_tokens < 50_000, "what the parent has used is gone"
    notes = [
        "max_tool_calls 500 became 100: the parent has no more",
        "timeout_s 9999 became 3600: the parent has no more",
        f"max_tokens 1000000000 became {budget.max_tokens}: the parent has no more",
    ]
    created = [e.fact for e in seen if isinstance(e.fact, AgentCreated)][-1]
    assert list(created.notes) == notes
    assert [line for line in told(model)[0].splitlines() if line.startswith("note: ")] == [
        f"note: {note}" for note in notes
    ]


async def test_limits_of_a_program_are_clamped_and_noted(opened: Opened) -> None:
    async with opened(model=ScriptedModel([say("3")])) as rt:
        result = await rt.spawn("researcher", "Count.", max_tool_calls=500, max_turns=10_000)
    assert result.notes == (
        "max_tool_calls 500 became 100: the parent has no more",
        "max_turns 10000 became 200: the parent has no more",
    )


# Contract


async def test_goal_summary_is_the_first_line_of_the_run_task(
    opened: Opened, contracts: Contracts
) -> None:
    spawn = call("spawn_agent", task="Look", role="researcher")
    model = ScriptedModel({ROOT: [spawn, say("Done.")], "": [say("Seen.")]})
    async with opened(model=model) as rt:
        await rt.run("Understand auth.\nAll of it.")
    found = await contracts()
    assert {found[id].parent.goal_summary for id in ("a0", "a1")} == {"Understand auth."}


# Depth


async def test_nothing_is_spawned_past_the_depth_limit(opened: Opened, settings: Settings) -> None:
    settings('[profiles.boss]\nsystem_prompt = "Boss."\nspawns = ["boss"]\n')
    spawn = call("spawn_agent", task="Deeper", profile="boss")
    model = ScriptedModel(
        {
            ROOT: [spawn, say("Up.")],
            "": [spawn, say("No further.")],
        }
    )
    seen: list[Event] = []
    async with opened(model=model, on_event=seen.append) as rt:
        result = await rt.run("Dig.")
    assert result.children == 2
    depths = [e.fact.depth for e in seen if isinstance(e.fact, AgentCreated)]
    assert depths == [0, 1, 2]
    offered = [names(r) for r in model.requests if len(r.messages) == 2]
    assert ["spawn_agent" in tools for tools in offered] == [True, True, False]
    deepest = next(r for r in model.requests if "[DENIED]" in r.messages[-1].content)
    assert deepest.messages[-1].content == (
        "[DENIED] Maximum sub-agent depth (2) exceeded: you are at depth 2. Do the work with the"
        " tools you have."
    )


async def test_the_depth_limit_is_a_setting(opened: Opened, settings: Settings) -> None:
    settings("max_depth = 1\n")
    model = led(
        call("spawn_agent", task="Paint", role="executor"),
        Paint=[call("spawn_agent", task="Look", role="reviewer"), say("Painted.")],
    )
    async with opened(model=model, mode="auto") as rt:
        result = await rt.run("Go.")
    assert result.children == 1
    child = next(r for r in model.requests if "Paint" in r.messages[1].content)
    assert "spawn_agent" not in names(child)


# What a child may do


@pytest.mark.parametrize(("mode", "may"), [("normal", False), ("auto", True), ("dangerous", True)])
async def test_without_a_person_tools_that_need_approval_are_granted_in_auto_mode_only(
    opened: Opened, contracts: Contracts, mode: str, may: bool
) -> None:
    model = led(call("spawn_agent", task="Edit", role="executor"), Edit=[say("ok")])
    async with opened(model=model, mode=mode) as rt:
        await rt.run("Go.")
    grant = (await contracts())["a1"].permissions
    assert ("write_file" in grant.allowed_tools) is may
    assert grant.ask_tools == ()
    note = "without write_file: it needs a person's yes in normal mode"
    assert (note in told(model)[0]) is not may


async def test_a_root_may_ask_the_user(opened: Opened) -> None:
    asked: list[tuple[str, str]] = []

    async def ask(path: str, question: str) -> str:
        asked.append((path, question))
        return "Red."

    model = led(call("ask_user", question="Which colour?"))
    async with opened(model=model, ask=ask) as rt:
        await rt.run("Paint.")
    assert told(model) == ["Red."]
    assert asked == [("root", "Which colour?")]


async def test_a_child_never_asks_the_user(opened: Opened, contracts: Contracts) -> None:
    async def ask(path: str, question: str) -> str:
        raise AssertionError("a child asked")

    model = led(
        call("spawn_agent", role="researcher", task="Wonder", tools=["ask_user", "list_dir"]),
        Wonder=[call("ask_user", question="Why?"), say("Never mind.")],
    )
    async with opened(model=model, mode="dangerous", ask=ask) as rt:
        await rt.run("Go.")
    assert (await contracts())["a1"].permissions.allowed_tools == ("list_dir",)
    assert "note: without ask_user: a child never talks to the user" in told(model)[0]
    assert "[DENIED] You have no tool 'ask_user'" in model.requests[2].messages[-1].content


async def test_a_denied_call_is_answered_and_counted(opened: Opened) -> None:
    model = ScriptedModel([call("write_file", path="x", content="y"), say("Then not.")])
    async with opened(model=model, mode="auto") as rt:
        result = await rt.spawn("researcher", "Write.", tools=("read_file",))
    assert result.ok
    assert result.usage.tool_calls == 1
    assert model.requests[1].messages[-1].content == (
        "[DENIED] You have no tool 'write_file'. You have: read_file."
    )


async def test_delegation_is_offered_in_normal_mode_only_and_can_be_switched_off(
    opened: Opened, settings: Settings
) -> None:
    async def offered(mode: str) -> set[str]:
        model = ScriptedModel([say("ok")])
        async with opened(model=model, mode=mode) as rt:
            await rt.run("Go.")
        return set(names(model.requests[0]))

    ours = {
        "agent_cancel",
        "agent_message",
        "agent_result",
        "delegate_task",
        "spawn_agent",
        "spawn_await",
    }
    for mode in ("normal", "auto", "dangerous"):
        assert ours <= await offered(mode)
    assert not ours & await offered("plan")
    settings("delegation = false\n")
    assert not ours & await offered("normal")


async def test_spawn_is_denied_when_delegation_is_off(opened: Opened, settings: Settings) -> None:
    settings("delegation = false\n")
    model = led(call("spawn_agent", role="researcher", task="x"))
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.children == 0
    assert told(model)[0].startswith("[DENIED] You have no tool 'spawn_agent'.")


# The bill, and the client


async def test_spawn_counts_as_one_tool_call_of_the_parent(opened: Opened) -> None:
    model = led(
        call("spawn_agent", role="researcher", task="Look"),
        Look=[calls(call("list_dir"), call("list_dir")), say("ok")],
    )
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.usage.tool_calls == 1
    assert result.total.tool_calls == 3


class Counting:
    """A model that says how often it was closed."""

    name = "counting"

    def __init__(self, model: ScriptedModel) -> None:
        self._model = model
        self.closed = 0

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        return await self._model.reply(request, on_text)

    async def aclose(self) -> None:
        self.closed += 1


async def test_one_client_serves_parent_and_children(opened: Opened) -> None:
    script = led(
        calls(
            call("spawn_agent", role="researcher", task="One"),
            call("spawn_agent", role="researcher", task="Two"),
        ),
        One=[say("1")],
        Two=[say("2")],
    )
    model = Counting(script)
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.ok
    assert len(script.requests) == 4
    assert model.closed == 1


async def test_children_leave_no_sessions_of_their_own(opened: Opened, project: Path) -> None:
    model = led(call("spawn_agent", role="researcher", task="Look"), Look=[say("ok")])
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    async with open_journal(project) as store:
        assert [run.id for run in await store.runs()] == [result.id]
        assert [agent.id for agent in await store.agents(result.id)] == ["a0", "a1"]
        await audit(store, result.id)
    kept = sorted(path.name for path in (project / ".retinue").iterdir())
    assert [name for name in kept if not name.startswith("retinue.db")] == [
        ".gitignore",
        "live",
        "step-0-result.md",
    ]
    assert list((project / ".retinue" / "live").iterdir()) == []


# Side by side


async def test_children_of_one_reply_run_side_by_side(opened: Opened) -> None:
    together = asyncio.Barrier(3)

    model = ScriptedModel(
        {
            ROOT: [
                calls(
                    *(call("spawn_agent", role="researcher", task=f"Child {n}") for n in range(3))
                ),
                say("All done."),
            ],
            "Child": [hold(together, say("met"))],
        }
    )
    async with opened(model=model) as rt:
        assert (await rt.run("Go.")).children == 3
    assert [answer.splitlines()[2] for answer in told(model)] == ["met"] * 3
    assert [answer.split()[1] for answer in told(model)] == ["a1", "a2", "a3"]


async def test_failed_child_is_a_report_and_leaves_siblings_alone(opened: Opened) -> None:
    model = led(
        calls(
            call("spawn_agent", role="researcher", task="Bad"),
            call("spawn_agent", role="researcher", task="Good"),
        ),
        say("One is bad."),
        Bad=[fail(ProviderError("connection refused"))],
        Good=[say("fine")],
    )
    async with opened(model=model) as rt:
        result = await rt.run("Go.")
    assert result.ok, "what to make of it is the parent's"
    bad, good = told(model)
    assert bad.splitlines() == [
        "[ERROR] error: connection refused",
        "(a1 researcher: 0 turns, 0 tool calls, 0 tokens, 0.0s)",
        "It returned no text.",
    ]
    assert good.startswith("[completed] a2 ")


async def test_given_context_reaches_the_child_framed(opened: Opened) -> None:
    model = led(
        call("spawn_agent", role="researcher", task="Use it", context="The key is under the mat."),
        Use=[say("ok")],
    )
    async with opened(model=model) as rt:
        await rt.run("A secret plan.")
    opening = model.requests[1].messages[1].content
    assert opening.startswith("Use it\n\nDirectory: ")
    assert "<context-" in opening
    assert 'from="parent">\nThe key is under the mat.\n</context-' in opening
    assert "secret plan" not in "".join(m.content for m in model.requests[1].messages)


async def test_the_same_task_over_the_same_files_is_not_done_twice(
    opened: Opened, project: Path
) -> None:
    (project / "a.txt").write_text("one")
    spawn = call("spawn_agent", role="researcher", task="Read a.txt")
    model = led(spawn, spawn, txt=[call("read_file", path="a.txt"), say("It says one.")])
    async with opened(model=model, cache=True) as rt:
        await rt.run("Go.")
        assert len(model.requests) == 5
        first, second = told(model)
        assert ", cached" not in first
        assert second.splitlines()[0].endswith("s, cached")
        assert second.splitlines()[1] == "Files read: a.txt"
        assert second.splitlines()[3] == "It says one."
        (project / "a.txt").write_text("two")
        assert not (await rt.spawn("researcher", "Read a.txt")).cached, "a hit is checked too"


# The result


async def test_result_has_usage_and_files(opened: Opened, project: Path, clock: FakeClock) -> None:
    (project / "auth.py").write_text("a\n")

    def later(request: Request) -> Step:
        clock.advance(1.2)
        return say("Done.").using(100, 10, tokens_cached=40)

    model = ScriptedModel(
        [
            call("read_file", path="auth.py").using(50, 5),
            call("edit_file", path="auth.py", old_text="a", new_text="b").using(60, 6),
            call("write_file", path="new.py", content="1\n2\n").using(70, 7),
            later,
        ]
    )
    async with opened(model=model, mode="auto") as rt:
        result = await rt.spawn("executor", "Edit auth.")
    assert (result.status, result.ok, result.response, result.summary) == (
        "completed",
        True,
        "Done.",
        "Done.",
    )
    usage = result.usage
    assert (usage.tool_calls, usage.turns) == (3, 4)
    assert (usage.tokens_in, usage.tokens_cached, usage.tokens_out) == (280, 40, 28)
    assert usage.duration_s == pytest.approx(1.2)
    assert "auth.py" in result.files_read
    assert [str(change) for change in result.files_modified] == [
        "auth.py (+1/-1 lines)",
        "new.py (+2 lines, new file)",
    ]
    assert [receipt.tool for receipt in result.receipts] == ["read_file", "edit_file", "write_file"]


async def test_changes_before_a_timeout_are_reported(opened: Opened, clock: FakeClock) -> None:
    waiting = asyncio.Event()

    class Forever:
        async def wait(self) -> None:
            waiting.set()
            await asyncio.Event().wait()

    first = calls(call("write_file", path="a.txt", content="x"), text="Half of it is there.")
    model = ScriptedModel([first, hold(Forever(), say("never"))])
    async with opened(model=model, mode="auto") as rt:
        job = await rt.start("executor", "Take long.", timeout_s=10, max_retries=0)
        await waiting.wait()
        clock.advance(10)
        result = await job.result()
    assert (result.status, result.error) == ("timeout", "timeout after 10 s")
    assert result.response == "Half of it is there."
    assert [change.path for change in result.files_modified] == ["a.txt"]
    assert result.usage.tool_calls == 1


async def test_exhausted_budget_returns_what_the_child_has(opened: Opened) -> None:
    model = led(
        call("spawn_agent", role="researcher", task="Count", max_tool_calls=1),
        Count=[calls(call("list_dir"), call("list_dir")), say("Half.")],
    )
    async with opened(model=model) as rt:
        await rt.run("Go.")
    (answer,) = told(model)
    assert answer.startswith("[ERROR] budget_exceeded: max_tool_calls 1 reached\n(a1 researcher: ")
    assert "\nHalf.\n" in answer


async def test_wrong_task_options_raise_before_work_begins(opened: Opened) -> None:
    async with opened(model=ScriptedModel([])) as rt:
        with pytest.raises(UsageError, match="Unknown option 'colour'; there are: role, task"):
            await rt.spawn("researcher", "x", colour=3)  # type: ignore[call-arg]
        with pytest.raises(UsageError, match="Unknown role 'cook'"):
            await rt.fan_out([("researcher", "x"), ("cook", "y")])


@pytest.mark.parametrize("place", ["shed", "./shed/", "{here}/shed", "{here}//shed/."])
async def test_scope_may_be_an_absolute_path(
    opened: Opened, project: Path, contracts: Contracts, place: str
) -> None:
    """A model is told the directory, and many put it before every path."""
    model = led(
        call("spawn_agent", task="Paint", role="executor", scope=place.format(here=project)),
        Paint=[call("write_file", path="shed/wall.txt", content="red"), say("Painted.")],
    )
    async with opened(model=model, mode="auto") as rt:
        await rt.run("Paint the shed.")
    assert (project / "shed" / "wall.txt").exists()
    assert (await contracts())["a1"].step.scope == ("shed",)


async def test_a_scope_outside_of_the_project_is_refused(opened: Opened) -> None:
    model = led(call("spawn_agent", task="Paint", role="executor", scope="src, ../other"))
    async with opened(model=model, mode="auto") as rt:
        await rt.run("Paint.")
        with pytest.raises(UsageError, match=r"'\.\./x' leads out of the directory"):
            await rt.spawn("executor", "Paint", write=("../x",))
    assert told(model) == [
        "[ERROR] '../other' leads out of the directory; name paths inside of it."
    ]
