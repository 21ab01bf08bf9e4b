"""Accepts or refuses work: by the write scope of its contract, and by the checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from retinue.domain.events import ResultProposed
from retinue.domain.result import Status
from retinue.domain.scope import contains
from retinue.ports.file_tree import Proposal
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.loop import AttemptOutcome
from retinue.runtime.integration.checks import Checks

MAX_SHOWN_PATHS = 10


async def check_in_place(
    agent: Agent, outcome: AttemptOutcome, checks: Checks, *, changed: bool
) -> AttemptOutcome:
    """Check the work of an agent that worked in its parent's own files; return the final outcome.

    Changes outside its scope are reported and left as they are. They come from commands without a
    sandbox, or from the user, who works in the same files.
    """
    problem = outside_scope(agent, agent.state.files_modified)
    if problem:
        if agent.files.recorder is not None:
            run_id = agent.contract.parent.run_id
            problem += f"; unless that was you, take it back: retinue undo {run_id} {agent.id}"
    elif outcome.status is Status.COMPLETED and (
        agent.contract.outputs.checks and must_check(agent, changed=changed)
    ):
        files = tuple(agent.state.files_modified.values())
        if not outcome.proposed:
            outcome = record_proposal(agent, outcome, Proposal(commit="", files=files))
        with agent.waiting():
            problem = await checks.run(
                agent, agent.files.tree, await agent.files.tree.snapshot(None)
            )
    if not problem:
        return outcome
    return msgspec.structs.replace(outcome, status=Status.ERROR, reason=problem)


def must_check(agent: Agent, *, changed: bool) -> bool:
    """Whether the checks have to run.

    Checks that every change must pass do not run without a change. Checks of the agent's own task
    always run: they decide whether the task is done.
    """
    checks, parent = agent.contract.outputs.checks, agent.parent
    inherited = checks if parent is None else parent.contract.outputs.checks
    return changed or any(check not in inherited for check in checks)


def outside_scope(agent: Agent, paths: Iterable[str]) -> str:
    """Say which of the changed `paths` the contract does not let the agent write, or return ""."""
    scope = agent.contract.permissions.write_scope
    outside = [path for path in paths if not contains(scope, path)]
    if not outside:
        return ""
    return f"it changed what its contract does not let it write: {shown_paths(outside)}"


def shown_paths(paths: Sequence[str]) -> str:
    """The first of many paths, and how many more there are."""
    more = len(paths) - MAX_SHOWN_PATHS
    return ", ".join(paths[:MAX_SHOWN_PATHS]) + (f" and {more} more" if more > 0 else "")


def record_proposal(agent: Agent, outcome: AttemptOutcome, proposal: Proposal) -> AttemptOutcome:
    """Record that the work waits to be merged, and return the outcome that says so."""
    proposed = ResultProposed(
        sub_agent_id=agent.id,
        response=outcome.text,
        files_modified=proposal.files,
        commit=proposal.commit,
    )
    agent.record(proposed)
    return msgspec.structs.replace(outcome, proposed=True)
