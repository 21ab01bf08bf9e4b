"""The run that a command is about: the one that was named, or the last one."""

from __future__ import annotations

import re

from retinue.errors import UnknownRun
from retinue.project import existing_file, open_journal
from retinue.runtime.history.session import latest_run

_AGENT = re.compile(r"a\d+|root(/\S+)?")


async def chosen_run(
    directory: str, run: str | None, agent: str | None = None
) -> tuple[str, str | None]:
    """The run and the agent that were named. Without a run, it is the last one.

    A name that is no run but looks like an agent (`a2`) is an agent of the last run.
    """
    if run is not None and (agent is not None or existing_file(run) is not None):
        return run, agent
    async with open_journal(directory) as store:
        if run is not None:
            try:
                return (await store.run(run)).id, None
            except UnknownRun:
                if not _AGENT.fullmatch(run):
                    raise
        latest = await latest_run(store)
    if latest is None:
        raise UnknownRun("There are no runs here yet.")
    return latest.id, run
