"""Sessions: chains of runs in which the root of each continues the conversation of the last.

A session is not stored. Its conversation is read back from the journals of its runs, message by
message, so that the prompt of a run begins with the bytes of the prompt before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from retinue.domain.agent_state import ROOT_ID, AgentState, result_of
from retinue.domain.contract import title_of
from retinue.domain.events import ContextCompacted, ForkOrigin, RunStarted
from retinue.domain.messages import Message, UserMessage
from retinue.domain.result import Result, Status
from retinue.domain.run_state import RunState, fold, fold_agent
from retinue.errors import RunError
from retinue.ports.store import RunLocks, RunRow, Store
from retinue.runtime.history.audit import read_all
from retinue.runtime.history.recorded_conversation import load_conversation, rebuild
from retinue.runtime.history.recovery import check_sealed

LAST = "last"
"""Names the latest session. It cannot be the id of a run: ids have no letter l."""
TITLE = "title"
"""Kind of the run of a child that writes the title of a session. It is stored in the journal."""
FILES_REWRITTEN = "[The user has since changed the files, by undo or redo. {what}]"
ENDED = "[This was ended before it was done: {why}]"


class Session(msgspec.Struct, frozen=True):
    """A session, as its next run continues it."""

    runs: tuple[str, ...] = ()
    """Ids of its runs, oldest first."""
    messages: tuple[Message, ...] = ()
    """The conversation of their roots, without the system message, which each run writes anew."""
    last_child: int = 0
    """The highest number of a child of these runs."""
    tainted: bool = False
    read_untrusted: bool = False
    """Whether the last root had these marks when it ended, as in `AgentState`."""
    tool_limits: tuple[tuple[str, ...], ...] = ()
    """For a fork, the limits on tools that loaded skills had set, as in `AgentState`."""


NEW = Session()


class SessionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a list."""

    id: str
    """Id of its first run."""
    title: str
    """The title that it was given; otherwise the first line of its first task."""
    runs: int
    started_at: float
    last_run: RunRow


def session_entry(rows: Sequence[RunRow]) -> SessionEntry:
    """The session of these runs, latest first."""
    return SessionEntry(
        id=rows[0].session or rows[-1].id,
        title=rows[0].title or title_of(rows[-1].task),
        runs=len(rows),
        started_at=rows[-1].started_at,
        last_run=rows[0],
    )


async def list_sessions(store: Store, *, limit: int = 50) -> list[SessionEntry]:
    """The user's sessions among the latest 1,000 runs, the one with the latest run first."""
    found: dict[str, list[RunRow]] = {}
    for row in await store.runs(limit=1_000):
        if row.session is not None and row.sealed:
            found.setdefault(row.session, []).append(row)
    return [session_entry(rows) for rows in list(found.values())[:limit]]


async def user_runs(store: Store, *, limit: int = 50) -> list[RunRow]:
    """The latest runs that a user has asked for: those that write titles are left out."""
    # A session has one such run at most; those of many chats may be the latest ones.
    rows = await store.runs(limit=2 * limit + 100)
    return [row for row in rows if row.kind != TITLE][:limit]


async def latest_run(store: Store) -> RunRow | None:
    """The latest run that a user has asked for."""
    return next(iter(await user_runs(store, limit=1)), None)


async def load_session(store: Store, run_locks: RunLocks, name: str) -> Session:
    """The session that the run `name` is part of; with `LAST`, the latest session.

    Raises UnknownRun, or RunError if a process works on the session, or it is a stranger's.
    """
    rows = await store.session(None if name == LAST else name)
    if rows[-1].status is None and run_locks.is_held(rows[-1].id):
        raise RunError(
            f"The session is still at work, in run {rows[-1].id}; wait for it, or stop it with"
            f" `retinue cancel {rows[-1].id}`."
        )
    return await _read(store, rows)


async def session_of(store: Store, runs: Sequence[str]) -> Session:
    """The session of exactly these runs, oldest first."""
    return await _read(store, [await store.run(run_id) for run_id in runs])


async def earlier_session(store: Store, started: RunStarted) -> Session:
    """The session that the root of a run continues; for a fork, as it was at its origin."""
    if started.origin is not None:
        return await fork_session(store, started.origin)
    return await session_of(store, started.earlier)


async def fork_session(store: Store, origin: ForkOrigin) -> Session:
    """The conversation of an agent at the moment of `origin`, byte for byte."""
    row = await store.run(origin.run_id)
    check_sealed(row)
    if row.pruned:
        raise RunError(
            f"The journal of run {row.id} was cleaned away; a fork of it cannot be continued."
        )
    events = [one for one in await read_all(store, row.id) if one.seq <= origin.seq]
    state = fold(events)
    assert state.started is not None, "a journal begins with run.started"
    agent, earlier = state.agents[origin.agent_id], NEW
    if agent.id == ROOT_ID:
        earlier = await earlier_session(store, state.started)
    elif agent.continues:
        continued = await load_conversation(store, agent.continues)
        earlier = Session(messages=continued.messages)
    own = [event for event in events if event.agent_id == agent.id]
    point = fold_agent([event for event in own if not isinstance(event.fact, RunStarted)])
    messages = rebuild(point, earlier=earlier.messages, exact=True).messages[1:]
    tainted, read_untrusted = _taint(state, agent)
    return Session(
        messages=tuple(messages),
        last_child=max(row.last_child, earlier.last_child),
        tainted=tainted,
        read_untrusted=read_untrusted,
        tool_limits=(*earlier.tool_limits, *agent.tool_limits),
    )


async def find_earlier_result(store: Store, session: Session, agent_id: str) -> Result | None:
    """The result of a child that the root had in an earlier run of the session.

    The contract of the child is not read, so the result has neither task nor summary.
    """
    for run_id in reversed(session.runs):
        events = await store.agent_events(run_id, agent_id)
        if events and events[0].parent_agent_id == ROOT_ID:
            agent = fold_agent(events).agent
            if agent.has_ended:
                return result_of(
                    agent, run_id=run_id, task="", summary_tokens=0, duration_s=agent.duration_s
                )
    return None


async def _read(store: Store, rows: Sequence[RunRow]) -> Session:
    if not rows:
        return NEW
    states: list[RunState] = []
    for row in reversed(rows):
        check_sealed(row)
        if row.pruned:
            raise RunError(
                f"The session cannot be continued: the journal of run {row.id} was cleaned away."
            )
        # Whether the session is tainted is known from the last run, and from its whole tree.
        is_last = row is rows[-1]
        events = await (read_all(store, row.id) if is_last else store.agent_events(row.id, ROOT_ID))
        states.append(fold(events, detailed=True))
        if _is_summarized(states[-1]):
            break  # The summary stands for everything before it.
    messages: tuple[Message, ...] = ()
    first = states[-1].started
    if first is not None and first.origin is not None and not _is_summarized(states[-1]):
        messages = (await fork_session(store, first.origin)).messages
    for state in reversed(states):
        messages = _conversation(state, before=messages)
    tainted, read_untrusted = _taint(states[0], states[0].root)
    return Session(
        runs=tuple(row.id for row in rows),
        messages=messages,
        last_child=max(row.last_child for row in rows),
        tainted=tainted,
        read_untrusted=read_untrusted,
    )


def _taint(state: RunState, agent: AgentState | None) -> tuple[bool, bool]:
    """Whether `agent` is `tainted`, and has `read_untrusted`.

    A descendant that was never closed counts too: the agent may know some of its words.
    """
    if agent is None:
        assert state.started is not None, "a journal begins with run.started"
        return state.started.tainted, state.started.read_untrusted
    below = any(one.tainted for one in state.descendants(agent))
    return agent.tainted or below, agent.read_untrusted or below


def _conversation(state: RunState, *, before: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation of a root as it stood when its run ended, without the system message.

    `before` is the conversation that the run continued. Words about the budget of the run are left
    out: they are not true any more.
    """
    conversation = rebuild(state.resume_points.get(ROOT_ID), earlier=before)
    if state.status is None:
        why = state.suspend_reason or "the process is gone"
        conversation.add(UserMessage(ENDED.format(why=why)))
    elif state.status is not Status.COMPLETED:
        conversation.add(UserMessage(ENDED.format(why=f"{state.status}: {state.reason}")))
    for _, what in state.undo_history:
        conversation.add(UserMessage(FILES_REWRITTEN.format(what=what)))
    return tuple(conversation.messages[1:])


def _is_summarized(state: RunState) -> bool:
    """Whether the root's conversation was replaced by a summary."""
    point = state.resume_points.get(ROOT_ID)
    return point is not None and any(
        isinstance(fact, ContextCompacted) and fact.dropped > 0 for fact in point.conversation
    )
