"""`AgentContext`: what a function that is a tool can learn about the agent that calls it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from retinue.domain.account import MICROUSD_PER_USD, UNLIMITED
from retinue.domain.result import FileChange
from retinue.errors import ToolFailure
from retinue.ports.tool import ToolContext

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_FOUND = 10_000


class Remaining(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What an agent may still use, within its own limits and those of its ancestors.

    ```python
    @retinue.tool(effect="read")
    def tokens_left(agent: retinue.AgentContext) -> str:
        "Tell how many tokens are left."
        return f"{agent.remaining.tokens} tokens, {agent.remaining.turns} turns"
    ```
    """

    tool_calls: int
    turns: int
    tokens: int | None
    """None without a limit, as for `cost_usd`."""
    cost_usd: float | None


class AgentWorkspace:
    """The files of an agent: its working copy, or the project. The contract limits what it writes.

    The methods block. A tool that uses them should be a plain function, which runs in a thread.

    ```python
    @retinue.tool
    def shout(path: str, agent: retinue.AgentContext) -> str:
        "Write a file in capitals."
        change = agent.workspace.write_text(path, agent.workspace.read_text(path).upper())
        return f"{change.path}: +{change.added} -{change.removed}"
    ```
    """

    def __init__(self, ctx: ToolContext) -> None:
        self._ctx = ctx
        self.read: list[str] = []
        """Paths that were read, for the receipt of the call."""
        self.changed: list[FileChange] = []
        """Changes that were made, for the receipt of the call."""

    @property
    def directory(self) -> str:
        """The folder of the files, as an absolute path."""
        return self._ctx.workspace.root

    def read_text(self, path: str) -> str:
        """The text of a file. Raises ToolFailure, with a message for the model."""
        data = self._ctx.workspace.read(path, max_bytes=MAX_FILE_BYTES)
        self.read.append(path)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise ToolFailure(f"{path} is not UTF-8 text.") from None

    def write_text(self, path: str, text: str) -> FileChange:
        """Write a file. Raises ToolFailure if the agent's contract does not allow it."""
        inside = self._ctx.workspace.inside(path)
        if inside is not None and not self._ctx.access.may_write(inside):
            raise ToolFailure(f"The contract does not let you write '{inside}'.")
        change = self._ctx.workspace.write(path, text.encode())
        self.changed.append(change)
        return change

    def find(self, glob: str) -> list[str]:
        """The files that match a glob, sorted, without those that git ignores."""
        return list(self._ctx.workspace.find(glob, under=".", limit=MAX_FOUND)[0])


class AgentContext:
    """The agent that calls a tool. A parameter of this type is filled in, and hidden from models.

    `workspace` has the agent's files: an `AgentWorkspace`. `report(text)` shows the progress of a
    long call to whoever watches, as a generator's `yield` does.

    ```python
    @retinue.tool(effect="read")
    def longest(agent: retinue.AgentContext) -> str:
        "Name the longest file."
        agent.report(f"{agent.remaining.tool_calls} calls are left")
        files = agent.workspace.find("*.txt")
        return max(files, key=lambda file: len(agent.workspace.read_text(file)))
    ```
    """

    def __init__(self, ctx: ToolContext, report: Callable[[str], None]) -> None:
        self._ctx = ctx
        self.workspace = AgentWorkspace(ctx)
        self.report = report

    @property
    def run_id(self) -> str:
        """The run that the agent belongs to."""
        return self._ctx.run_id

    @property
    def agent_id(self) -> str:
        """The id of the agent, such as `a3`."""
        return self._ctx.agent_id

    @property
    def path(self) -> str:
        """The agent's place in the tree, such as `root/tester.2`."""
        return self._ctx.path

    @property
    def depth(self) -> int:
        """Generations below the root; 0 for the root."""
        return self._ctx.depth

    @property
    def remaining(self) -> Remaining:
        """What the agent may still use, at this moment."""
        left = self._ctx.remaining()
        cost = left.cost_microusd
        return Remaining(
            tool_calls=left.tool_calls,
            turns=left.turns,
            tokens=None if left.tokens >= UNLIMITED else left.tokens,
            cost_usd=None if cost >= UNLIMITED else cost / MICROUSD_PER_USD,
        )
