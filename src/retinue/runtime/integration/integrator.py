"""Integrate the work of all agents of one run: merge queues, change records and checks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from retinue.domain.agent_state import AgentState
from retinue.domain.contract import WorkspaceKind
from retinue.domain.events import FilesChanged, ForkOrigin
from retinue.domain.result import FileChange, Status
from retinue.domain.resume_point import ResumePoint
from retinue.errors import WorkspaceError
from retinue.ports.file_tree import FileTree
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.loop import AttemptOutcome
from retinue.runtime.agent.run_hooks import RunHooks
from retinue.runtime.integration.acceptance import check_in_place, must_check
from retinue.runtime.integration.baseline import Baseline
from retinue.runtime.integration.checks import Checks
from retinue.runtime.integration.merge_queue import (
    Authors,
    MergeQueue,
    MergeSlot,
    ResolveConflicts,
)
from retinue.runtime.integration.review import DiffReview


class AgentChangeRecorder:
    """Records the changes of the user's files that one agent makes. Implements `ChangeRecorder`.

    All agents of a run take their change numbers from `numbers` and append to `authors`.
    """

    def __init__(self, agent: Agent, numbers: Iterator[int], authors: Authors) -> None:
        self._agent = agent
        self.run_id, self.agent_id = agent.contract.parent.run_id, agent.id
        self._numbers = numbers
        self._authors = authors
        self._loop = asyncio.get_running_loop()

    def next_number(self) -> int:
        return next(self._numbers)

    def record(self, number: int, commit: str, files: tuple[FileChange, ...]) -> None:
        # Callbacks keep their order, so the loop records this before the caller of this thread
        # continues.
        self._loop.call_soon_threadsafe(self._record, number, commit, files)

    def _record(self, number: int, commit: str, files: tuple[FileChange, ...]) -> None:
        self._authors += _authors_of(self._agent.id, self._agent.path, files)
        self._agent.record(FilesChanged(number=number, commit=commit, files=files))


def _authors_of(agent_id: str, path: str, files: Iterable[FileChange]) -> Authors:
    return [(file.path, f"{agent_id} ({path})") for file in files]


class Integrator:
    """The merge queues of one run, one for each parent of writing children."""

    def __init__(
        self,
        project: FileTree,
        checks: Checks,
        review: DiffReview,
        resolve: ResolveConflicts,
        hooks: RunHooks,
    ) -> None:
        self._hooks = hooks
        self._project = project
        self._checks = checks
        self._review = review
        self._resolve = resolve
        self._change_numbers = itertools.count(1)
        self._authors: Authors = []
        self._queues: dict[str, MergeQueue] = {}
        self._slots: dict[str, MergeSlot] = {}

    def restore(self, last_change: int, changes: Iterable[tuple[AgentState, FilesChanged]]) -> None:
        """Continue after the changes of the user's files that an earlier process recorded."""
        self._change_numbers = itertools.count(last_change + 1)
        for agent, change in changes:
            self._authors += _authors_of(agent.id, agent.path, change.files)

    def queue_of(self, parent: Agent) -> MergeQueue:
        if parent.id not in self._queues:
            authors = self._authors if parent.files.tree is self._project else []
            self._queues[parent.id] = self._new_queue(parent.files.tree, authors)
        return self._queues[parent.id]

    def _new_queue(self, tree: FileTree, authors: Authors) -> MergeQueue:
        return MergeQueue(
            tree,
            self._checks,
            self._review,
            self.recorder_for,
            authors,
            self._resolve,
            self._hooks,
        )

    def enter_fork(
        self, root: Agent, origin: ForkOrigin, recovered: ResumePoint | None = None
    ) -> None:
        """Let the root of a fork work in a copy of the files at its origin. Its work is kept."""
        slot = self._new_queue(self._project, []).enter(root, Baseline(), recovered)
        slot.origin = origin
        self._slots[root.id] = slot

    def enter(
        self,
        child: Agent,
        parent: Agent,
        baseline: Baseline,
        recovered: ResumePoint | None = None,
    ) -> None:
        """Give `child` a slot in its parent's queue, unless it only reads."""
        if child.contract.execution.workspace is not WorkspaceKind.READONLY:
            self._slots[child.id] = self.queue_of(parent).enter(child, baseline, recovered)

    def slot_of(self, agent: Agent) -> MergeSlot | None:
        return self._slots.get(agent.id)

    def leave(self, agent: Agent) -> None:
        """Take a closed agent out of its queue. Synchronous, so a cancelled task can call it."""
        slot = self._slots.pop(agent.id, None)
        if slot is not None:
            slot.queue.leave(slot)

    def recorder_for(self, agent: Agent) -> AgentChangeRecorder | None:
        """Record changes of the user's files; changes inside a copy are not recorded."""
        if agent.files.tree is not self._project:
            return None
        return AgentChangeRecorder(agent, self._change_numbers, self._authors)

    @staticmethod
    def has_work(agent: Agent) -> bool:
        """Whether `agent` can have changed something, or has checks of its own."""
        contract = agent.contract
        reads_only = contract.execution.workspace is WorkspaceKind.READONLY
        return not reads_only or agent.files.recorder is not None or bool(contract.outputs.checks)

    async def check_ahead(self, agent: Agent) -> str:
        """Check the work of `agent` before it is proposed. Return why a check fails, or ""."""
        slot = self._slots.get(agent.id)
        with suppress(WorkspaceError), agent.waiting():
            if slot is not None and not slot.shared and slot.origin is None:
                return await slot.queue.check_ahead(slot)
            if must_check(agent, changed=_has_changed(agent, slot)):
                tree = agent.files.tree
                return await self._checks.run(agent, tree, await tree.snapshot(None))
        return ""  # `integrate` reports whatever is wrong with the files.

    async def check_in_turn(self, agent: Agent) -> str:
        """Check work that passed `check_ahead` again, once earlier siblings are merged.

        Return why a check fails, or "".
        """
        slot = self._slots.get(agent.id)
        if slot is not None and not slot.shared:
            with suppress(WorkspaceError), agent.waiting():
                return await slot.queue.check_in_turn(slot)
        return ""

    async def integrate(self, agent: Agent, outcome: AttemptOutcome) -> AttemptOutcome:
        """Merge and check the work of `agent`; return the final outcome."""
        slot = self._slots.get(agent.id)
        try:
            if slot is None or slot.shared or slot.origin is not None:
                changed = _has_changed(agent, slot)
                outcome = await check_in_place(agent, outcome, self._checks, changed=changed)
            if slot is not None and not slot.shared:
                outcome = await slot.queue.integrate(slot, outcome)
            return outcome
        except WorkspaceError as error:
            return msgspec.structs.replace(outcome, status=Status.ERROR, reason=str(error))


def _has_changed(agent: Agent, slot: MergeSlot | None) -> bool:
    """Whether files were changed by `agent`, or in a fork by the agent that it continues."""
    origin = None if slot is None else slot.origin
    return bool(agent.state.files_modified or (origin is not None and origin.base))
