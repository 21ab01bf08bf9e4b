"""The reports of children, and their paths: as their runs write them, or again from a journal."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from retinue.domain.agent_state import AgentState, result_of
from retinue.domain.contract import Contract
from retinue.domain.lifecycle import State
from retinue.domain.report import markdown
from retinue.domain.result import Result
from retinue.domain.run_state import RunState


def report_path(contract: Contract, agent_id: str, step_path: str) -> str:
    """The path of an agent's report in the project; see `Agent.step_path`."""
    path = contract.outputs.report_path_pattern.replace("<idx>", step_path)
    return path.replace("<run>", contract.parent.run_id).replace("<agent>", agent_id)


def project_result(
    state: AgentState,
    contract: Contract,
    root: Contract,
    duration_s: float,
    data: Any = None,
) -> Result:
    """The result of an agent that has ended, with paths relative to the directory of the root."""
    result = result_of(
        state,
        run_id=contract.parent.run_id,
        task=contract.step.description,
        summary_tokens=contract.outputs.result_cap_tokens,
        duration_s=duration_s,
        data=data,
    )
    directory, start = contract.execution.working_directory, root.execution.working_directory
    if directory == start:  # As for nearly all agents.
        return result
    folder = os.path.relpath(directory, start)

    def from_project(path: str) -> str:
        return os.path.normpath(os.path.join(folder, path))

    return msgspec.structs.replace(
        result,
        files_read=tuple(map(from_project, result.files_read)),
        files_modified=tuple(
            msgspec.structs.replace(change, path=from_project(change.path))
            for change in result.files_modified
        ),
    )


def recorded_reports(state: RunState, contracts: Mapping[str, Contract]) -> dict[str, str]:
    """The reports of the closed children of a run, by their paths. `state` is not pruned."""
    steps: dict[str, str] = {}
    found: dict[str, str] = {}
    root = state.root
    for agent in state.agents.values():
        contract = contracts[agent.id]
        above = steps.get(agent.parent_id or "", "")
        own = str(contract.parent.step_idx)
        if root is None or agent is root:
            continue
        steps[agent.id] = f"{above}.{own}" if above else own
        if agent.state is State.CLOSED:
            result = project_result(agent, contract, contracts[root.id], agent.duration_s)
            path = report_path(contract, agent.id, steps[agent.id])
            found[path] = markdown(result, contract, agent.path)
    return found
