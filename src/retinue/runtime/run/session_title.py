"""Titles of sessions: a child writes one from the first exchange."""

from __future__ import annotations

import re
from typing import Any

from retinue.domain.plan.outcome import RunResult
from retinue.domain.result import Status
from retinue.domain.server_info import PER_SLOT_CACHE
from retinue.errors import RunSuspended
from retinue.ports.model import ModelCatalog
from retinue.ports.person import Listeners
from retinue.runtime.delegation.task import Task
from retinue.runtime.delegation.task_resolver import TaskResolver
from retinue.runtime.history.session import TITLE
from retinue.runtime.integration.baseline import Baseline
from retinue.runtime.run.program import program_outcome
from retinue.runtime.run.runs import Runs

ROLE = "researcher"
TASK = "Write the title of this conversation."
INSTRUCTIONS = (
    "You write titles of conversations. A title names the subject in three to seven words, in the"
    " language of the conversation. Answer with the title alone."
)
MAX_TURNS = 2
MAX_CHARACTERS = 2_000
"""How much the child reads of the request, and of the answer."""


async def write_title(runs: Runs, task_resolver: TaskResolver, first: RunResult[Any]) -> str:
    """A title for the session that the run `first` began; "" if the child has none.

    The child has a run of its own: that of the exchange has ended.
    """
    task = Task(
        ROLE,
        TASK,
        context=f"User: {first.task[:MAX_CHARACTERS]}\n\nAnswer: {first.response[:MAX_CHARACTERS]}",
        system_prompt=INSTRUCTIONS,
        tools=(),
        max_turns=MAX_TURNS,
    )
    spec = await task_resolver.resolve(task)
    run = runs.begin(TITLE, f"Title of session {first.session}", listeners=Listeners())

    async def work() -> tuple[str, Status, str]:
        try:
            result = await run.spawn(spec, "title", Baseline())
        except RunSuspended as error:
            # Nobody would resume it: the first words are a title too.
            return "", Status.ERROR, str(error)
        return result.response if result.ok else "", *program_outcome(run)

    return clean_title(await runs.run_to_end(run, work()))


def keeps_prompt_cache(models: ModelCatalog, name: str) -> bool:
    """Whether a server keeps a conversation in its prompt cache while it answers a child.

    A server with one slot, or with a cache per slot and an unknown number of slots, does not.
    """
    served = models.known(name)
    if served is None or (served.slots is None and served.server in PER_SLOT_CACHE):
        return False
    limits = [load.limit for load in models.loads() if load.known]
    return served.slots != 1 and 1 not in limits


def clean_title(text: str) -> str:
    """The title in a reply: its first line, without a label, quotes or a full stop."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = re.sub(r"^(#+\s*|\*\*|title:\s*)+", "", line, flags=re.IGNORECASE)
    return line.strip(" \"'`*“”«»").removesuffix(".")
