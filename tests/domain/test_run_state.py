from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.domain import events as ev
from retinue.domain import run_state
from retinue.domain.agent_state import AgentState
from retinue.domain.approval import Answer
from retinue.domain.lifecycle import TRANSITIONS, State
from retinue.domain.messages import Timing, Usage
from retinue.domain.result import Check, FileChange, Receipt, Status, merge_changes
from retinue.domain.resume_point import FROM_CHILDREN
from retinue.domain.run_state import RunState, fold
from retinue.errors import IllegalTransition, UsageError
from tests.domain.events_of_a_run import event_of


def journal(*facts: ev.Fact) -> list[ev.Event]:
    return [event_of(seq, fact) for seq, fact in enumerate(facts, start=1)]


STARTED = ev.RunStarted(
    kind="run",
    task="Add auth",
    directory="/project",
    model="m",
    mode="auto",
    retinue_version="1",
    sandbox="full",
)


def created(agent: str = "a0", depth: int = 0) -> ev.AgentCreated:
    return ev.AgentCreated(
        sub_agent_id=agent,
        step_idx=depth,
        path=f"root/{agent}",
        depth=depth,
        role="coder",
        title=f"the work of {agent}",
        contract_sha256="0" * 64,
        notes=("narrowed",),
    )


# --- plausible runs ---------------------------------------------------------------------------

files = st.sampled_from(["a.py", "b.py", "c.md"])
changes = st.builds(
    FileChange, path=files, added=st.integers(0, 9), removed=st.integers(0, 9), new=st.booleans()
)
usages = st.builds(Usage, *[st.integers(0, 999)] * 4, estimated=st.booleans())
receipts = st.builds(
    Receipt,
    tool=st.just("edit"),
    ok=st.booleans(),
    output_sha256=st.just("0"),
    read=st.lists(files, max_size=2).map(tuple),
    changed=st.lists(changes, max_size=2).map(tuple),
)


@st.composite
def tool_uses(draw: st.DrawFn) -> list[ev.Fact]:
    if draw(st.booleans()):
        return [
            ev.ToolDenied(
                call_id="1",
                tool="shell",
                arguments="{}",
                content="not allowed",
                counted=draw(st.booleans()),
            )
        ]
    return [
        ev.ToolStarted(call_id="1", tool="edit", arguments="{}"),
        ev.ToolFinished(call_id="1", tool="edit", content="done", receipt=draw(receipts)),
    ]


@st.composite
def turns(draw: st.DrawFn, number: int) -> list[ev.Fact]:
    facts: list[ev.Fact] = [ev.TurnStarted(turn=number, of=9)]
    if draw(st.booleans()):
        facts.append(ev.ModelFailed(turn=number, error="busy", retry_in_s=1.0))
    facts.append(ev.ModelReplied(turn=number, content="working", usage=draw(usages)))
    for _ in range(draw(st.integers(0, 2))):
        facts += draw(tool_uses())
    return facts


@st.composite
def endings(draw: st.DrawFn, agent: str) -> list[ev.Fact]:
    failed = ev.AgentFailed(
        sub_agent_id=agent,
        status=draw(st.sampled_from([s for s in Status if s is not Status.COMPLETED])),
        reason="because",
        response=draw(st.sampled_from(["", "partial"])),
    )
    closed = ev.AgentClosed(
        sub_agent_id=agent, step_idx=0, final_status="failed", close_reason="closed by parent"
    )
    changed = draw(st.lists(changes, max_size=2).map(tuple))
    waiting = ev.ResultProposed(sub_agent_id=agent, response="the answer", files_modified=changed)
    merge_changes = ev.WorktreeMerged(base="b", commit="c")
    check = ev.CheckFinished(check=Check(command="test", exit_code=0, output_sha256="0"))
    step = ev.FilesChanged(number=draw(st.integers(1, 9)), commit="c", files=changed)
    kept = ev.UnmergedWorkKept(files=changed)
    completed = ev.AgentCompleted(sub_agent_id=agent)
    won = msgspec.structs.replace(closed, final_status="completed")
    return list(
        draw(
            st.sampled_from(
                [
                    (failed, closed),
                    (kept, failed, closed),
                    (waiting, kept, failed, closed),
                    (waiting, completed, won),
                    (waiting, merge_changes, check, step, completed, won),
                ]
            )
        )
    )


@st.composite
def lives(draw: st.DrawFn, agent: str, depth: int) -> list[ev.Fact]:
    """What one agent goes through; a crash may have cut it short anywhere after its creation."""
    facts: list[ev.Fact] = [created(agent, depth), ev.AgentStarted(sub_agent_id=agent)]
    for number in range(1, draw(st.integers(1, 2)) + 1):
        facts.append(ev.AttemptStarted(number=number, of=2, timeout_s=5.0, opening=()))
        for turn in range(1, draw(st.integers(0, 2)) + 1):
            facts += draw(turns(turn))
    if draw(st.booleans()):
        facts.append(ev.LimitReached(limit="max_turns", detail="9 of 9"))
    facts += draw(endings(agent))
    crashed = draw(st.booleans())
    return facts[: draw(st.integers(1, len(facts)))] if crashed else facts


@dataclass
class Story:
    events: list[ev.Event] = field(default_factory=list)
    lives: dict[str, list[ev.Fact]] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """A run of several agents whose events interleave in any way that time allows."""
    story = Story()
    depths: dict[str, int] = {}
    for number in range(draw(st.integers(1, 4))):
        agent = f"a{number}"
        parent = draw(st.sampled_from(sorted(depths))) if depths else None
        depths[agent] = 0 if parent is None else depths[parent] + 1
        story.parents[agent] = parent
        story.lives[agent] = draw(lives(agent, depths[agent]))
    story.events.append(event_of(1, STARTED))
    left = {agent: list(life) for agent, life in story.lives.items()}
    new_agent: set[str | None] = {None}
    while ready := [a for a, facts in left.items() if facts and story.parents[a] in new_agent]:
        agent = draw(st.sampled_from(ready))
        fact = left[agent].pop(0)
        seq = len(story.events) + 1
        story.events.append(event_of(seq, fact, agent, story.parents[agent]))
        new_agent.add(agent)
    return story


def state_after(life: list[ev.Fact]) -> State:
    state = State.CREATED
    for fact in life:
        match fact:
            case ev.AgentStarted():
                state = State.RUNNING
            case ev.ResultProposed():
                state = State.WAITING_FOR_MERGE
            case ev.AgentCompleted():
                state = State.COMPLETED
            case ev.AgentFailed():
                state = State.FAILED
            case ev.AgentClosed():
                state = State.CLOSED
    return state


@given(stories())
@settings(max_examples=50)
def test_state_is_what_happened(story: Story) -> None:
    view = fold(story.events)

    assert view.last_seq == len(story.events)
    assert set(view.agents) == set(story.lives)
    for agent, life in story.lives.items():
        seen = view.agents[agent]
        finished = [fact for fact in life if isinstance(fact, ev.ToolFinished)]
        started = [fact for fact in life if isinstance(fact, ev.ToolStarted)]
        denied = [fact for fact in life if isinstance(fact, ev.ToolDenied) and fact.counted]
        used = [fact.usage for fact in life if isinstance(fact, ev.ModelReplied)]
        changed = [change for fact in finished for change in fact.receipt.changed]
        attempts = [fact for fact in life if isinstance(fact, ev.AttemptStarted)]

        assert seen.state is state_after(life)
        assert seen.attempt == len(attempts)
        assert seen.tool_calls == len(started) + len(denied)
        assert seen.usage == sum(used, Usage())
        assert seen.receipts == [fact.receipt for fact in finished]
        assert set(seen.files_read) == {path for fact in finished for path in fact.receipt.read}
        assert seen.checks == [fact.check for fact in life if isinstance(fact, ev.CheckFinished)]
        assert seen.change_numbers == [
            fact.number for fact in life if isinstance(fact, ev.FilesChanged)
        ]
        assert seen.unmerged_files == next(
            (f.files for f in life if isinstance(f, ev.UnmergedWorkKept)), ()
        )
        assert seen.doing == ("" if seen.state is State.CLOSED else doing(life))
        proposed = next((fact for fact in life if isinstance(fact, ev.ResultProposed)), None)
        if proposed is not None:
            assert set(seen.files_modified) == {change.path for change in proposed.files_modified}
            continue
        assert set(seen.files_modified) == {change.path for change in changed}
        for path, total in seen.files_modified.items():
            same = [change for change in changed if change.path == path]
            assert total.added == sum(change.added for change in same)
            assert total.removed == sum(change.removed for change in same)
            assert total.new == any(change.new for change in same)


def doing(life: list[ev.Fact]) -> str:
    return "" if len(life) == 1 else str(life[-1])


@given(stories())
@settings(max_examples=50)
def test_children_and_usage_follow_the_tree(story: Story) -> None:
    view = fold(story.events)

    assert view.root is view.agents["a0"]
    for agent, parent in story.parents.items():
        assert view.agents[agent].parent_id == parent
        children = [event.agent_id for event in story.events if is_birth_below(event, agent)]
        assert view.agents[agent].children == children
    total = view.usage
    assert total == sum((seen.usage for seen in view.agents.values()), Usage())


def is_birth_below(event: ev.Event, parent: str) -> bool:
    return event.parent_agent_id == parent and event.type == "agent.subagent_created"


@given(stories())
@settings(max_examples=50)
def test_applying_one_by_one_equals_folding_at_once(story: Story) -> None:
    following = RunState()
    for count, one in enumerate(story.events, start=1):
        assert following.apply(one) is following
        assert following == fold(story.events[:count])


@given(stories(), st.data())
@settings(max_examples=50)
def test_folding_does_not_change_an_earlier_state(story: Story, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(story.events)))
    earlier = fold(story.events[:cut])
    kept = copy.deepcopy(earlier)

    fold(story.events)

    assert earlier == kept


WITHOUT_CHANGE: list[type[ev.Fact]] = [
    ev.CommandReceived,
    ev.ContextCompacted,
    ev.HookFinished,
    ev.SilenceDetected,
    ev.CircuitBreakerTripped,
    ev.LimitReached,
    ev.RaceForecast,
    ev.WorktreeCreated,
    ev.WorktreeMerged,
    ev.PlanStepStarted,
    ev.PlanStepFinished,
]
"""Facts of an agent that change nothing but what it is `doing`."""


def test_every_fact_is_applied_or_known_to_change_nothing() -> None:
    cases = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(AgentState.apply))))
    classes = [case.cls for case in cases if isinstance(case, ast.MatchClass)]
    changing = [getattr(ev, cls.attr) for cls in classes if isinstance(cls, ast.Attribute)]
    applied = [*run_state.CHANGES, *changing, *WITHOUT_CHANGE]
    assert len(applied) == len(set(applied))
    assert {*applied} == {*get_args(ev.Fact)}


# --- single facts -----------------------------------------------------------------------------

LIFE: dict[State, ev.Fact] = {
    State.RUNNING: ev.AgentStarted(sub_agent_id="a0"),
    State.WAITING_FOR_MERGE: ev.ResultProposed(sub_agent_id="a0", response="the answer"),
    State.COMPLETED: ev.AgentCompleted(sub_agent_id="a0"),
    State.FAILED: ev.AgentFailed(sub_agent_id="a0", status=Status.ERROR, reason="because"),
    State.CLOSED: ev.AgentClosed(
        sub_agent_id="a0", step_idx=0, final_status="failed", close_reason="closed by parent"
    ),
}
ROADS: dict[State, list[State]] = {
    State.CREATED: [],
    State.RUNNING: [State.RUNNING],
    State.WAITING_FOR_MERGE: [State.RUNNING, State.WAITING_FOR_MERGE],
    State.COMPLETED: [State.RUNNING, State.WAITING_FOR_MERGE, State.COMPLETED],
    State.FAILED: [State.FAILED],
    State.CLOSED: [State.FAILED, State.CLOSED],
}


@pytest.mark.parametrize("to", LIFE)
@pytest.mark.parametrize("current", State)
def test_only_legal_transitions_are_applied(current: State, to: State) -> None:
    events = journal(created(), *(LIFE[state] for state in ROADS[current]), LIFE[to])
    view = fold(events[:-1])
    assert view.agents["a0"].state is current

    if to in TRANSITIONS[current]:
        view.apply(events[-1])
        assert view.agents["a0"].state is to
    else:
        with pytest.raises(IllegalTransition, match=f"from {current} to {to}"):
            view.apply(events[-1])
        assert view.agents["a0"].state is current


def test_run_from_start_to_finish() -> None:
    finished = ev.RunFinished(status=Status.ERROR, reason="no model")
    view = fold(journal(msgspec.structs.replace(STARTED, earlier=("k3f9",)), finished))

    assert (view.id, view.kind, view.task, view.directory) == (
        "run",
        "run",
        "Add auth",
        "/project",
    )
    assert (view.model, view.mode, view.sandbox) == ("m", "auto", "full")
    assert view.earlier_runs == ("k3f9",)
    assert (view.started_at, view.finished_at) == (101.0, 102.0)
    assert (view.status, view.reason) == (Status.ERROR, "no model")
    assert view.root is None


def test_nothing_is_known_of_a_run_before_its_first_event() -> None:
    state = fold([])
    texts = (state.id, state.kind, state.task, state.directory, state.model, state.mode)
    assert {*texts, state.sandbox, state.reason} == {""}
    numbers = (state.started_at, state.pruned, state.last_seq, state.last_at, state.idle_s)
    assert {*numbers, state.given_tasks} == {0}
    assert (state.usage, state.root, state.status, state.plan) == (Usage(), None, None, None)


def test_created_agent() -> None:
    agent = fold(journal(created())).agents["a0"]
    given = {"id", "path", "role", "title", "contract_sha256", "notes", "state", "created_at"}
    for name, value in msgspec.structs.asdict(agent).items():
        if name not in given and name not in ("usage", "timing", "doing"):
            assert not value, name

    assert (agent.path, agent.role, agent.title) == ("root/a0", "coder", "the work of a0")
    assert (agent.depth, agent.step_idx, agent.notes) == (0, 0, ("narrowed",))
    assert agent.contract_sha256 == "0" * 64
    assert agent.created_at == 101.0
    assert agent.status is None


def test_completed_agent() -> None:
    states = (State.RUNNING, State.WAITING_FOR_MERGE, State.COMPLETED, State.CLOSED)
    agent = fold(journal(created(), *(LIFE[state] for state in states))).agents["a0"]

    assert agent.status is Status.COMPLETED
    assert agent.response == "the answer"
    assert agent.close_reason == "closed by parent"
    assert agent.duration_s == 3.0
    assert agent.error == ""


@pytest.mark.parametrize(("late", "kept"), [("", "the answer"), ("better", "better")])
def test_failed_integration_keeps_the_response(late: str, kept: str) -> None:
    failed = ev.AgentFailed(
        sub_agent_id="a0", status=Status.CONFLICT, reason="merge", response=late
    )
    agent = fold(
        journal(created(), LIFE[State.RUNNING], LIFE[State.WAITING_FOR_MERGE], failed)
    ).agents["a0"]

    assert (agent.status, agent.error, agent.response) == (Status.CONFLICT, "merge", kept)


def test_agent_that_never_started_has_no_duration() -> None:
    agent = fold(journal(created(), LIFE[State.FAILED], LIFE[State.CLOSED])).agents["a0"]

    assert agent.duration_s == 0.0


def test_each_attempt_counts_its_turns_anew() -> None:
    facts: list[ev.Fact] = [
        created(),
        LIFE[State.RUNNING],
        ev.AttemptStarted(number=1, of=2, timeout_s=5.0, opening=()),
        ev.TurnStarted(turn=4, of=9),
        ev.AttemptStarted(number=2, of=2, timeout_s=5.0, opening=()),
    ]
    before, after = fold(journal(*facts[:-1])).agents["a0"], fold(journal(*facts)).agents["a0"]

    assert (before.attempt, before.turn, before.max_turns) == (1, 4, 9)
    assert (after.attempt, after.turn) == (2, 0)


@given(changes, changes, changes)
def test_merging_changes_is_associative(a: FileChange, b: FileChange, c: FileChange) -> None:
    a, b, c = (msgspec.structs.replace(change, path="a.py") for change in (a, b, c))

    assert merge_changes(merge_changes(a, b), c) == merge_changes(a, merge_changes(b, c))
    assert merge_changes(None, a) == a
    assert merge_changes(a, b).added == a.added + b.added


def test_timings_add_up() -> None:
    timing = Timing(queued_s=1.0, first_token_s=0.5, generating_s=2.0)
    replies = (
        ev.ModelReplied(turn=turn, content="", timing=timing, model=model)
        for turn, model in ((1, "a"), (2, "b"), (3, "a"))
    )
    view = fold(journal(STARTED, created(), ev.AgentStarted(sub_agent_id="a0"), *replies))
    assert view.agents["a0"].timing == Timing(queued_s=3.0, first_token_s=1.5, generating_s=6.0)
    assert str(view.agents["a0"].timing) == "queued 3.0s, first token 1.5s, generating 6.0s"
    assert list(view.agents["a0"].models) == ["a", "b"]


# --- what an agent takes over from its tools and children -------------------------------------


def tool(call: str, name: str = "fetch", arguments: str = "{}", **seen: Any) -> list[ev.Fact]:
    receipt = Receipt(tool=name, ok=True, output_sha256="0", **seen)
    return [
        ev.ToolStarted(call_id=call, tool=name, arguments=arguments),
        ev.ToolFinished(call_id=call, tool=name, content="", receipt=receipt),
    ]


def run_of(*life: tuple[str, str | None, list[ev.Fact]]) -> RunState:
    facts: list[tuple[str, str | None, ev.Fact]] = [("a0", None, STARTED)]
    facts += [(agent, parent, fact) for agent, parent, some in life for fact in some]
    events = [
        event_of(seq, fact, agent, up) for seq, (agent, up, fact) in enumerate(facts, start=1)
    ]
    return fold(events, detailed=True)


def working(agent: str, depth: int = 0) -> list[ev.Fact]:
    return [
        created(agent, depth),
        ev.AgentStarted(sub_agent_id=agent),
        ev.AttemptStarted(number=1, of=1, timeout_s=5.0, opening=()),
    ]


CLOSED = [LIFE[State.FAILED], LIFE[State.CLOSED]]


@pytest.mark.parametrize(
    ("seen", "tainted", "heard"),
    [
        ({}, False, False),
        ({"untrusted": True}, True, True),
        ({"untrusted": True, "command": "curl x"}, True, False),
    ],
)
def test_untrusted_receipts_taint_an_agent(
    seen: dict[str, Any], tainted: bool, heard: bool
) -> None:
    agent = run_of(("a0", None, [*working("a0"), *tool("1", **seen)])).agents["a0"]
    assert (agent.tainted, agent.read_untrusted) == (tainted, heard)


def test_closed_child_taints_its_parent() -> None:
    child = [*working("a1", 1), *tool("1", untrusted=True, command="curl x")]
    open_child = run_of(("a0", None, working("a0")), ("a1", "a0", child))
    closed = run_of(("a0", None, working("a0")), ("a1", "a0", child + CLOSED))
    program = run_of(("a0", None, [created("a0")]), ("a1", "a0", child + CLOSED))

    assert not open_child.agents["a0"].tainted
    assert closed.agents["a0"].tainted
    assert closed.agents["a0"].read_untrusted
    # A program has no conversation that could mislead it.
    assert program.agents["a0"].tainted
    assert not program.agents["a0"].read_untrusted


@pytest.mark.parametrize(("tainted", "heard"), [(True, False), (True, True), (False, False)])
def test_root_that_continues_a_session_has_read_what_the_session_has(
    tainted: bool, heard: bool
) -> None:
    started = msgspec.structs.replace(STARTED, tainted=tainted, read_untrusted=heard)
    state = fold([*journal(started, created()), event_of(3, created("a1", 1), "a1", "a0")])
    found = [(agent.tainted, agent.read_untrusted) for agent in state.agents.values()]
    assert found == [(tainted, heard), (False, heard)]


def test_message_to_a_child_is_unread_until_received() -> None:
    sent = tool("2", "agent_message", '{"id": "[A1]", "text": "hurry"}')
    before = [("a0", None, working("a0")), ("a1", "a0", working("a1", 1))]
    send: list[ev.Fact] = [*tool("1", untrusted=True), *sent]
    told = ev.MessageReceived(content="hurry", source="parent")

    unread = run_of(*before, ("a0", None, send))
    read = run_of(*before, ("a0", None, send), ("a1", "a0", [told]))

    assert unread.resume_points["a1"].unread == ["hurry"]
    assert unread.agents["a1"].read_untrusted
    assert read.resume_points["a1"].unread == []


def test_message_that_was_not_sent_is_not_unread() -> None:
    started, finished = tool("2", "agent_message", '{"id": "a1", "text": "hurry"}')
    assert isinstance(finished, ev.ToolFinished)
    failed = msgspec.structs.replace(finished, failed=True)
    state = run_of(
        ("a0", None, working("a0")),
        ("a1", "a0", working("a1", 1)),
        ("a0", None, [*tool("1", untrusted=True), started, failed]),
    )
    assert state.resume_points["a1"].unread == []
    assert not state.agents["a1"].read_untrusted


@pytest.mark.parametrize("continued", [False, True])
def test_a_new_conversation_knows_no_children_of_the_one_before(continued: bool) -> None:
    told: list[ev.Fact] = [
        ev.TurnStarted(turn=1, of=9),
        ev.MessageReceived(content="a1 is done", source=FROM_CHILDREN, about=("a1",)),
    ]
    attempt = ev.AttemptStarted(number=2, of=2, timeout_s=5.0, opening=(), continued=continued)
    child = ("a1", "a0", [*working("a1", 1), *CLOSED])
    before = run_of(("a0", None, working("a0")), child, ("a0", None, told))
    after = run_of(("a0", None, working("a0")), child, ("a0", None, [*told, attempt]))
    point = before.resume_points["a0"]
    assert (point.children, point.delivered, point.conversation) == (["a1"], {"a1"}, told)
    point = after.resume_points["a0"]
    if continued:
        assert (point.children, point.delivered) == (["a1"], {"a1"})
        assert point.conversation == [*told, attempt]
    else:
        assert (point.children, point.delivered, point.conversation) == ([], set(), [])
    assert point.attempt_time.seconds == 0.0
    assert point.lifetime.seconds > 0


def test_only_a_detailed_state_has_resume_points() -> None:
    events = journal(STARTED, *working("a0"), ev.TurnStarted(turn=1, of=9))
    assert fold(events).resume_points == {}
    point = fold(events, detailed=True).resume_points["a0"]
    assert point.opening == ()
    assert point.conversation == [ev.TurnStarted(turn=1, of=9)]


def test_durations_leave_out_the_time_without_a_process() -> None:
    def at(time: float, epoch: int, fact: ev.Fact, agent: str = "a0") -> ev.Event:
        parent = None if agent == "a0" else "a0"
        return msgspec.structs.replace(event_of(1, fact, agent, parent), time=time, epoch=epoch)

    def created(agent: str) -> ev.Fact:
        return ev.AgentCreated(
            sub_agent_id=agent, step_idx=0, path=agent, depth=0, role="r", title="t",
            contract_sha256="", notes=(), origin_key="", background=False,
        )  # fmt: skip

    def ended(agent: str) -> list[ev.Fact]:
        closed = ev.AgentClosed(
            sub_agent_id=agent, step_idx=0, final_status="completed", close_reason="done"
        )
        proposed = ev.ResultProposed(sub_agent_id=agent, response="", files_modified=())
        return [proposed, ev.AgentCompleted(sub_agent_id=agent), closed]

    run = ev.RunStarted(
        kind="program", task="t", directory="/", model="m", mode="auto", retinue_version="1",
        sandbox="none",
    )  # fmt: skip
    facts: list[tuple[float, int, ev.Fact, str]] = [
        (100, 1, run, "a0"),
        (100, 1, created("a0"), "a0"),
        (100, 1, ev.AgentStarted(sub_agent_id="a0"), "a0"),
        *((100, 1, fact(name), name) for name in ("a1", "a2") for fact in (created,)),
        (101, 1, ev.AgentStarted(sub_agent_id="a1"), "a1"),
        (101, 1, ev.AgentStarted(sub_agent_id="a2"), "a2"),
        *((103, 1, fact, "a1") for fact in ended("a1")),
        (1_003, 2, ev.RunResumed(retinue_version="1", sandbox="none"), "a0"),
        *((1_005, 2, fact, "a2") for fact in ended("a2")),
        *((1_006, 2, fact, "a0") for fact in ended("a0")),
        (1_006, 2, ev.RunFinished(status=Status.COMPLETED, reason=""), "a0"),
    ]
    view = fold(at(time, epoch, fact, agent) for time, epoch, fact, agent in facts)
    assert view.duration_s == 6.0
    assert [agent.duration_s for agent in view.agents.values()] == [6.0, 2.0, 4.0]
    # As if all had been made by the process that resumed the run.
    assert [agent.created_at for agent in view.agents.values()] == [1_000.0] * 3


def test_open_agents_are_paused_until_the_run_is_resumed() -> None:
    life = (("a0", None, working("a0")), ("a1", "a0", [*working("a1", 1), *CLOSED]))
    suspended = run_of(*life, ("a0", None, [ev.RunSuspended(reason="the user has left")]))
    assert suspended.suspend_reason == "the user has left"
    assert suspended.agents["a0"].paused_at == suspended.last_at
    assert suspended.agents["a1"].paused_at is None
    resume = ev.RunResumed(retinue_version="1", sandbox="none")
    resumed = run_of(*life, ("a0", None, [ev.RunSuspended(reason="gone"), resume]))
    assert resumed.suspend_reason is None
    assert resumed.agents["a0"].paused_at is None


def test_child_alone_is_what_it_is_in_the_run() -> None:
    life: list[ev.Fact] = [
        *working("a1", 1),
        ev.TurnStarted(turn=1, of=2),
        ev.ModelReplied(turn=1, content="Looking.", usage=Usage(9, 0, 3)),
        *tool("1"),
    ]
    facts: list[tuple[str | None, ev.Fact]] = [(None, STARTED), (None, created())]
    facts += [("a0", fact) for fact in life]
    events = [
        event_of(seq, fact, "a0" if up is None else "a1", up)
        for seq, (up, fact) in enumerate(facts, start=1)
    ]
    alone = run_state.fold_agent(events[2:])
    whole = fold(events, detailed=True).resume_points["a1"]
    assert alone.agent == whole.agent
    assert alone.conversation == whole.conversation != []


def test_cleaned_journal_keeps_the_agents_and_their_tree() -> None:
    def left(id: str, parent: str | None) -> ev.AgentRecord:
        return ev.AgentRecord(
            id=id, parent_id=parent, path=id, role="coder", title="", depth=0, step_idx=0,
            contract_sha256="0", state=State.CLOSED, status=Status.ERROR, error="because",
            created_at=1.0, started_at=2.0, closed_at=5.0,
        )  # fmt: skip

    pruned = ev.RunPruned(
        events=7, head_hash="0" * 64, kind="run", task="Add auth", directory="/project", model="m",
        mode="auto", sandbox="full", started_at=1.0, finished_at=9.0, status=Status.ERROR,
        reason="because", earlier=("k3f9",), usage=Usage(1, 0, 2), rewritten=((3.0, "undone"),),
        agents=(left("a0", None), left("a1", "a0"), left("a2", "a1")), idle_s=4.0,
    )  # fmt: skip
    state = fold([event_of(8, pruned)])
    assert [agent.children for agent in state.agents.values()] == [["a1"], ["a2"], []]
    assert {agent.status for agent in state.agents.values()} == {Status.ERROR}
    assert [agent.duration_s for agent in state.agents.values()] == [3.0] * 3
    assert (state.id, state.pruned, state.duration_s) == ("run", 7, 4.0)
    assert (state.kind, state.task, state.directory) == ("run", "Add auth", "/project")
    assert (state.model, state.mode, state.sandbox) == ("m", "auto", "full")
    assert (state.status, state.reason, state.earlier_runs) == (Status.ERROR, "because", ("k3f9",))
    assert (state.usage, state.undo_history) == (Usage(1, 0, 2), [(3.0, "undone")])


def test_time_that_was_lost_is_no_work_time() -> None:
    gap = ev.ClockGapDetected(stalled_s=0.25, jumped_s=0.5)
    before = fold(journal(STARTED, created(), gap), detailed=True)
    without = fold(journal(STARTED, created(), ev.TurnStarted(turn=1, of=2)), detailed=True)
    assert without.work_time.seconds - before.work_time.seconds == 0.75


def test_lost_time_is_not_charged_to_agents_that_are_open() -> None:
    turn = ev.TurnStarted(turn=1, of=2)
    life = (
        ("a0", None, [*working("a0"), turn]),
        ("a1", "a0", [*working("a1", 1), turn, *CLOSED]),
    )
    gap = ev.ClockGapDetected(stalled_s=0.25, jumped_s=0.5)
    before, after = run_of(*life), run_of(*life, ("a0", None, [gap]))

    def times(state: RunState, agent: str) -> tuple[float | None, float, float]:
        point = state.resume_points[agent]
        return point.agent.started_at, point.lifetime.seconds, point.attempt_time.seconds

    assert times(before, "a0") == (103.0, 2.0, 1.0)
    assert times(after, "a0") == (103.5, 1.25, 0.25)
    assert times(after, "a1") == times(before, "a1")


def test_durations_leave_out_the_time_that_a_question_was_open() -> None:
    asks = ev.ApprovalRequested(tool="write_file", wanted="a", why="mode")
    answer = ev.ApprovalDecided(
        tool="write_file", wanted="a", why="mode", answer=Answer.YES, request=6
    )
    facts: list[tuple[float, str, ev.Fact]] = [
        (0.0, "a0", STARTED),
        (0.0, "a0", created()),
        (1.0, "a0", ev.AgentStarted(sub_agent_id="a0")),
        (1.0, "a1", created("a1", 1)),
        (2.0, "a1", ev.AgentStarted(sub_agent_id="a1")),
        (3.0, "a1", asks),
        (63.0, "a1", answer),
        (64.0, "a1", ev.TurnStarted(turn=1, of=2)),
    ]
    state = RunState()
    for seq, (time, agent, fact) in enumerate(facts, 1):
        parent = None if agent == "a0" else "a0"
        state.apply(msgspec.structs.replace(event_of(seq, fact, agent, parent), time=time))
        if seq == 6:
            assert [a.asked_at for a in state.agents.values()] == [3.0, 3.0]
    assert [a.asked_at for a in state.agents.values()] == [None, None]
    assert [a.started_at for a in state.agents.values()] == [61.0, 62.0]
    assert state.idle_s == 60.0


def test_durations_leave_out_a_question_that_was_open_when_the_process_was_killed() -> None:
    asks = ev.ApprovalRequested(tool="write_file", wanted="a", why="mode")
    answer = ev.ApprovalDecided(
        tool="write_file", wanted="a", why="mode", answer=Answer.YES, request=7
    )
    facts: list[tuple[float, ev.Fact]] = [
        (0.0, STARTED),
        (0.0, created()),
        (1.0, ev.AgentStarted(sub_agent_id="a0")),
        (4.0, asks),
        (5.0, ev.TurnStarted(turn=1, of=2)),
        (100.0, ev.RunResumed(retinue_version="1", sandbox="full")),
        (100.0, asks),
        (160.0, answer),
        (161.0, LIFE[State.FAILED]),
        (161.0, LIFE[State.CLOSED]),
        (161.0, ev.RunFinished(status=Status.ERROR)),
    ]
    state = RunState()
    for seq, (time, fact) in enumerate(facts, 1):
        state.apply(msgspec.structs.replace(event_of(seq, fact), time=time))
    root = state.agents["a0"]
    # From 1 to 4, and from 160 to 161. The journal is silent from 5 to 100.
    assert root.duration_s == 4.0
    assert state.duration_s == 5.0


def test_run_is_idle_while_its_root_asks() -> None:
    asks = ev.ApprovalRequested(tool="write_file", wanted="a", why="mode")
    answer = ev.ApprovalDecided(
        tool="write_file", wanted="a", why="mode", answer=Answer.YES, request=4
    )
    state = fold(journal(STARTED, created(), ev.AgentStarted(sub_agent_id="a0"), asks, answer))
    assert state.idle_s == 1.0
    assert state.agents["a0"].started_at == 104.0


def test_wait_for_two_questions_lasts_from_the_first_to_the_last_answer() -> None:
    def answered(request: int) -> list[ev.Fact]:
        return [
            ev.ApprovalDecided(
                tool="write_file", wanted="a", why="mode", answer=Answer.YES, request=request
            )
        ]

    asked = (
        ("a0", None, working("a0")),
        ("a1", "a0", [*working("a1", 1), ASKS]),
        ("a2", "a0", [*working("a2", 1), ASKS]),
        ("a1", "a0", answered(8)),
    )
    one_open = run_of(*asked)
    assert [(a.questions, a.asked_at) for a in one_open.agents.values()] == [
        (1, 108.0),
        (0, None),
        (1, 112.0),
    ]
    assert one_open.idle_s == 0.0
    none_open = run_of(*asked, ("a2", "a0", answered(12)))
    assert [(a.questions, a.asked_at) for a in none_open.agents.values()] == [(0, None)] * 3
    # The root waited from 108 to 114, its children for 5 and for 2 seconds.
    assert [a.started_at for a in none_open.agents.values()] == [109.0, 111.0, 112.0]
    assert none_open.idle_s == 6.0


def test_state_that_is_not_detailed_keeps_no_tasks() -> None:
    given = ev.TasksSubmitted(first=0, tasks=(msgspec.Raw(b"{}"),) * 2, max_concurrent=1)
    events = journal(created(), given, given)
    assert (len(fold(events).tasks), len(fold(events, detailed=True).tasks)) == (0, 2)
    assert fold(events).given_tasks == 4


def test_changes_of_the_users_files_are_kept_with_their_agents_in_a_detailed_state() -> None:
    changed = ev.FilesChanged(number=1, commit="c" * 40, files=(FileChange(path="a.py"),))
    events = journal(STARTED, *working("a0"), changed)
    detailed = fold(events, detailed=True)
    assert detailed.file_changes == [(detailed.agents["a0"], changed)]
    assert fold(events).file_changes == []
    assert fold(events).agents["a0"].change_numbers == [1]


def test_agents_are_found_by_id_and_by_path() -> None:
    state = fold(journal(STARTED, created()))
    assert state.agent("a0") is state.agent("root/a0") is state.root
    with pytest.raises(UsageError) as unknown:
        state.agent("a7")
    assert str(unknown.value) == "No agent 'a7' in run run; there are: a0 (root/a0)."


def test_descendants_of_an_agent_are_below_its_path() -> None:
    grandchild = msgspec.structs.replace(created("a3", 2), path="root/a1/a3")
    root = msgspec.structs.replace(created(), path="root")
    state = run_of(
        ("a0", None, [root]),
        ("a1", "a0", [created("a1", 1)]),
        ("a10", "a0", [created("a10", 1)]),
        ("a3", "a1", [grandchild]),
    )
    below = {id: [one.id for one in state.descendants(a)] for id, a in state.agents.items()}
    assert below == {"a0": ["a1", "a10", "a3"], "a1": ["a3"], "a10": [], "a3": []}


def test_a_run_is_open_until_it_is_over_or_suspended() -> None:
    begun = journal(STARTED, created())
    resumed = ev.RunResumed(retinue_version="1", sandbox="none")
    state = fold(begun)
    assert (state.is_open, state.duration_s) == (True, None)
    assert not state.apply(event_of(3, ev.RunSuspended(reason="gone"))).is_open
    assert state.apply(event_of(4, resumed)).is_open
    state.apply(event_of(5, ev.RunFinished(status=Status.COMPLETED)))
    # From 101 to 105, without the second until it was resumed.
    assert (state.is_open, state.duration_s) == (False, 3.0)


def test_agents_of_an_abandoned_run_are_paused_at_its_last_event() -> None:
    state = run_of(("a0", None, working("a0")), ("a1", "a0", [*working("a1", 1), *CLOSED]))
    run_state.abandon(state)
    assert [agent.paused_at for agent in state.agents.values()] == [state.last_at, None]
    assert state.last_at == 109.0


def asking(agent: str, call: str) -> list[ev.Fact]:
    """A call of a tool that puts a question to the user, and its end."""
    return tool(call, "ask_user", '{"question": "Which?"}')


def test_durations_leave_out_a_question_of_the_agent_until_it_is_answered() -> None:
    begun = [*working("a0"), *asking("a0", "1")]
    asked = run_of(("a0", None, begun[:-1])).agents["a0"]
    answered = run_of(("a0", None, begun))
    assert (asked.questions, asked.asked_at, asked.started_at) == (1, 105.0, 103.0)
    root = answered.agents["a0"]
    assert (root.questions, root.asked_at, root.started_at) == (0, None, 104.0)
    assert answered.idle_s == 1.0


def test_a_question_that_ended_with_its_process_is_not_ended_again() -> None:
    """The process that resumes the run records that the call was interrupted."""
    started, finished = asking("a0", "1")
    resumed = ev.RunResumed(retinue_version="1", sandbox="none")
    state = run_of(("a0", None, [*working("a0"), started, resumed, finished]))
    root = state.agents["a0"]
    # A second in which no process worked, and before it none in which the question was open.
    assert (root.questions, root.asked_at, root.started_at) == (0, None, 104.0)
    assert state.idle_s == 1.0


ASKS = ev.ApprovalRequested(tool="write_file", wanted="a", why="mode")


@pytest.mark.parametrize(
    "end",
    [
        [ev.AgentPlaced(host="h1", placement=2)],
        [ev.AttemptStarted(number=2, of=2, timeout_s=5.0, opening=())],
        [LIFE[State.FAILED], LIFE[State.CLOSED]],
    ],
    ids=lambda facts: type(facts[0]).__name__,
)
def test_a_request_ends_with_the_attempt_that_it_was_made_in(end: list[ev.Fact]) -> None:
    """Nobody answers it any more, and neither the agent nor its parent waits for an answer."""
    state = run_of(("a0", None, working("a0")), ("a1", "a0", [*working("a1", 1), ASKS, *end]))
    found = [(agent.questions, agent.asked_at) for agent in state.agents.values()]
    assert found == [(0, None), (0, None)]
    assert state.agents["a1"].requests == {}


def test_conversation_of_a_closed_child_is_dropped() -> None:
    """A run can have ten thousand agents."""
    replied: list[ev.Fact] = [
        ev.TurnStarted(turn=1, of=2),
        ev.ModelReplied(turn=1, content="Done."),
    ]
    life = [*working("a1", 1), *replied]
    at_work = run_of(("a0", None, working("a0")), ("a1", "a0", life))
    assert at_work.resume_points["a1"].conversation == replied
    closed = run_of(("a0", None, working("a0")), ("a1", "a0", [*life, *CLOSED]))
    assert closed.resume_points["a1"].conversation == []
