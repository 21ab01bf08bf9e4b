"""`AgentSpec`: the request for a new agent. `Authority`: the rights of the agent's creator.

`retinue.domain.drafting` makes a contract from both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from retinue.domain.account import Account, Resources
from retinue.domain.budget import Budget, Limits
from retinue.domain.contract import (
    REPORT_PATH_PATTERN,
    SILENCE_MS,
    Contract,
    OnConflict,
    WorkspaceKind,
)
from retinue.domain.grant import Grant, Mode, Network
from retinue.domain.images import Image
from retinue.domain.role import Role
from retinue.domain.sampling import NO_SAMPLING, Sampling


class RequestedPermissions(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The permissions that a spec requests. None means the default of the role."""

    tools: tuple[str, ...] | None = None
    mode: Mode | None = None
    scope: tuple[str, ...] = ()
    """Paths to keep to; writing outside of them is denied."""
    write: tuple[str, ...] | None = None
    """Paths that may be written."""
    directory: str | None = None
    """Folder to work in; None is the creator's."""
    workspace: WorkspaceKind | None = None
    network: Network | None = None
    """Network of its commands; None is none."""
    skills: tuple[str, ...] | None = None
    """The only skills that it may load."""
    web_hosts: tuple[str, ...] | None = None
    """The only hosts that it may fetch from."""


class RequestedOutput(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Requirements on the answer, and conditions for merging the work."""

    schema: str | None = None
    """JSON schema of the answer, as text."""
    convert: Callable[[Any], Any] | None = None
    """Makes an object of the caller's type from a value that fits the schema.

    Raises ValueError, with words for the model."""
    success_criteria: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    """Commands that must succeed on the work before it is merged."""
    on_conflict: OnConflict | None = None


class StepLabel(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How the agent appears in its run, if it is a step of a plan."""

    name: str = ""
    """The agent's name in its path; by default its role."""
    title: str = ""
    goal_summary: str = ""
    """The goal of the plan; by default that of the creator."""
    number: int | None = None
    """By default the creator's next step number."""


class Continued(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The ended agent whose conversation a new agent continues."""

    reference: str
    """The agent, as `RUN/AGENT`."""
    instructions: str = ""
    """System prompt of that agent, which the new agent keeps; "" for an agent of another role."""
    tainted: bool = False
    read_untrusted: bool = False
    """Marks of that agent, as in `AgentState`."""


class AgentSpec(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The request for a new agent. Drafting decides how much of it is granted."""

    role: Role
    task: str
    context: str = ""
    """Text that the creator adds, already framed as data."""
    images: tuple[Image, ...] = ()
    system_prompt: str | None = None
    """Instructions in addition to those of the role."""
    model: str | None = None
    sampling: Sampling = NO_SAMPLING
    permissions: RequestedPermissions = RequestedPermissions()
    limits: Limits = Limits()
    output: RequestedOutput = RequestedOutput()
    step: StepLabel = StepLabel()
    cache: bool = True
    """Whether the result of an identical earlier agent may be used."""
    replaces: str = ""
    """The failed child whose task the agent does instead."""
    continues: Continued | None = None
    notes: tuple[str, ...] = ()
    """Parts of the request that were changed or left out, and why."""


class Authority(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The most that an agent can get from its creator: the user, or for a child its parent."""

    run_id: str
    agent_id: str | None
    """The creating agent; None is the user."""
    task_prompt: str
    goal_summary: str = ""
    grant: Grant
    budget: Budget
    remaining: Resources
    model: str
    working_directory: str
    sampling: Sampling = NO_SAMPLING
    """For agents with the same model, unless their role or their spec says otherwise."""
    silence_ms: int = SILENCE_MS
    report_path_pattern: str = REPORT_PATH_PATTERN
    checks: tuple[str, ...] = ()
    on_conflict: OnConflict = OnConflict.FAIL

    @classmethod
    def of_agent(cls, contract: Contract, agent_id: str, account: Account) -> Authority:
        return cls(
            run_id=contract.parent.run_id,
            agent_id=agent_id,
            task_prompt=contract.parent.task_prompt,
            goal_summary=contract.parent.goal_summary,
            grant=contract.permissions,
            budget=contract.execution.budget,
            remaining=account.remaining(),
            model=contract.execution.model,
            working_directory=contract.execution.working_directory,
            sampling=contract.execution.sampling or NO_SAMPLING,
            silence_ms=contract.execution.silence_ms,
            report_path_pattern=contract.outputs.report_path_pattern,
            checks=contract.outputs.checks,
            on_conflict=contract.outputs.on_conflict,
        )
