"""A session: a chain of runs in which the root of each goes on with the conversation so far.

Nothing is kept for it. What was said is read back from the journals of its runs, message by
message, so that the prompt of a run begins with the bytes of the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from retinue.domain.agent_state import ROOT_ID
from retinue.domain.events import (
    AgentAttempted,
    AgentFailed,
    AgentWaiting,
    ContextCompacted,
    Event,
    RunFinished,
    RunStarted,
    RunSuspended,
    StepsRedone,
    StepsUndone,
    ToolFinished,
)
from retinue.domain.messages import Message, SystemMessage, UserMessage
from retinue.domain.result import Result, Status
from retinue.errors import RunError
from retinue.ports.run_lock import RunLocks
from retinue.ports.store import RunRow, Store
from retinue.runtime.agent.conversation import Conversation
from retinue.runtime.agent.transcript import Transcript
from retinue.runtime.history.audit import read_all

LAST = "last"  # No run is called so: ids have no l.
REWRITTEN = "[The user has since changed the files, by undo or redo. {what}]"
ENDED = "[This was ended before it was done: {why}]"


class Session(msgspec.Struct, frozen=True):
    """What the next run of a session goes on from.

    `runs` are those it has, oldest first; `messages` what was said in them, without the system
    message, which each run writes anew; `children` how many they had. `tainted` and
    `heard_untrusted` are what the root of the last one was when it ended.
    """

    runs: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    children: int = 0
    tainted: bool = False
    heard_untrusted: bool = False


NEW = Session()


async def recall(store: Store, run_locks: RunLocks, name: str) -> Session:
    """The session that the run `name` is part of; with "last", the latest.

    Raises UnknownRun, or RunError where somebody is at work on it.
    """
    rows = await store.session(None if name == LAST else name)
    if rows[-1].status is None and run_locks.is_held(rows[-1].id):
        raise RunError(
            f"The session is still at work, in run {rows[-1].id}; wait for it, or stop it with"
            f" `retinue cancel {rows[-1].id}`."
        )
    return await _told(store, rows)


async def chain(store: Store, runs: Sequence[str]) -> Session:
    """The session of exactly these runs, oldest first."""
    return await _told(store, [await store.run(run_id) for run_id in runs])


async def _told(store: Store, rows: Sequence[RunRow]) -> Session:
    journals: list[Sequence[Event]] = []
    for row in reversed(rows):
        if row.pruned:
            raise RunError(
                f"The session cannot go on: the journal of run {row.id} was cleaned away."
            )
        journals.append(await store.agent_events(row.id, ROOT_ID))
        if _began_anew(journals[-1]):
            break  # Nothing before that is in the conversation any more.
    messages: tuple[Message, ...] = ()
    for journal in reversed(journals):
        messages = said(journal, before=messages)
    tainted, heard_untrusted = (
        _taint(await read_all(store, rows[-1].id)) if rows else (False, False)
    )
    return Session(
        tuple(row.id for row in rows),
        messages,
        sum(max(row.agents - 1, 0) for row in rows),
        tainted,
        heard_untrusted,
    )


def _taint(events: Iterable[Event]) -> tuple[bool, bool]:
    """Whether a root was tainted, and wary, at the end of its run; the whole tree's journal."""
    tainted = heard_untrusted = False
    for event in events:
        match event.fact:
            case RunStarted() as started:
                tainted, heard_untrusted = started.tainted, started.heard_untrusted
            case ToolFinished(receipt=receipt) if receipt.untrusted:
                tainted = True
                heard_untrusted |= event.agent_id != ROOT_ID or receipt.command is None
    return tainted, heard_untrusted


async def earlier_result(store: Store, session: Session, agent_id: str) -> Result | None:
    """How a child of the root ended in an earlier run of the session, as far as it is told of."""
    for run_id in reversed(session.runs):
        events = await store.agent_events(run_id, agent_id)
        if not events or events[0].parent_agent_id != ROOT_ID:
            continue
        for event in reversed(events):
            match event.fact:
                case AgentWaiting(response=response):
                    return _result(run_id, agent_id, Status.COMPLETED, response)
                case AgentFailed(status=status, response=response, reason=reason):
                    return _result(run_id, agent_id, status, response, reason)
    return None


def _result(
    run_id: str, agent_id: str, status: Status, response: str, error: str | None = None
) -> Result:
    return Result(
        status=status,
        agent_id=agent_id,
        run_id=run_id,
        role="",
        task="",
        response=response,
        error=error,
    )


def said(events: Iterable[Event], *, before: Sequence[Message] = ()) -> tuple[Message, ...]:
    """The conversation of an agent as it stood at its end, without the system message.

    The journal is that of the agent, and `before` what its conversation went on from. Words about
    its budget are left out: they are not true any more.
    """
    script = Transcript(Conversation((SystemMessage(""),), (), before=before))
    finished: RunFinished | None = None
    left = "the process is gone"
    rewritten: list[str] = []
    for event in events:
        match event.fact:
            case AgentAttempted(opening=opening):
                script = Transcript(Conversation(opening, (), before=before))
            case RunFinished() as outcome:
                finished = outcome
            case RunSuspended(reason=reason):
                left = reason
            case StepsUndone() | StepsRedone():
                rewritten.append(event.summary)
            case fact:
                script.apply(fact)
    script.go_on()
    talk = script.talk
    if finished is None:
        talk.add(UserMessage(ENDED.format(why=left)))
    elif finished.status is not Status.COMPLETED:
        talk.add(UserMessage(ENDED.format(why=f"{finished.status}: {finished.reason}")))
    for what in rewritten:
        talk.add(UserMessage(REWRITTEN.format(what=what)))
    return tuple(talk.messages[1:])


def _began_anew(events: Iterable[Event]) -> bool:
    """Was the conversation summed up, so that it goes on from nothing else?"""
    anew = False
    for event in events:
        if event.type == "agent.subagent_attempt":
            anew = False
        elif event.type == "agent.context_compacted":
            fact = event.fact
            anew |= isinstance(fact, ContextCompacted) and fact.dropped > 0
    return anew
