"""Tool that reads the history of the user's repository."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from retinue.domain.messages import Effect
from retinue.ports.tool import ToolContext, ToolOutcome
from retinue.ports.workspace import GitQuery
from retinue.threads import in_daemon_thread
from retinue.tools.function import tool
from retinue.tools.schema import HIDDEN


@tool(effect=Effect.READ)
async def git_read(
    ctx: ToolContext,
    what: Literal["diff", "log", "show", "blame"] = "diff",
    revision: str | None = None,
    path: str | None = None,
    start: Annotated[int | None, HIDDEN] = None,
    end: Annotated[int | None, HIDDEN] = None,
) -> ToolOutcome:
    """Read git history. revision: commit, branch or a..b; plain diff: uncommitted changes."""
    query = GitQuery(what=what, revision=revision, path=path, start=start, end=end)
    # Not a thread of the pool: on a host it may wait for the history, which comes through the pool.
    return ToolOutcome(content=await in_daemon_thread(partial(ctx.workspace.git, query)))
