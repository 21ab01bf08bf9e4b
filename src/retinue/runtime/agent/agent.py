"""A live node of the tree: its contract, its account, and its voice in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from retinue.domain.account import Account
from retinue.domain.contract import Contract
from retinue.domain.events import Event, Fact
from retinue.domain.evidence import still_tested
from retinue.domain.messages import Usage
from retinue.domain.result import (
    Check,
    Conflict,
    FileChange,
    Receipt,
    Result,
    Spent,
    merge_changes,
)
from retinue.domain.resume_point import FROM_PARENT, ResumePoint
from retinue.ports.clock import Clock
from retinue.ports.file_tree import FileTree
from retinue.ports.store import NewAgent
from retinue.runtime.core.journal import Journal
from retinue.runtime.core.suspension import Suspension

if TYPE_CHECKING:
    from retinue.runtime.integration.file_changes import Recorder
    from retinue.runtime.integration.merge_queue import MergeSlot


class Agent:
    """What is known of an agent while it lives. Everything here can be folded from the journal."""

    def __init__(
        self,
        *,
        id: str,
        path: str,
        depth: int,
        contract: Contract,
        account: Account,
        journal: Journal,
        clock: Clock,
        parent: Agent | None,
        file_tree: FileTree,
        suspension: Suspension,
    ) -> None:
        self.id = id
        self.path = path
        self.depth = depth
        self.contract = contract
        self.account = account
        self.parent = parent
        self.origin_key = ""
        """What of its parent's asked for it."""
        self.background = False
        self.file_tree = file_tree
        """The files that it works on."""
        self.seat: MergeSlot | None = None
        """Its place among its siblings, if it is one of those that write."""
        self.recorder: Recorder | None = None
        """Who counts what it does to the user's own files, if it can do anything to them."""
        self.attempt = 0
        self.usage = Usage()
        self.last_text = ""
        self.result: Result | None = None
        self.cache_key: str | None = None
        self.notes: tuple[str, ...] = ()
        self.inbox: list[tuple[str, str]] = []
        """Who has something to say to it before its next turn, and what."""
        self.stop_reason: str | None = None
        """Why it was stopped for good; a stopped agent is not revived."""
        self.deadline: asyncio.Timeout | None = None
        """The end of the attempt under way; who watches may bring it forward."""
        self.since = self.seen_at = clock.monotonic()
        self.silent_s: float | None = None
        self.given_up = False
        self.excused = 0
        """How many things it waits for that may take their time: a person, a command, a queue."""
        self.files_read: dict[str, None] = {}
        self.files_modified: dict[str, FileChange] = {}
        self.receipts: list[Receipt] = []
        self.tainted = False
        """Whether there is text in its conversation that nobody vouches for."""
        self.heard_untrusted = False
        """Whether that text came from others, and not by commands that it may use freely."""
        self.tested = False
        """Whether tests have gone well since its files last changed, as far as anybody has seen."""
        self.checks: list[Check] = []
        self.conflicts: tuple[Conflict, ...] = ()
        self.kept = False
        """Whether work of its that was not integrated is kept."""
        self.steps = 0
        self.names: dict[str, int] = {}
        self.past: ResumePoint | None = None
        """What another process has seen of its life, until this one has taken it up."""
        self.suspension = suspension
        self.paused = False
        """Whether it has nothing more to say before the run goes on."""
        self._journal = journal
        self._clock = clock

    @property
    def role(self) -> str:
        return self.contract.execution.role

    @property
    def why_stopped(self) -> str | None:
        """Why it, or whoever it works for, was stopped."""
        node: Agent | None = self
        while node is not None and node.stop_reason is None:
            node = node.parent
        return None if node is None else node.stop_reason

    def touch(self) -> None:
        """A sign of life, for it and for those who wait for it."""
        now = self._clock.monotonic()
        node: Agent | None = self
        while node is not None:
            node.seen_at = now
            node = node.parent

    def stop(self, why: str) -> None:
        """End it for good, with what it has: its attempt's time is up, and there is no other."""
        if self.stop_reason is None and self.result is None:
            self.stop_reason = why
            if self.deadline is not None:
                self.deadline.reschedule(asyncio.get_running_loop().time())

    async def pause(self) -> None:
        """Wait for the end of this process's work on the run. It is cancelled, and nothing else."""
        self.paused = True
        self.suspension.check_idle()
        with self.waiting():
            await asyncio.Event().wait()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While inside, silence is no sign of anything: neither its own nor that of who waits."""
        node: Agent | None = self
        while node is not None:
            node.excused += 1
            node = node.parent
        try:
            yield
        finally:
            node = self
            while node is not None:
                node.excused -= 1
                node = node.parent
            self.touch()

    def record(self, fact: Fact, *, new_agent: NewAgent | None = None) -> Event:
        self.touch()
        parent_id = None if self.parent is None else self.parent.id
        return self._journal.record(fact, self.id, parent_id, self.attempt, new_agent)

    async def durable(self) -> None:
        await self._journal.durable()

    def keep(self, receipt: Receipt) -> None:
        self.receipts.append(receipt)
        self.tainted = self.tainted or receipt.untrusted
        self.heard_untrusted = self.heard_untrusted or (
            receipt.untrusted and receipt.command is None
        )
        for path in receipt.read:
            self.files_read[path] = None
        if receipt.command is not None or receipt.changed:
            self.tested = still_tested(self.tested, receipt)
        for change in receipt.changed:
            before = self.files_modified.get(change.path)
            self.files_modified[change.path] = merge_changes(before, change)

    def restore(self, past: ResumePoint) -> None:
        """Take over the state in which another process has left the agent."""
        state = past.agent
        self.account.charge(state.spent)
        self.past = past
        self.origin_key, self.background = state.origin_key, state.background
        self.notes, self.steps = state.notes, state.next_step
        self.attempt, self.usage, self.last_text = state.attempt, state.usage, state.said
        self.files_read, self.files_modified = state.files_read, state.files_modified
        self.receipts, self.tainted = state.receipts, state.tainted
        self.heard_untrusted, self.tested = state.heard_untrusted, state.tested
        self.checks, self.kept = state.checks, bool(state.kept)
        self.inbox = [(FROM_PARENT, words) for words in past.unread]

    def hear_of(self, child: Agent) -> None:
        """Take over what is known of a child that has ended."""
        if child.tainted:
            # However it hears of it. A program that leads has no conversation to be led astray.
            self.tainted, self.heard_untrusted = True, self.heard_untrusted or self.attempt > 0
        if child.tested or (child.files_modified and not child.kept):
            self.tested = child.tested

    def next_path(self, role: str) -> str:
        """The path of the next child, such as `root/tester.2`."""
        self.steps += 1
        number = self.names[role] = self.names.get(role, 0) + 1
        return f"{self.path}/{role}.{number}"

    @property
    def step_path(self) -> str:
        """Its step among its parent's, and theirs: 3, or 3.0 for the first child of the fourth."""
        own = str(self.contract.parent.step_idx)
        above = self.parent
        return own if above is None or above.depth == 0 else f"{above.step_path}.{own}"

    def spent(self, duration_s: float) -> Spent:
        return Spent(
            tool_calls=self.account.spent.tool_calls,
            turns=self.account.spent.turns,
            tokens_in=self.usage.tokens_in,
            tokens_cached=self.usage.tokens_cached,
            tokens_out=self.usage.tokens_out,
            cost_usd=self.usage.cost_usd,
            duration_s=duration_s,
        )
