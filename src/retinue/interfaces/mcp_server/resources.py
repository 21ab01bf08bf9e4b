"""Resources of the MCP server: runs of the project, reports of their agents, and diffs."""

from __future__ import annotations

from typing import Any

import msgspec

from retinue.domain.run_state import RunState, fold
from retinue.errors import StoreError, UsageError
from retinue.project import open_journal, open_run_changes
from retinue.runtime.history.audit import read_all
from retinue.runtime.history.session import user_runs

SCHEME = "retinue://"
SHOWN_RUNS = 20
TEMPLATES = (
    ("runs/{run}", "A run: its agents, states and results", "application/json"),
    ("runs/{run}/report/{agent}", "The whole report of an agent", "text/markdown"),
    ("runs/{run}/diff/{agent}", "What an agent changed", "text/x-diff"),
)


class Resources:
    """Reads the journals of one project. It needs no model and opens no runtime."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    async def latest_runs(self) -> list[dict[str, Any]]:
        """The latest runs."""
        try:
            async with open_journal(self._directory) as store:
                runs = await user_runs(store, limit=SHOWN_RUNS)
        except StoreError:  # Nothing has run in this project yet.
            return []
        return [
            {
                "uri": f"{SCHEME}runs/{run.id}",
                "name": run.id,
                "title": run.task[:80],
                "mimeType": "application/json",
            }
            for run in runs
        ]

    def templates(self) -> list[dict[str, Any]]:
        return [
            {"uriTemplate": SCHEME + path, "name": name, "mimeType": kind}
            for path, name, kind in TEMPLATES
        ]

    async def read(self, uri: str) -> dict[str, Any]:
        """One resource. Raises UsageError, and UnknownRun."""
        match uri.removeprefix(SCHEME).split("/"):
            case ["runs", run]:
                text, kind = await self._run(run), "application/json"
            case ["runs", run, "report", agent]:
                text, kind = await self._report(run, agent), "text/markdown"
            case ["runs", run, "diff", agent]:
                text, kind = await self._diff(run, agent), "text/x-diff"
            case _:
                known = ", ".join(SCHEME + path for path, *_ in TEMPLATES)
                raise UsageError(f"Unknown resource {uri!r}; there are: {known}.")
        return {"uri": uri, "mimeType": kind, "text": text}

    async def _state(self, run: str) -> RunState:
        async with open_journal(self._directory) as store:
            row = await store.run(run)
            return fold(await read_all(store, row.id))

    async def _run(self, run: str) -> str:
        state = await self._state(run)
        agents = [
            {
                "agent": agent.id,
                "parent": agent.parent_id,
                "role": agent.role,
                "task": agent.title,
                "state": agent.state,
                "status": agent.status,
            }
            for agent in state.agents.values()
        ]
        found = {"run": state.id, "task": state.task, "status": state.status, "agents": agents}
        return msgspec.json.encode(found).decode()

    async def _report(self, run: str, agent: str) -> str:
        found = (await self._state(run)).agent(agent)
        return found.response or f"{found.id} has no report yet."

    async def _diff(self, run: str, agent: str) -> str:
        state = await self._state(run)
        async with open_run_changes(self._directory, state.id) as changes:
            return "\n".join(patch.patch for patch in await changes.diff(agent))
