from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.domain import events as ev
from retinue.domain.messages import Usage
from retinue.domain.result import Status
from retinue.errors import ProviderError
from retinue.interfaces.view.agent_tree import (
    AgentTree,
    DisplayState,
    Forest,
    TreeRow,
    fit_rows,
)
from retinue.models.scripted.model import Step, call, calls, fail, hold, say
from tests.domain.events_of_a_run import event_of

Record = Callable[..., Awaitable[list[ev.Event]]]
NOW = 1_000.0


def led(*tasks: str, **rules: list[Step]) -> dict[str, list[Step]]:
    """A lead that gives out `tasks` side by side; children answer by the first word of theirs."""
    spawned = calls(*(call("spawn_agent", role="researcher", task=task) for task in tasks))
    # A root is reminded of failed children before it ends.
    ends = [say("done")] * (2 if [BROKEN] in rules.values() else 1)
    return {**rules, "": [spawned, *ends]}


def tree_of(events: list[ev.Event]) -> AgentTree:
    tree = AgentTree()
    for one in events:
        tree.apply(one)
    return tree


def expand_all(tree: AgentTree) -> list[TreeRow]:
    while collapsed := [r for r in tree.rows(NOW) if r.child_count and not r.expanded]:
        for row in collapsed:
            tree.set_expanded(row.key, True)
    return tree.rows(NOW)


def seen(rows: list[TreeRow]) -> list[str]:
    return [f"{'  ' * row.depth}{row.state} {row.count}x {row.name} {row.activity}" for row in rows]


def moments(events: list[ev.Event]) -> list[list[TreeRow]]:
    tree = AgentTree()
    drawn = []
    for event in events:
        tree.apply(event)
        drawn.append(tree.rows(event.time))
    return drawn


BROKEN = fail(ProviderError("The server said no."))


async def test_few_children_are_listed_in_creation_order(record: Record) -> None:
    events = await record(led("Look 1", "Break 2", "Look 3", Look=[say("ok")], Break=[BROKEN]))
    assert seen(tree_of(events).rows(NOW)) == [
        "done 1x lead ",
        "  done 1x researcher.1 ",
        "  failed 1x researcher.2 The server said no.",
        "  done 1x researcher.3 ",
    ]
    names = [[row.name for row in rows if row.depth] for rows in moments(events)]
    assert all(now[: len(before)] == before for before, now in pairwise(names))


async def test_many_children_are_grouped(record: Record) -> None:
    tasks = [f"{'Break' if n % 10 == 3 else 'Look'} {n}" for n in range(40)]
    events = await record(led(*tasks, Look=[call("list_dir"), say("ok")], Break=[BROKEN]))
    assert seen(tree_of(events).rows(NOW)) == [
        "done 1x lead ",
        "  failed 4x researcher The server said no.",
        "  done 36x researcher ",
    ]
    done = tree_of(events).rows(NOW)[-1]
    assert (done.tool_calls, done.turn) == (36, 0)
    assert done.tokens > 36


async def test_running_children_are_listed_and_others_grouped(record: Record) -> None:
    tasks = [f"Look {n}" for n in range(28)]
    four = asyncio.Barrier(4)
    events = await record(led(*tasks, Look=[hold(four, say("ok"))]), max_concurrent=4)
    drawn = next(rows for rows in moments(events) if _marks(rows) == [4, 0, 12])
    assert [row.count for row in drawn[1:]] == [1, 1, 1, 1, 12]
    assert drawn[0].activity == "waiting for 16 of 28 agents"


def _marks(rows: list[TreeRow]) -> list[int]:
    """How many children run and think, how many wait, and how many are done."""
    thinking = sum(row.count for row in rows if row.activity == "thinking" and row.depth)
    counts = [
        sum(r.count for r in rows if r.state is m)
        for m in (DisplayState.WAITING, DisplayState.DONE)
    ]
    return [thinking, *counts]


async def test_waiting_children_are_one_row(record: Record) -> None:
    tasks = [f"Look {n}" for n in range(30)]
    away = [call("spawn_agent", role="researcher", task=t, background=True) for t in tasks]
    awaited = call("spawn_await", ids="*")
    script = {"Look": [say("ok")], "": [calls(*away), awaited, say("done")]}
    events = await record(script, max_concurrent=2)
    last_birth = max(e.seq for e in events if e.type == "agent.subagent_created")
    tree = tree_of(events[:last_birth])
    waiting = [row for row in tree.rows(NOW) if row.state is DisplayState.WAITING]
    assert [row.count for row in waiting] == [tree.counts[DisplayState.WAITING]]
    assert waiting[0].count > 20


async def test_identical_running_tasks_are_one_row(record: Record) -> None:
    everybody = asyncio.Barrier(9)
    look = hold(everybody, say("ok"))
    events = await record(led(*["Look"] * 9, Look=[look]), max_concurrent=9)
    folded = [
        row
        for rows in moments(events)
        for row in rows
        if row.state is DisplayState.RUNNING and row.depth
    ]
    assert max(row.count for row in folded) == 9
    assert {row.task for row in folded} == {"Look"}


async def test_expand_and_collapse_groups(record: Record) -> None:
    events = await record(led(*[f"Look {n}" for n in range(9)], Look=[say("ok")]))
    tree = tree_of(events)
    root, folded = tree.rows(NOW)
    assert not folded.expanded
    tree.set_expanded(folded.key, True)
    rows = tree.rows(NOW)
    assert [row.depth for row in rows] == [0, 1, *[2] * 9]
    assert {row.name for row in rows[2:]} == {f"researcher.{n}" for n in range(1, 10)}
    tree.set_expanded(root.key, False)
    assert len(tree.rows(NOW)) == 1
    tree.set_expanded(root.key, True)
    tree.set_expanded(folded.key, False)
    assert len(tree.rows(NOW)) == 2


async def test_failed_descendants_are_counted(record: Record) -> None:
    spawn = call("spawn_agent", role="reviewer", task="Break it")
    helped: list[Step] = [spawn, say("went on without")]
    tasks = [f"Help {n}" for n in range(8)]
    spawned = calls(*(call("spawn_agent", role="executor", task=task) for task in tasks))
    script = {"Help": helped, "Break": [BROKEN], "": [spawned, say("done")]}
    tree = tree_of(await record(script))
    assert seen(tree.rows(NOW)) == ["done 1x lead ", "  done 8x executor "]
    assert [row.failed_descendants for row in tree.rows(NOW)] == [8, 8]
    assert len(tree.failures) == 8

    (row,) = [row for row in expand_all(tree) if row.agent_id == tree.failures[0]]
    assert (row.state, row.activity) == (DisplayState.FAILED, "The server said no.")


async def test_successful_agent_is_collapsed(record: Record) -> None:
    helped = [call("spawn_agent", role="reviewer", task="Look at it"), say("reviewed")]
    spawn = call("spawn_agent", role="executor", task="Help")
    tree = tree_of(await record({"Help": helped, "Look": [say("ok")], "": [spawn, say("done")]}))
    _, helper = tree.rows(NOW)
    assert (helper.name, helper.expanded, helper.child_count) == ("executor.1", False, 1)
    tree.set_expanded(helper.key, True)
    assert [row.name for row in tree.rows(NOW)] == ["lead", "executor.1", "reviewer.1"]


async def test_row_of_a_running_agent(record: Record) -> None:
    trouble = fail(ProviderError("Busy.", retryable=False))
    steps: list[Step] = [call("list_dir", path="."), say("ok")]
    events = await record(led("Look", "Break", Look=steps, Break=[trouble]))
    told = [row.activity for rows in moments(events) for row in rows if row.name == "researcher.1"]
    assert list(dict.fromkeys(told)) == ["", "thinking", "list_dir .", "checks and merge"]
    told = [row.activity for rows in moments(events) for row in rows if row.name == "researcher.2"]
    assert list(dict.fromkeys(told)) == [
        "", "thinking", "model failed: Busy", "Busy.",
    ]  # fmt: skip


async def test_progress_is_shown_until_the_next_event(record: Record) -> None:
    events = await record(led("Look", Look=[call("list_dir", path="."), say("ok")]))
    tree, told = AgentTree(), []
    for event in events:
        tree.apply(event)
        if event.type == "tool.started" and event.agent_id == "a1":
            tree.report("a1", "copied 1 of 2\nfiles")
        told += [row.activity for row in tree.rows(event.time) if row.agent_id == "a1"]
    shown = list(dict.fromkeys(told))
    assert shown == ["", "thinking", "copied 1 of 2 files", "checks and merge"]


async def test_order_of_several_runs(record: Record) -> None:
    one = await record(led("Look", Look=[say("ok")]))
    two = await record(led("Break", Break=[fail(ProviderError("No."))]))
    talk = await record({"": [say("Only words.")]})
    forest = Forest()

    def shown() -> list[tuple[str, bool, int]]:
        return [
            (row.run_id, row.expanded, row.failed_descendants)
            for row in forest.rows(NOW)
            if not row.depth
        ]

    for first in one:
        assert forest.apply(first) is forest.trees[first.run_id]
    assert shown() == [(one[0].run_id, True, 0)]
    half = len(talk) // 2
    for event in (*two, *talk[:half]):
        forest.apply(event)
    # What is over makes room; what failed in it is counted.
    assert shown() == [
        (talk[0].run_id, False, 0), (two[0].run_id, False, 1), (one[0].run_id, False, 0),
    ]  # fmt: skip
    for event in talk[half:]:
        forest.apply(event)
    again = await record({"": [say("More words.")]})
    for event in again:
        forest.apply(event)
    # One that had no children is of no interest any more.
    assert [run for run, *_ in shown()] == [again[0].run_id, two[0].run_id, one[0].run_id]
    forest.trees[one[0].run_id].set_expanded(f"{one[0].run_id} a0", True)
    rows = forest.rows(NOW)
    assert [row.name for row in rows] == ["lead", "lead", "lead", "researcher.1"]
    assert len({row.key for row in rows}) == 4


def test_program_with_new_work_is_expanded() -> None:
    forest = Forest()
    program = ev.RunStarted(
        kind="program", task="", directory="", model="", mode="", retinue_version="", sandbox=""
    )
    forest.apply(event_of(1, program, "a0", None))
    forest.apply(event_of(2, life("a0", "program", "", Status.COMPLETED)[0], "a0", None))
    (tree,) = forest.trees.values()
    tree.collapse_when_idle()
    assert [row.expanded for row in forest.rows(NOW)] == [False]
    forest.apply(event_of(3, life("a1", "researcher", "", Status.COMPLETED)[0], "a1", "a0"))
    assert [row.name for row in forest.rows(NOW)] == ["program", "researcher.a1"]


def test_program_whose_children_are_done_does_not_wait() -> None:
    forest = Forest()
    program = ev.RunStarted(
        kind="program", task="", directory="", model="", mode="", retinue_version="", sandbox=""
    )
    forest.apply(event_of(1, program, "a0", None))
    for number, fact in enumerate(life("a0", "program", "", Status.COMPLETED)[:2], 2):
        forest.apply(event_of(number, fact, "a0", None))
    (row,) = forest.rows(NOW)
    assert row.state is DisplayState.WAITING
    for number, fact in enumerate(life("a1", "researcher", "", Status.COMPLETED), 4):
        forest.apply(event_of(number, fact, "a1", "a0"))
    assert forest.rows(NOW)[0].state is DisplayState.DONE


def test_fit_rows_keeps_failures() -> None:
    marks = [DisplayState.RUNNING] * 20 + [DisplayState.DONE] * 20 + [DisplayState.FAILED]
    rows = [
        TreeRow(key=str(n), run_id="r", agent_id=str(n), state=state, depth=1, name="x")
        for n, state in enumerate(marks)
    ]
    root = TreeRow(
        key="root", run_id="r", agent_id="a0", state=DisplayState.DONE, depth=0, name="lead"
    )
    kept, left_out = fit_rows([root, *rows], 5)
    assert [row.key for row in kept] == ["root", "0", "1", "2", "40"]
    assert left_out == 37
    assert fit_rows([root], 5) == ([root], 0)


# --- any journal ------------------------------------------------------------------------------


def life(agent: str, role: str, title: str, end: Status) -> list[ev.Fact]:
    ok = end is Status.COMPLETED
    return [
        ev.AgentCreated(
            sub_agent_id=agent,
            step_idx=0,
            path=f"root/{role}.{agent}",
            depth=0,
            role=role,
            title=title,
            contract_sha256="",
        ),
        ev.AgentStarted(sub_agent_id=agent),
        ev.TurnStarted(turn=1, of=9),
        ev.ModelReplied(turn=1, content="", usage=Usage(10, 0, 1)),
        ev.ResultProposed(sub_agent_id=agent, response="x"),
        ev.AgentCompleted(sub_agent_id=agent)
        if ok
        else ev.AgentFailed(sub_agent_id=agent, status=end, reason="so"),
        ev.AgentClosed(sub_agent_id=agent, step_idx=0, final_status="", close_reason=""),
    ]


@st.composite
def journals(draw: st.DrawFn) -> list[ev.Event]:
    """Up to thirty agents anywhere in a tree, each somewhere in its life."""
    parents: dict[str, str | None] = {"a0": None}
    for number in range(1, draw(st.integers(1, 30))):
        parents[f"a{number}"] = draw(st.sampled_from([*parents, "a0", "a0"]))
    ends = st.sampled_from(
        [Status.COMPLETED, Status.COMPLETED, Status.TIMEOUT, Status.CANCELLED, Status.ERROR]
    )
    lives = {}
    for agent in parents:
        whole = life(agent, draw(st.sampled_from("rt")), draw(st.sampled_from("xy")), draw(ends))
        lives[agent] = whole[: draw(st.sampled_from([1, 2, 4, 7, 7]))]
    events: list[ev.Event] = []
    for agent in parents:
        events.append(event_of(len(events) + 1, lives[agent].pop(0), agent, parents[agent]))
    closed: set[str] = set()

    def may_go_on(agent: str) -> bool:
        """A parent closes when its children are closed."""
        child_count = {child for child, parent in parents.items() if parent == agent}
        return bool(lives[agent]) and (len(lives[agent]) > 1 or child_count <= closed)

    while left := [agent for agent in parents if may_go_on(agent)]:
        agent = draw(st.sampled_from(left))
        fact = lives[agent].pop(0)
        events.append(event_of(len(events) + 1, fact, agent, parents[agent]))
        if isinstance(fact, ev.AgentClosed):
            closed.add(agent)
    return events


@given(journals(), st.data())
@settings(max_examples=30)
def test_no_failure_is_hidden(events: list[ev.Event], data: st.DataObject) -> None:
    tree = AgentTree()
    for one in events:
        tree.apply(one)
        if data.draw(st.integers(0, 9)) == 0:
            row = data.draw(st.sampled_from(tree.rows(NOW)))
            tree.set_expanded(row.key, not row.expanded)
    rows = tree.rows(NOW)
    counted = sum(
        row.count for row in rows if row.state is DisplayState.FAILED and not _unfolded(row)
    )
    # What is below a row that is shut is counted by it.
    counted += sum(row.failed_descendants for row in rows if not row.expanded)
    assert counted == len(tree.failures)


def _unfolded(row: TreeRow) -> bool:
    return row.count > 1 and row.expanded


@given(journals())
@settings(max_examples=30)
def test_rows_do_not_depend_on_when_they_are_read(events: list[ev.Event]) -> None:
    tree = AgentTree()
    for one in events:
        tree.apply(one)
        tree.rows(one.time)
    rows = tree.rows(NOW)
    assert rows == tree_of(events).rows(NOW)
    assert len({row.key for row in rows}) == len(rows)
    assert sum(tree.counts.values()) == len(tree.run.agents) - 1
    single = [row.agent_id for row in expand_all(tree) if row.count == 1 and row.path]
    assert sorted(single) == sorted(tree.run.agents)


async def test_undelivered_child_is_counted_once(record: Record) -> None:
    # A parent hears of an end a moment after it: until then its call is still under way.
    events = await record(led(*[f"Look {n}" for n in range(12)], Look=[say("ok")]))
    new_agent = max(e.seq for e in events if e.type == "agent.subagent_created")
    tree = AgentTree()
    for event in events:
        tree.apply(event)
        if event.seq >= new_agent:
            assert tree.current_counts()[DisplayState.WAITING] == tree.counts[DisplayState.WAITING]
            for row in tree.rows(NOW):
                assert "agents" not in row.activity or row.activity.endswith("of 12 agents")
