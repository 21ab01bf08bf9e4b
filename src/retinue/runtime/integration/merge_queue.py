"""The work of children that write goes into their parent's files, one after the other.

A child that writes takes a seat when it is made. It may begin when those before it that write in
the same places are done with, and is integrated when everybody before it is: in the order of steps,
whatever order they finish in. What it begins from depends on that order only, and not on who was
faster. So the same plan makes the same commits.

Children in the background make a line of their own, and so does each step of a plan: nobody who is
waited for is held up by them, unless they write in the same places.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from retinue.domain.contract import OnConflict, WorkspaceKind
from retinue.domain.events import ResultProposed, UnmergedWorkKept, WorktreeCreated, WorktreeMerged
from retinue.domain.result import Conflict, Status
from retinue.domain.resume_point import ResumePoint
from retinue.domain.scope import ANYWHERE, Groups, contains
from retinue.domain.write_conflicts import WriteLocks, overlap
from retinue.errors import WorkspaceError
from retinue.ports.file_tree import FileTree, MergeResult, Proposal, WorkingCopy
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.baseline import Baseline, Head, Passed
from retinue.runtime.agent.lifecycle import AttemptOutcome
from retinue.runtime.core.task_group import run_to_completion
from retinue.runtime.integration.checks import Checks, copy_names
from retinue.runtime.integration.file_changes import Authors, Recorder

SHOWN = 10
USER = "the user"


class MergeSlot:
    """A writing child's place in the order of its siblings."""

    def __init__(self, join: MergeQueue, agent: Agent, round: Baseline) -> None:
        self.join = join
        self.agent = agent
        self.round = round
        self.after: Sequence[MergeSlot] = ()
        """Who must have passed before it may begin."""
        self.copy: WorkingCopy | None = None
        self.proposal: Proposal | None = None
        """What it has made, once that is on record."""
        self.base = ""
        self.since = 0
        """How many changes of its parent's files there were when it began."""
        self.turn = asyncio.Event()
        self.passed = asyncio.Event()
        self.left = False
        self.applied = False
        self.left_behind: Passed | None = None

    @property
    def scope(self) -> Groups:
        """Where others must not write while it does."""
        return ANYWHERE if self.shared else self.agent.contract.permissions.write_scope

    @property
    def shared(self) -> bool:
        return self.agent.contract.execution.workspace is WorkspaceKind.SHARED


Resolve = Callable[[Agent, WorkingCopy], Awaitable[str]]
"""Let somebody settle the conflicts of an agent in a copy; why that came to nothing, or ""."""


class MergeQueue:
    """The writing children of one agent, and what becomes of its files."""

    def __init__(
        self,
        file_tree: FileTree,
        checks: Checks,
        recorder: Callable[[Agent], Recorder | None],
        authors: Authors,
        resolve: Resolve,
    ) -> None:
        self._file_tree = file_tree
        self._checks = checks
        self._recorder = recorder
        self._resolve = resolve
        self._lines: defaultdict[str, deque[MergeSlot]] = defaultdict(deque)
        self._seats: dict[str, MergeSlot] = {}
        self._write_locks = WriteLocks()
        self._head: Head | None = None
        self._integrating = asyncio.Lock()
        self._authors = authors

    # The order

    def enter(self, agent: Agent, round: Baseline, past: ResumePoint | None = None) -> MergeSlot:
        """Take the next seat. Nothing is awaited: the order is that of the steps.

        `past` is what another process has seen of it.
        """
        seat = MergeSlot(self, agent, round)
        after = self._write_locks.request(agent.id, seat.scope)
        seat.after = [self._seats[name] for name in after]
        self._seats[agent.id] = seat
        if past is not None and past.worktree_base:
            seat.base = past.worktree_base
        if past is not None and past.proposal is not None and past.proposal.commit:
            waiting = past.proposal
            seat.proposal = Proposal(commit=waiting.commit, files=waiting.files_modified)
        line = self._lines[round.line]
        line.append(seat)
        self._advance(line)
        return seat

    def leave(self, seat: MergeSlot) -> None:
        """Its agent is closed, however it ended. Nothing is awaited."""
        seat.left = True
        self._advance(self._lines[seat.round.line])

    def _advance(self, line: deque[MergeSlot]) -> None:
        while line and line[0].left:
            seat = line.popleft()
            self._write_locks.release(seat.agent.id)
            del self._seats[seat.agent.id]
            passed = Passed(seat.scope, self._head, seat.shared)
            seat.left_behind = passed
            seat.round.passed.append(passed)
            seat.passed.set()
        if line:
            line[0].turn.set()

    # The beginning

    async def pin(self, round: Baseline) -> None:
        """Let the children of a round begin from the files as they are now, if none has so far."""
        if round.base is None:
            round.base = await self._state()

    async def ready(self, seat: MergeSlot) -> None:
        """Return when nobody who writes in the same places is before it."""
        for other in seat.after:
            await other.passed.wait()

    async def begin(self, seat: MergeSlot) -> None:
        """Give a child that works in a copy its copy."""
        if seat.shared:
            return
        agent = seat.agent
        # The contract is on record before any work is done under it.
        await agent.durable()
        known = bool(seat.base)
        if not known:
            seat.base = (await self._base(seat)).commit
            seat.since = len(self._authors)
        directory = agent.contract.execution.working_directory
        name, *_ = copy_names(agent.contract.parent.run_id, agent.id)
        make = self._file_tree.reopen if known else self._file_tree.copy

        async def made() -> WorkingCopy:
            seat.copy = await make(seat.base, name=name, directory=directory)
            return seat.copy

        agent.file_tree = copy = await run_to_completion(made())
        if not known:
            root = copy.workspace(directory).root
            agent.record(WorktreeCreated(base=seat.base, directory=root))

    async def _base(self, seat: MergeSlot) -> Head:
        before = [other.left_behind for other in seat.after if other.left_behind]
        # Some may have passed before it was made; who writes elsewhere is none of its concern.
        before += [one for one in seat.round.passed if overlap(one.scope, seat.scope)]
        if seat.round.base is None or any(one.shared for one in before):
            # Nobody has said where to begin; or who worked in the parent's own files, and has left
            # no commit.
            return await self._state()
        heads = [seat.round.base, *(one.head for one in before)]
        return max((head for head in heads if head), key=lambda head: head.position)

    async def _files(self) -> Head:
        """The first state that is known of, in a process that goes on with the work of another."""
        self._head = Head(0, await self._file_tree.snapshot(None))
        return self._head

    async def _state(self) -> Head:
        """The files as they are now. What somebody has done to them since is taken over."""
        before = self._head
        commit = await self._file_tree.snapshot(None if before is None else before.commit)
        if before is not None and commit == before.commit:
            return before
        head = Head(0 if before is None else before.position + 1, commit)
        if self._head is before and not self._integrating.locked():
            self._head = head
        return head

    # The end

    async def abandon(self, seat: MergeSlot) -> None:
        """Keep what a child has done that is stopped. It has nothing more to say."""
        if seat.copy is not None:
            await self._keep(seat, seat.proposal or await self._harvest(seat, seat.copy))

    def let_go(self, seat: MergeSlot) -> None:
        """Leave its copy as it is, for whoever goes on with it."""
        if seat.copy is not None:
            seat.copy.release()

    async def clear(self, seat: MergeSlot) -> None:
        """Remove its copy, which nobody needs any more."""
        copy, seat.copy = seat.copy, None
        if copy is not None:
            await copy.remove()
        elif seat.proposal is not None:
            names = copy_names(seat.agent.contract.parent.run_id, seat.agent.id)
            await self._file_tree.discard(names)

    async def integrate(self, seat: MergeSlot, ending: AttemptOutcome) -> AttemptOutcome:
        """Bring the work of a child that has ended into the files, if nothing speaks against it."""
        proposal = seat.proposal
        if proposal is None:
            if seat.copy is None:
                return ending
            proposal = await self._harvest(seat, seat.copy)
        try:
            if ending.status is Status.COMPLETED:
                ending = await self._propose(seat, proposal, ending)
        except BaseException:
            if seat.agent.suspension.reason is None:
                await run_to_completion(self._keep(seat, proposal))
            raise
        if ending.status is not Status.COMPLETED:
            await self._keep(seat, proposal)
        return ending

    async def _harvest(self, seat: MergeSlot, copy: WorkingCopy) -> Proposal:
        async def gather() -> Proposal:
            try:
                return await copy.propose(message=_message(seat.agent))
            except WorkspaceError as error:
                seat.copy = None
                raise WorkspaceError(
                    f"{error} Its work is left in {copy.leave_to_user()}"
                ) from error
            finally:
                seat.agent.file_tree = self._file_tree

        return await run_to_completion(gather())

    async def _keep(self, seat: MergeSlot, proposal: Proposal) -> None:
        agent = seat.agent
        if not proposal.files or seat.applied:
            return
        agent.kept = True
        run_id, message = agent.contract.parent.run_id, _message(agent)
        await self._file_tree.keep_unmerged(
            seat.base, proposal.commit, run_id=run_id, agent_id=agent.id, message=message
        )
        agent.record(UnmergedWorkKept(files=proposal.files))

    async def _propose(
        self, seat: MergeSlot, proposal: Proposal, ending: AttemptOutcome
    ) -> AttemptOutcome:
        agent = seat.agent
        agent.files_modified = {file.path: file for file in proposal.files}
        if not ending.proposed:
            seat.proposal = proposal
            waiting = ResultProposed(
                sub_agent_id=agent.id,
                response=ending.text,
                files_modified=proposal.files,
                commit=proposal.commit,
            )
            agent.record(waiting)
            ending = msgspec.structs.replace(ending, proposed=True)
        wrong = outside(agent, proposal.paths) or "; ".join(proposal.problems)
        if wrong:
            return msgspec.structs.replace(ending, status=Status.ERROR, reason=wrong)
        if not must_check(agent, changed=bool(proposal.files)):
            return ending
        with agent.waiting():
            await seat.turn.wait()
            if agent.stop_reason is not None:
                reason = agent.stop_reason
                return msgspec.structs.replace(ending, status=Status.CANCELLED, reason=reason)
            async with self._integrating:
                wrong = await self._merge(seat, proposal)
        if not wrong:
            return ending
        status = Status.CONFLICT if agent.conflicts else Status.ERROR
        return msgspec.structs.replace(ending, status=status, reason=wrong)

    async def _merge(self, seat: MergeSlot, proposal: Proposal, *, again: bool = False) -> str:
        """Merge, check, apply; why one of them was not possible, or ""."""
        agent, head = seat.agent, self._head or await self._files()
        if not proposal.files:
            return await self._checks.run(agent, self._file_tree, head.commit)
        merge = await self._file_tree.merge(
            head.commit, proposal.commit, base=seat.base, message=_message(agent)
        )
        commit = merge.commit
        if merge.conflicts:
            settled = await self._settled(seat, head, proposal, merge)
            if settled is None:
                return "conflict in " + ", ".join(map(str, agent.conflicts))
            commit = settled
        agent.record(WorktreeMerged(base=seat.base, commit=commit))
        if wrong := await self._checks.run(agent, self._file_tree, commit):
            return wrong
        refused = await self._apply(seat, head, commit)
        if not refused:
            return ""
        agent.conflicts = tuple(self._signed(seat, Conflict(path=path)) for path in refused)
        if not again and all(conflict.sibling != USER for conflict in agent.conflicts):
            # Others of us have changed the files themselves: then it is as with any sibling's work.
            agent.conflicts = ()
            self._head = await self._state()
            return await self._merge(seat, proposal, again=True)
        return (
            f"changed in the project meanwhile: {', '.join(refused)}; nothing was applied. Settle"
            f" your own edits, then: retinue redo {agent.contract.parent.run_id} {agent.id}"
        )

    def _signed(self, seat: MergeSlot, conflict: Conflict) -> Conflict:
        """The conflict with the name of who made the change that is there already."""
        since = dict(self._authors[seat.since :])
        return msgspec.structs.replace(conflict, sibling=since.get(conflict.path, USER))

    async def _settled(
        self, seat: MergeSlot, head: Head, proposal: Proposal, merge: MergeResult
    ) -> str | None:
        """The commit of a merge whose conflicts were settled; None if nobody could."""
        agent = seat.agent
        agent.conflicts = tuple(self._signed(seat, conflict) for conflict in merge.conflicts)
        if agent.contract.outputs.on_conflict is not OnConflict.RESOLVE:
            return None
        contract = agent.contract
        _, name, _ = copy_names(contract.parent.run_id, agent.id)
        assert agent.parent is not None, "only a child is merged"
        # Where a conflict is told from, and where who settles it works.
        directory = agent.parent.contract.execution.working_directory
        copy = await run_to_completion(
            self._file_tree.copy(merge.commit, name=name, directory=directory)
        )
        try:
            if await self._resolve(agent, copy):
                return None
            resolved = await copy.propose(message=_message(agent))
        finally:
            await run_to_completion(copy.remove())
        agent.conflicts = ()
        return await self._file_tree.commit_resolution(
            resolved.commit,
            parents=[head.commit, proposal.commit],
            message=_message(agent),
        )

    async def _apply(self, seat: MergeSlot, head: Head, commit: str) -> tuple[str, ...]:
        """Bring `commit` into the parent's files; the paths that stand in the way, if some do."""
        agent = seat.agent
        # What is about to be done to the user's files is on record first.
        await agent.durable()

        async def bring_in() -> tuple[str, ...]:
            applied = await self._file_tree.apply(
                head.commit, commit, self._recorder(agent), message=_message(agent)
            )
            if not applied.refused:
                seat.applied = True
                self._head = Head(head.position + 1, commit)
            return applied.refused

        return await run_to_completion(bring_in())


async def examined(agent: Agent, ending: AttemptOutcome, checks: Checks) -> AttemptOutcome:
    """The ending of an agent that worked in its parent's own files, which have its changes already.

    What it had no right to change is told and left as it is. Only commands that nothing confines
    can have done that, and then it may as well have been the user, who works there too.
    """
    wrong = outside(agent, agent.files_modified)
    if wrong:
        if agent.recorder is not None:
            run_id = agent.contract.parent.run_id
            wrong += f"; unless that was you, take it back: retinue undo {run_id} {agent.id}"
    elif ending.status is Status.COMPLETED and (
        agent.contract.outputs.checks and must_check(agent, changed=bool(agent.files_modified))
    ):
        changed = tuple(agent.files_modified.values())
        if not ending.proposed:
            agent.record(
                ResultProposed(sub_agent_id=agent.id, response=ending.text, files_modified=changed)
            )
            ending = msgspec.structs.replace(ending, proposed=True)
        with agent.waiting():
            wrong = await checks.run(agent, agent.file_tree, await agent.file_tree.snapshot(None))
    if not wrong:
        return ending
    return msgspec.structs.replace(ending, status=Status.ERROR, reason=wrong)


def must_check(agent: Agent, *, changed: bool) -> bool:
    """Is there something to decide? What every change must pass is not run where there is none.

    The checks of its own task are: they say whether that is done.
    """
    checks, above = agent.contract.outputs.checks, agent.parent
    given = checks if above is None else above.contract.outputs.checks
    return changed or any(check not in given for check in checks)


def outside(agent: Agent, paths: Iterable[str]) -> str:
    """Which of the changed paths the contract does not let it write, in words; else ""."""
    scope = agent.contract.permissions.write_scope
    wrong = [path for path in paths if not contains(scope, path)]
    if not wrong:
        return ""
    shown = ", ".join(wrong[:SHOWN]) + (f" and {len(wrong) - SHOWN} more" * (len(wrong) > SHOWN))
    return f"it changed what its contract does not let it write: {shown}"


def _message(agent: Agent) -> str:
    """The same for the same child of the same plan: no id of the run is in it."""
    return f"{agent.path}: {agent.contract.step.title}"
