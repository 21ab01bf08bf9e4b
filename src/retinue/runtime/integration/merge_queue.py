"""Merge the work of writing children into their parent's files, in the order of their steps.

Each writing child gets a slot when it is made. It may start when earlier siblings that write in the
same places are closed. Its work is merged when all earlier siblings of its queue are closed: in the
order of the steps, whatever order the children finish in. The state that a child starts from
depends on that order only, not on timing, so the same plan makes the same commits.

Background children have a queue of their own, and so has each step of a plan: no other child waits
for them, unless both write in the same places.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count

import msgspec

from retinue.domain.contract import OnConflict, WorkspaceKind
from retinue.domain.events import ForkOrigin, UnmergedWorkKept, WorktreeCreated, WorktreeMerged
from retinue.domain.result import Conflict, Status
from retinue.domain.resume_point import ResumePoint
from retinue.domain.scope import ANYWHERE, Scope, WriteLocks, overlap
from retinue.errors import RunSuspended, WorkspaceError
from retinue.ports.file_tree import ChangeRecorder, FileTree, MergeResult, Proposal, WorkingCopy
from retinue.runtime.agent.agent import Agent, copy_snapshot
from retinue.runtime.agent.loop import AttemptOutcome
from retinue.runtime.agent.run_hooks import RunHooks
from retinue.runtime.core.task_group import run_to_completion
from retinue.runtime.integration.acceptance import (
    must_check,
    outside_scope,
    record_proposal,
    shown_paths,
)
from retinue.runtime.integration.baseline import Baseline, Head, Merged
from retinue.runtime.integration.checks import Checks, copy_names, temporary_copy
from retinue.runtime.integration.review import DiffReview

USER = "the user"

Authors = list[tuple[str, str]]
"""Pairs of a changed path and the agent that changed it, in the order of the changes."""


class MergeSlot:
    """A writing child's place in its queue."""

    def __init__(self, queue: MergeQueue, agent: Agent, baseline: Baseline) -> None:
        self.queue = queue
        self.agent = agent
        self.baseline = baseline
        self.blockers: Sequence[MergeSlot] = ()
        """Siblings that write in the same places and must be closed before this child starts."""
        self.copy: WorkingCopy | None = None
        self.proposal: Proposal | None = None
        """Work of the child, once its attempts have ended."""
        self.base = ""
        """Commit that the child started from."""
        self.authors_before = 0
        """Number of changes of the parent's files when the child started."""
        self.checked = ""
        """Commit that passed the checks before the child's turn to be merged."""
        self.has_turn = False
        """Whether no other child can be merged before this one."""
        self.is_first = asyncio.Event()
        self.is_over = asyncio.Event()
        self.closed = False
        self.suspended = False
        """Whether the child is left open until the run is resumed."""
        self.applied = False
        self.rejected = False
        """Whether the user has refused the change."""
        self.merged: Merged | None = None
        self.is_chosen: Callable[[], Awaitable[bool]] | None = None
        """Waits until a race is decided: whether the work of this candidate is merged."""
        self.passed_before = False
        """Whether an earlier process has decided the race, after this candidate had passed."""
        self.origin: ForkOrigin | None = None
        """Where a forked root starts from. Its work is kept, and never merged."""

    @property
    def scope(self) -> Scope:
        """Where siblings must not write at the same time."""
        return ANYWHERE if self.shared else self.agent.contract.permissions.write_scope

    @property
    def shared(self) -> bool:
        """Whether the child works in its parent's own files, without a copy."""
        kind = self.agent.contract.execution.workspace
        return kind is WorkspaceKind.SHARED and self.origin is None


ResolveConflicts = Callable[[Agent, WorkingCopy], Awaitable[str]]
"""Have another child resolve the conflicts of an agent in a copy. Return why it failed, or ""."""


class MergeQueue:
    """The writing children of one agent, in their queues."""

    def __init__(
        self,
        file_tree: FileTree,
        checks: Checks,
        review: DiffReview,
        recorder_for: Callable[[Agent], ChangeRecorder | None],
        authors: Authors,
        resolve: ResolveConflicts,
        hooks: RunHooks,
    ) -> None:
        self._hooks = hooks
        self._file_tree = file_tree
        self._checks = checks
        self._review = review
        self._recorder_for = recorder_for
        self._resolve = resolve
        self._queues: defaultdict[str, deque[MergeSlot]] = defaultdict(deque)
        self._slots: dict[str, MergeSlot] = {}
        self._write_locks = WriteLocks()
        self._head: Head | None = None
        self._positions = count()
        self._merging = asyncio.Lock()
        self._authors = authors

    # Order

    def enter(
        self, agent: Agent, baseline: Baseline, resume_point: ResumePoint | None = None
    ) -> MergeSlot:
        """Give `agent` the next slot. Synchronous, so that slots have the order of the steps.

        `resume_point` is where an earlier process left the agent.
        """
        slot = MergeSlot(self, agent, baseline)
        blockers = self._write_locks.request(agent.id, slot.scope)
        slot.blockers = [
            other
            for other in map(self._slots.__getitem__, blockers)
            if not (baseline.race and other.baseline.race == baseline.race)
        ]
        self._slots[agent.id] = slot
        if resume_point is not None:
            slot.base = resume_point.worktree_base
            slot.applied = resume_point.is_merged
            waiting = resume_point.proposal
            if waiting is not None and waiting.commit:
                slot.proposal = Proposal(commit=waiting.commit, files=waiting.files_modified)
        queue = self._queues[baseline.queue]
        if any(other.suspended for other in queue):
            slot.is_first.set()
        queue.append(slot)
        self._advance(queue)
        return slot

    def leave(self, slot: MergeSlot) -> None:
        """Take the slot of a closed agent out of its queue. Synchronous."""
        self._end_turn(slot)
        slot.closed = True
        self._advance(self._queues[slot.baseline.queue])

    def suspend(self, slot: MergeSlot) -> None:
        """Wake all that wait for a child that stays open until the run is resumed. Synchronous."""
        self._end_turn(slot)
        slot.suspended = True
        slot.is_over.set()
        queue = self._queues[slot.baseline.queue]
        for other in list(queue)[queue.index(slot) :]:
            other.is_first.set()

    def _advance(self, queue: deque[MergeSlot]) -> None:
        while queue and queue[0].closed:
            slot = queue.popleft()
            self._write_locks.release(slot.agent.id)
            del self._slots[slot.agent.id]
            slot.merged = Merged(slot.scope, self._head, slot.shared)
            slot.baseline.merged.append(slot.merged)
            slot.is_over.set()
        if queue:
            queue[0].is_first.set()

    # Start

    async def pin(self, baseline: Baseline) -> None:
        """Let the children of `baseline` start from the files as they are now, unless it is set."""
        if baseline.base is None:
            baseline.base = await self._current_state()

    async def wait_for_blockers(self, slot: MergeSlot) -> None:
        """Wait until no earlier sibling writes in the same places."""
        for other in slot.blockers:
            await other.is_over.wait()
            _check_not_suspended(other)

    async def make_copy(self, slot: MergeSlot) -> None:
        """Make the working copy of a child, or reopen the one that an earlier process left."""
        if slot.shared:
            return
        agent = slot.agent
        # The contract is on record before any work is done under it.
        await agent.durable()
        exists = bool(slot.base)
        content = ""
        if not exists:
            if slot.origin is None:
                slot.base = (await self._base_for(slot)).commit
                content = await self._kept_content(slot)
            else:
                slot.base = slot.origin.base or slot.origin.files
                content = slot.origin.files
            slot.authors_before = len(self._authors)
        directory = agent.contract.execution.working_directory
        name, *_ = copy_names(agent.contract.parent.run_id, agent.id)
        tree = self._file_tree

        async def make() -> WorkingCopy:
            slot.copy = await (
                tree.reopen(slot.base, name=name, directory=directory)
                if exists
                else tree.copy(
                    slot.base,
                    name=name,
                    directory=directory,
                    content=content,
                    on_progress=partial(agent.report_progress, ""),
                )
            )
            return slot.copy

        agent.files.tree = copy = await run_to_completion(make())
        if not exists:
            root = copy.workspace(directory).root
            agent.record(WorktreeCreated(base=slot.base, directory=root, content=content))

    async def _kept_content(self, slot: MergeSlot) -> str:
        """The commit with the kept work of the agent that a child continues; "" without one."""
        agent = slot.agent
        run_id, _, agent_id = agent.state.continues.partition("/")
        if not run_id:
            return ""
        kept = await self._file_tree.with_unmerged(slot.base, run_id=run_id, agent_id=agent_id)
        if kept is None:
            return ""
        agent.files.to_resolve = tuple(conflict.path for conflict in kept.conflicts)
        return kept.commit

    async def _base_for(self, slot: MergeSlot) -> Head:
        before = [other.merged for other in slot.blockers if other.merged]
        # Siblings may have been merged before this child was made. Siblings that wrote elsewhere do
        # not matter.
        before += [one for one in slot.baseline.merged if overlap(one.scope, slot.scope)]
        if slot.baseline.base is None or any(one.shared for one in before):
            # No base is pinned, or a sibling worked in the parent's own files and left no commit.
            return await self._current_state()
        heads = [slot.baseline.base, *(one.head for one in before)]
        return max((head for head in heads if head), key=lambda head: head.position)

    async def _first_state(self) -> Head:
        """The first known state, in a process that resumed the run of another process."""
        self._head = self._next_head(await self._file_tree.snapshot(None))
        return self._head

    async def _current_state(self) -> Head:
        """The files as they are now, including changes that others made."""
        before = self._head
        commit = await self._file_tree.snapshot(None if before is None else before.commit)
        if before is not None and commit == before.commit:
            return before
        head = self._next_head(commit)
        if self._head is before:
            self._head = head
        return head

    def _next_head(self, commit: str) -> Head:
        """Also during a merge, whose result is newer than a state that was read meanwhile."""
        return Head(next(self._positions), commit)

    # End

    async def keep_cancelled(self, slot: MergeSlot) -> None:
        """Keep the work of a cancelled child for the user."""
        proposal = slot.proposal
        if proposal is None and slot.copy is not None:
            proposal = await self._commit_copy(slot, slot.copy)
        if proposal is not None:
            await self._keep(slot, proposal)

    def release_copy(self, slot: MergeSlot) -> None:
        """Leave the copy as it is, for the process that resumes the run."""
        self._end_turn(slot)
        if slot.copy is not None:
            slot.copy.release()

    async def remove_copy(self, slot: MergeSlot) -> None:
        """Remove the copy of a closed child."""
        copy, slot.copy = slot.copy, None
        if copy is not None:
            await copy.remove(partial(slot.agent.report_progress, ""))
        elif slot.proposal is not None or slot.agent.resume_point is not None:
            # An earlier process may have made it.
            names = copy_names(slot.agent.contract.parent.run_id, slot.agent.id)
            await self._file_tree.discard(names)

    async def integrate(self, slot: MergeSlot, outcome: AttemptOutcome) -> AttemptOutcome:
        """Merge the work of a child that ended; return the final outcome."""
        proposal = slot.proposal
        if proposal is None:
            if slot.copy is None and slot.origin is not None:
                await self.make_copy(slot)  # An earlier process left it.
            if slot.copy is None:
                return outcome
            slot.proposal = proposal = await self._commit_copy(slot, slot.copy)
        try:
            if outcome.status is Status.COMPLETED and slot.origin is None:
                outcome = await self._merge_in_turn(slot, proposal, outcome)
        except RunSuspended:
            raise
        except Exception:
            await self._keep(slot, proposal)
            raise
        await self._keep(slot, proposal)
        return outcome

    async def check_ahead(self, slot: MergeSlot) -> str:
        """Check the work of a child as if it were merged now. Return why a check fails, or "".

        Other problems are left to `integrate`. It repeats no check if nothing is merged meanwhile.
        If a check fails after others were merged, the copy of the child gets their changes, so that
        the child can adapt its own.
        """
        agent, copy = slot.agent, slot.copy
        checked, slot.checked = slot.checked, ""
        if copy is None:
            return ""
        proposal = await copy.propose(message=_commit_message(agent))
        if (
            proposal.problems
            or outside_scope(agent, proposal.paths)
            or not must_check(agent, changed=bool(proposal.files))
        ):
            return ""
        head = self._head or await self._current_state()
        merge = await self._merge_into(head, slot, proposal)
        if merge.conflicts:
            return ""
        problem = ""
        if merge.commit != checked:
            problem = await self._checks.run(agent, self._file_tree, merge.commit)
        if not problem:
            slot.checked = merge.commit
        elif head.commit != slot.base:
            updated = await copy.update(proposal.commit, merge.commit, base=head.commit)
            slot.base, slot.authors_before = head.commit, len(self._authors)
            directory = copy.workspace(agent.contract.execution.working_directory).root
            # Recorded only now: the old files on the new base would take back the others' changes.
            agent.record(WorktreeCreated(base=slot.base, directory=directory, content=merge.commit))
            if paths := shown_paths([change.path for change in updated]):
                problem += f"; your copy now has what others changed meanwhile: {paths}"
        return problem

    async def check_in_turn(self, slot: MergeSlot) -> str:
        """Repeat `check_ahead` when it is the child's turn, if others were merged since.

        If no check fails, the child keeps its turn until `integrate`.
        """
        if not slot.checked or slot.is_chosen is not None:
            return ""
        await self._take_turn(slot)
        problem = await self.check_ahead(slot)
        if problem:
            self._end_turn(slot)
        return problem

    async def _merge_into(self, head: Head, slot: MergeSlot, proposal: Proposal) -> MergeResult:
        if not proposal.files:
            return MergeResult(commit=head.commit)
        message = _commit_message(slot.agent)
        return await self._file_tree.merge(
            head.commit, proposal.commit, base=slot.base, message=message
        )

    async def _take_turn(self, slot: MergeSlot) -> None:
        """Wait until earlier siblings are closed and no merge runs, and block other merges."""
        if slot.has_turn:
            return
        await slot.is_first.wait()
        for earlier in self._queues[slot.baseline.queue]:
            if earlier is slot:
                break
            _check_not_suspended(earlier)
        await self._merging.acquire()
        slot.has_turn = True

    def _end_turn(self, slot: MergeSlot) -> None:
        if slot.has_turn:
            slot.has_turn = False
            self._merging.release()

    async def _commit_copy(self, slot: MergeSlot, copy: WorkingCopy) -> Proposal:
        async def commit() -> Proposal:
            try:
                return await copy.propose(message=_commit_message(slot.agent))
            except WorkspaceError as error:
                slot.copy = None
                raise WorkspaceError(
                    f"{error} Its work is left in {copy.leave_to_user()}"
                ) from error
            finally:
                slot.agent.files.tree = self._file_tree

        return await run_to_completion(commit())

    async def _keep(self, slot: MergeSlot, proposal: Proposal) -> None:
        """Keep work that is not merged, for the user to look at."""
        agent = slot.agent
        if not proposal.files or slot.applied:
            return
        run_id, message = agent.contract.parent.run_id, _commit_message(agent)
        await self._file_tree.keep_unmerged(
            slot.base, proposal.commit, run_id=run_id, agent_id=agent.id, message=message
        )
        agent.record(UnmergedWorkKept(files=proposal.files))

    async def _merge_in_turn(
        self, slot: MergeSlot, proposal: Proposal, outcome: AttemptOutcome
    ) -> AttemptOutcome:
        """Record the proposal, wait for the child's turn, merge."""
        agent = slot.agent
        if not outcome.proposed:
            outcome = record_proposal(agent, outcome, proposal)
        if slot.applied:
            # An earlier process has merged it, and was killed before it closed the child.
            await self._hooks.after_merge(agent, proposal.files)
            return outcome
        problem = outside_scope(agent, proposal.paths) or "; ".join(proposal.problems)
        if problem:
            return msgspec.structs.replace(outcome, status=Status.ERROR, reason=problem)
        if slot.is_chosen is None and not must_check(agent, changed=bool(proposal.files)):
            return outcome
        with agent.waiting():
            if slot.is_chosen is not None:
                if not slot.passed_before:
                    problem = await self._check_candidate(slot, proposal)
                if not problem and not await slot.is_chosen():
                    return outcome
            if not problem:
                await self._take_turn(slot)
                try:
                    if (reason := agent.stop_reason) is not None:
                        return msgspec.structs.replace(
                            outcome, status=Status.CANCELLED, reason=reason
                        )
                    problem = await self._merge(slot, proposal)
                finally:
                    self._end_turn(slot)
        if not problem:
            return outcome
        status = Status.CONFLICT if agent.files.conflicts else Status.ERROR
        if slot.rejected:
            status = Status.REJECTED
        return msgspec.structs.replace(outcome, status=status, reason=problem)

    async def _check_candidate(self, slot: MergeSlot, proposal: Proposal) -> str:
        """Check the work of a candidate as if it were merged now. Return why it fails, or ""."""
        agent = slot.agent
        head = self._head or await self._first_state()
        merge = await self._merge_into(head, slot, proposal)
        if merge.conflicts:
            agent.files.conflicts = tuple(self._attributed(slot, one) for one in merge.conflicts)
            return _conflicts_of(agent)
        if merge.commit == slot.checked:
            return ""
        return await self._checks.run(agent, self._file_tree, merge.commit)

    async def _merge(self, slot: MergeSlot, proposal: Proposal, *, again: bool = False) -> str:
        """Merge, check, apply. Return why one of them failed, or ""."""
        agent, head = slot.agent, self._head or await self._first_state()
        if not proposal.files:
            return await self._checks.run(agent, self._file_tree, head.commit)
        merge = await self._merge_into(head, slot, proposal)
        commit = merge.commit
        if merge.conflicts:
            resolved = await self._resolved(slot, head, proposal, merge)
            if resolved is None:
                return _conflicts_of(agent)
            commit = resolved
        if problem := await self._checks.run(agent, self._file_tree, commit):
            return problem
        if problem := (
            await self._hooks.before_merge(agent, proposal.files)
            or await self._review.refusal(agent, self._file_tree, head.commit, commit)
        ):
            slot.rejected = True
            return problem
        redo = f"retinue redo {agent.contract.parent.run_id} {agent.id}"
        try:
            refused = await self._apply(slot, head, commit)
        except WorkspaceError as error:
            return f"{error}; nothing was applied. When that is mended: {redo}"
        if not refused:
            snapshot = await copy_snapshot(self._file_tree)
            agent.record(WorktreeMerged(base=slot.base, commit=commit, snapshot=snapshot))
            await self._hooks.after_merge(agent, proposal.files)
            return ""
        agent.files.conflicts = tuple(
            self._attributed(slot, Conflict(path=path)) for path in refused
        )
        if not again and all(conflict.sibling != USER for conflict in agent.files.conflicts):
            # Agents of this run changed the files directly: treat their changes like a sibling's.
            agent.files.conflicts = ()
            self._head = await self._current_state()
            return await self._merge(slot, proposal, again=True)
        return (
            f"changed in the project meanwhile: {', '.join(refused)}; nothing was applied. Finish"
            f" your own edits, then: {redo}"
        )

    def _attributed(self, slot: MergeSlot, conflict: Conflict) -> Conflict:
        """The conflict with the name of the agent that made the change in the parent's files."""
        since = dict(self._authors[slot.authors_before :])
        return msgspec.structs.replace(conflict, sibling=since.get(conflict.path, USER))

    async def _resolved(
        self, slot: MergeSlot, head: Head, proposal: Proposal, merge: MergeResult
    ) -> str | None:
        """The commit of the merge with its conflicts resolved; None if they are not."""
        agent = slot.agent
        agent.files.conflicts = tuple(
            self._attributed(slot, conflict) for conflict in merge.conflicts
        )
        if agent.contract.outputs.on_conflict is not OnConflict.RESOLVE:
            return None
        contract = agent.contract
        _, name, _ = copy_names(contract.parent.run_id, agent.id)
        assert agent.parent is not None, "only a child is merged"
        # Paths of conflicts are relative to this directory, and the resolving child works there.
        directory = agent.parent.contract.execution.working_directory
        async with temporary_copy(
            self._file_tree, merge.commit, name=name, directory=directory
        ) as copy:
            if await self._resolve(agent, copy):
                return None
            resolved = await copy.propose(message=_commit_message(agent))
        agent.files.conflicts = ()
        return await self._file_tree.commit_resolution(
            resolved.commit,
            parents=[head.commit, proposal.commit],
            message=_commit_message(agent),
        )

    async def _apply(self, slot: MergeSlot, head: Head, commit: str) -> tuple[str, ...]:
        """Write `commit` into the parent's files. Return the paths that prevent it, if any."""
        agent = slot.agent
        # The proposal is on record before the user's files change.
        await agent.durable()

        async def apply() -> tuple[str, ...]:
            applied = await self._file_tree.apply(
                head.commit, commit, self._recorder_for(agent), message=_commit_message(agent)
            )
            if applied.forbidden:
                raise WorkspaceError("; ".join(applied.refused))
            if not applied.refused:
                slot.applied = True
                self._head = self._next_head(commit)
            return applied.refused

        return await run_to_completion(apply())


def _check_not_suspended(slot: MergeSlot) -> None:
    """Raise RunSuspended if a child that others wait for is left open until the run is resumed."""
    if slot.suspended:
        agent = slot.agent
        raise RunSuspended(agent.activity.endpoint_failure, run_id=agent.contract.parent.run_id)


def _conflicts_of(agent: Agent) -> str:
    return "conflict in " + ", ".join(map(str, agent.files.conflicts))


def _commit_message(agent: Agent) -> str:
    """The same for the same child of the same plan: it does not contain the id of the run."""
    return f"{agent.path}: {agent.contract.step.title}"
