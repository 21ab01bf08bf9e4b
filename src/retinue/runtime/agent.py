"""A live node of the tree: its contract, its account, and its voice in the journal."""

from __future__ import annotations

from retinue.domain.budget import Account
from retinue.domain.contract import Contract
from retinue.domain.events import Event, Fact
from retinue.domain.messages import Usage
from retinue.domain.projection import merged
from retinue.domain.result import FileChange, Receipt, Result, Spent
from retinue.ports import NewAgent
from retinue.runtime.journal import Journal


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
        parent: Agent | None,
        since: float,
    ) -> None:
        self.id = id
        self.path = path
        self.depth = depth
        self.contract = contract
        self.account = account
        self.parent = parent
        self.since = since
        self.attempt = 0
        self.usage = Usage()
        self.last_text = ""
        self.dismissal = ""
        self.result: Result | None = None
        self.files_read: dict[str, None] = {}
        self.files_modified: dict[str, FileChange] = {}
        self.receipts: list[Receipt] = []
        self.steps = 0
        self.names: dict[str, int] = {}
        self._journal = journal

    @property
    def role(self) -> str:
        return self.contract.execution.role

    def record(self, fact: Fact, *, born: NewAgent | None = None) -> Event:
        return self._journal.record(
            fact,
            agent_id=self.id,
            parent_agent_id=None if self.parent is None else self.parent.id,
            attempt=self.attempt,
            born=born,
        )

    async def durable(self) -> None:
        await self._journal.durable()

    def keep(self, receipt: Receipt) -> None:
        self.receipts.append(receipt)
        self.files_read.update(dict.fromkeys(receipt.read))
        for change in receipt.changed:
            before = self.files_modified.get(change.path)
            self.files_modified[change.path] = merged(before, change)

    def next_step(self, role: str) -> tuple[int, str]:
        """The index and the path of the next child, such as 3 and `root/tester.2`."""
        self.steps += 1
        number = self.names[role] = self.names.get(role, 0) + 1
        return self.steps - 1, f"{self.path}/{role}.{number}"

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
