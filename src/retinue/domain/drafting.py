"""Writing contracts: from what the parent may do and what is asked for, to what the child may do.

`draft` is a pure function; `ContractDrafter` does the same for many children. A draft only narrows
what the parent has, and `notes` says what was taken away and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from retinue.domain.account import Account, Resources
from retinue.domain.budget import Budget, Limits
from retinue.domain.contract import (
    REPORT_PATH_PATTERN,
    Contract,
    Execution,
    OnConflict,
    Outputs,
    Parent,
    Step,
    WorkspaceKind,
    execution_limits,
    title_of,
)
from retinue.domain.grant import Grant, Mode, Network, intersect_grants
from retinue.domain.messages import Effect
from retinue.domain.role import Role
from retinue.domain.scope import ANYWHERE, NOWHERE, Groups, canonical, scope
from retinue.domain.tool_names import (
    ALL_MCP_TOOLS,
    READING_MCP_TOOLS,
    is_mcp_tool,
    select_names,
    server_of,
)
from retinue.errors import ContractError

ASK_USER = "ask_user"
# What changes nothing that a person would want to be asked about first.
NO_APPROVAL_EFFECTS = (Effect.READ, Effect.REMEMBER, Effect.DELEGATE)
_WRITING = (Effect.WRITE, Effect.EXECUTE)


class AgentSpec(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is asked of a child, before anybody has looked at what may be given. None: not said."""

    task: str
    role: Role
    instructions: str | None = None
    extra_instructions: str | None = None
    cache: bool = True
    tools: tuple[str, ...] | None = None
    mode: Mode | None = None
    scope: tuple[str, ...] = ()
    write: tuple[str, ...] | None = None
    context: str = ""
    model: str | None = None
    directory: str | None = None
    output_schema: str | None = None
    success_criteria: tuple[str, ...] = ()
    workspace: WorkspaceKind | None = None
    checks: tuple[str, ...] = ()
    on_conflict: OnConflict | None = None
    limits: Limits = Limits()
    notes: tuple[str, ...] = ()
    """What could not be given along, and why."""
    name: str = ""
    """What it is called in its path; its role's name if nothing is said."""
    title: str = ""
    goal_summary: str = ""
    """What it is part of."""
    step_idx: int | None = None
    """Its number, where it is a step of a plan; the parent's next if nothing is said."""


class Authority(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What the giver of an order has to give."""

    run_id: str
    agent_id: str | None
    task_prompt: str
    grant: Grant
    budget: Budget
    left: Resources
    model: str
    working_directory: str
    silence_ms: int = 120_000
    report_path_pattern: str = REPORT_PATH_PATTERN
    checks: tuple[str, ...] = ()
    on_conflict: OnConflict = OnConflict.FAIL

    @classmethod
    def of(cls, contract: Contract, agent_id: str, account: Account) -> Authority:
        return cls(
            run_id=contract.parent.run_id,
            agent_id=agent_id,
            task_prompt=contract.parent.task_prompt,
            grant=contract.permissions,
            budget=contract.execution.budget,
            left=account.remaining(),
            model=contract.execution.model,
            working_directory=contract.execution.working_directory,
            silence_ms=contract.execution.silence_ms,
            report_path_pattern=contract.outputs.report_path_pattern,
            checks=contract.outputs.checks,
            on_conflict=contract.outputs.on_conflict,
        )


class DraftedContract(msgspec.Struct, frozen=True, gc=False):
    contract: Contract
    notes: tuple[str, ...]


def root_grant(
    mode: Mode, effects: Mapping[str, Effect], *, roles: tuple[str, ...], depth: int
) -> Grant:
    """What a run's root may do, from the mode that the user chose."""
    freely, asked = [], []
    for name, effect in effects.items():
        if mode is Mode.PLAN and effect is not Effect.READ:
            continue
        if mode.autonomous or effect in NO_APPROVAL_EFFECTS:
            freely.append(name)
        else:
            asked.append(name)
    return Grant(
        allowed_tools=tuple(freely),
        ask_tools=tuple(asked),
        mode=mode,
        network=Network.ALL,
        can_spawn_children=True,
        spawn_roles=roles,
        max_delegation_depth=depth,
    )


def without_delegation(grant: Grant, effects: Mapping[str, Effect]) -> Grant:
    """`grant` without the tools that make children, where it gives no right to have any."""
    if grant.can_spawn_children:
        return grant
    kept = tuple(n for n in grant.allowed_tools if effects.get(n) is not Effect.DELEGATE)
    if kept == grant.allowed_tools:
        return grant
    return msgspec.structs.replace(grant, allowed_tools=kept)


def draft(
    spec: AgentSpec, authority: Authority, *, step_idx: int, effects: Mapping[str, Effect]
) -> DraftedContract:
    """The contract for `spec`. Raises ContractError where there is nothing that can be given."""
    return ContractDrafter(effects).draft(spec, authority, step_idx=step_idx)


class ContractDrafter:
    """`draft` for all children of a run: what siblings may do is worked out once.

    That takes 60 µs, and a fan-out would do so ten thousand times.
    """

    def __init__(self, effects: Mapping[str, Effect]) -> None:
        self._effects = effects
        self._permits: dict[str, tuple[tuple[object, ...], _Permit]] = {}
        """The last one of each role, and what was asked for it."""

    def draft(self, spec: AgentSpec, authority: Authority, *, step_idx: int) -> DraftedContract:
        permit = self._permit(spec, authority.grant)
        notes = [*spec.notes, *permit.notes]
        budget = _budget(spec, authority, notes)
        role = spec.role
        contract = Contract(
            parent=Parent(
                run_id=authority.run_id,
                agent_id=authority.agent_id,
                step_idx=step_idx if spec.step_idx is None else spec.step_idx,
                task_prompt=authority.task_prompt,
                goal_summary=spec.goal_summary,
            ),
            step=Step(
                title=spec.title or title_of(spec.task),
                description=spec.task,
                success_criteria=spec.success_criteria,
                scope=spec.scope,
                context=spec.context,
            ),
            permissions=permit.grant,
            execution=Execution(
                role=role.name,
                instructions=(
                    role.instructions if spec.instructions is None else spec.instructions
                ),
                model=spec.model or role.model or authority.model,
                working_directory=spec.directory or authority.working_directory,
                workspace=permit.workspace,
                silence_ms=authority.silence_ms,
                **execution_limits(budget),  # type: ignore[arg-type]
            ),
            outputs=Outputs(
                output_schema=spec.output_schema,
                report_path_pattern=authority.report_path_pattern,
                # What the parent's own work must pass, its children's must.
                checks=tuple(dict.fromkeys((*authority.checks, *spec.checks))),
                on_conflict=spec.on_conflict or authority.on_conflict,
            ),
        )
        return DraftedContract(contract, tuple(notes))

    def preview(self, spec: AgentSpec, authority: Authority) -> Grant:
        """The grant that a child would get. Raises ContractError as `draft` does."""
        grant = self._permit(spec, authority.grant).grant
        _budget(spec, authority, [])
        return grant

    def _permit(self, spec: AgentSpec, parent: Grant) -> _Permit:
        role = spec.role
        # All of an order that `_granted` looks at.
        asked = (
            parent, role, spec.tools, spec.mode, spec.scope, spec.write, spec.directory,
            spec.workspace,
        )  # fmt: skip
        known = self._permits.get(role.name)
        if known is None or known[0] != asked:
            known = self._permits[role.name] = asked, _permitted(spec, parent, self._effects)
        return known[1]


class _Permit(msgspec.Struct, frozen=True, gc=False):
    """What a child may do, where it does it, and what it was not given."""

    grant: Grant
    workspace: WorkspaceKind
    notes: tuple[str, ...]


def _permitted(spec: AgentSpec, parent: Grant, effects: Mapping[str, Effect]) -> _Permit:
    notes: list[str] = []
    grant = _grant(spec, parent, effects, notes)
    workspace = workspace_for(grant, effects, spec.workspace or spec.role.workspace)
    return _Permit(grant, workspace, tuple(notes))


def workspace_for(
    grant: Grant, effects: Mapping[str, Effect], wanted: WorkspaceKind | None
) -> WorkspaceKind:
    """A copy for who can write, unless something else is wanted; and no copy for who cannot."""
    tools = (*grant.allowed_tools, *grant.ask_tools)
    writes = any(effects.get(name, Effect.EXECUTE) in _WRITING for name in tools)
    if not writes or grant.write_scope == NOWHERE:
        return WorkspaceKind.READONLY
    return wanted or WorkspaceKind.WORKTREE


def _grant(
    spec: AgentSpec, parent: Grant, effects: Mapping[str, Effect], notes: list[str]
) -> Grant:
    _check_right_to_spawn(spec.role, parent)
    mode = _mode(spec, parent, notes)
    spawns = spec.role.spawns if mode is not Mode.PLAN and _may_delegate(spec, effects) else ()
    depth = parent.max_delegation_depth - 1
    child = Grant(
        allowed_tools=_tools(spec, parent, mode, effects, notes, spawns=bool(spawns and depth)),
        mode=mode,
        write_scope=_scope(spec),
        network=Network.NONE,
        can_spawn_children=bool(spawns),
        spawn_roles=spawns,
        max_delegation_depth=depth,
    )
    return without_delegation(intersect_grants(_opened(parent), child), effects)


@lru_cache(maxsize=64)
def _opened(parent: Grant) -> Grant:
    """The most that a child of `parent` may have; siblings share it.

    `_tools` decides what becomes of what the parent is asked about; nothing is asked below.
    """
    return msgspec.structs.replace(
        parent,
        allowed_tools=(*parent.allowed_tools, *parent.ask_tools),
        ask_tools=(),
        max_delegation_depth=max(0, parent.max_delegation_depth - 1),
    )


def _check_right_to_spawn(role: Role, parent: Grant) -> None:
    if not parent.can_spawn_children:
        raise ContractError(
            "This agent may not delegate (its contract does not allow it, or the depth limit is"
            " reached); do the work with your other tools."
        )
    if role.name not in parent.spawn_roles:
        raise ContractError(
            f"This agent may not employ {role.name!r}; it may employ:"
            f" {', '.join(parent.spawn_roles)}."
        )


def _may_delegate(spec: AgentSpec, effects: Mapping[str, Effect]) -> bool:
    """A call that names the tools names them all: without a delegating one, its child has none."""
    if spec.tools is None:
        return True
    return any(effects.get(n) is Effect.DELEGATE for n in select_names(spec.tools, effects)[0])


def _mode(spec: AgentSpec, parent: Grant, notes: list[str]) -> Mode:
    """The least of what the parent has, the role says and the order asks for."""
    mode = parent.mode
    for asked in (spec.role.mode, spec.mode):
        if asked is None:
            continue
        if asked.rank > parent.mode.rank:
            notes.append(f"mode {asked} became {parent.mode}: the parent has no more than that")
        mode = min(mode, asked, key=lambda m: m.rank)
    return mode


def _tools(
    spec: AgentSpec,
    parent: Grant,
    mode: Mode,
    effects: Mapping[str, Effect],
    notes: list[str],
    *,
    spawns: bool,
) -> tuple[str, ...]:
    """What the child may use: the call's choice before the role's before all the parent has."""
    offered = {*parent.allowed_tools, *parent.ask_tools}
    wanted = spec.role.tools if spec.tools is None else spec.tools
    asked, unknown = (offered, []) if wanted is None else select_names(wanted, effects)
    if unknown and spec.tools is not None:
        raise ContractError(
            f"Unknown tool {unknown[0]!r}; there are: {', '.join(sorted(effects))}."
        )
    if wanted is not None and READING_MCP_TOOLS in wanted:
        asked = {
            *asked,
            *(n for n in filter(is_mcp_tool, offered) if effects.get(n) is Effect.READ),
        }
    if spawns:
        asked = {*asked, *(n for n in offered if effects.get(n) is Effect.DELEGATE)}
    allowed, denied = [], _Denied(wanted)
    missing = sorted(asked - offered)
    if ours := [name for name in missing if not is_mcp_tool(name)]:
        notes.append(f"without {', '.join(ours)}: the parent does not have it")
    for name in filter(is_mcp_tool, missing):
        denied.add(name, "the parent does not have it")
    for name in sorted(asked & offered):
        effect = effects.get(name, Effect.EXECUTE)
        if name == ASK_USER:
            denied.add(name, "a child never talks to the user")
        elif effect is Effect.DELEGATE and not spawns:
            if wanted is not None:
                denied.add(name, f"{spec.role.name} has no right to delegate")
        elif mode is Mode.PLAN and effect is not Effect.READ:
            denied.add(name, "plan mode only reads")
        elif name in parent.ask_tools and not mode.autonomous:
            denied.add(name, f"it needs a person's yes in {mode} mode; use mode auto")
        elif effect is Effect.EXTERNAL and _is_confined(spec):
            denied.add(name, "no scope can hold it, and this child is to keep to one")
        else:
            allowed.append(name)
    notes += denied.notes()
    return tuple(allowed)


class _Denied:
    """The tools that a child does not get, and why."""

    def __init__(self, wanted: tuple[str, ...] | None) -> None:
        self._wanted = wanted
        self._names: dict[tuple[str, str], list[str]] = {}

    def add(self, name: str, why: str) -> None:
        if is_mcp_tool(name):
            if self._is_counted_on(name):
                self._names.setdefault((server_of(name), why), []).append(name)
        else:
            self._names[name, why] = [name]

    def notes(self) -> list[str]:
        """A line each, and one for all of a server: they come by the dozen."""
        return [
            f"without {first}{f' and {len(rest)} more of {server}' if rest else ''}: {why}"
            for (server, why), (first, *rest) in self._names.items()
        ]

    def _is_counted_on(self, name: str) -> bool:
        """Not so a tool that only "whatever the servers have" would mean."""
        if self._wanted is None:
            return True
        named = (pattern for pattern in self._wanted if pattern != ALL_MCP_TOOLS)
        return bool(select_names(named, (name,))[0])


def _scope(spec: AgentSpec) -> Groups:
    """Where it may write: inside its role's paths, inside its scope, and where the order says."""
    groups: Groups = spec.role.write_scope
    if WorkspaceKind.READONLY in (spec.workspace, spec.role.workspace):
        return NOWHERE
    if spec.scope:
        groups = (*groups, *scope(*spec.scope))
    return groups if spec.write is None else (*groups, *scope(*spec.write))


def _is_confined(spec: AgentSpec) -> bool:
    """Whether it is to keep to a part of what there is."""
    return spec.directory is not None or canonical(_scope(spec)) != ANYWHERE


_CLAMPED = ("max_tool_calls", "max_turns", "timeout_s")


def _budget(spec: AgentSpec, authority: Authority, notes: list[str]) -> Budget:
    most, left = authority.budget, authority.left
    # What was asked for must make sense before it is clamped.
    asked, explicit = spec.limits.applied_to(spec.role.budget), spec.limits.given()
    limits: dict[str, float] = {name: getattr(most, name) for name in _CLAMPED}
    if left.tokens <= 0:
        raise ContractError("No tokens are left for a child; finish with what there is.")
    if most.max_tokens is not None or left.tokens < (asked.max_tokens or 0):
        limits["max_tokens"] = left.tokens
    if most.max_cost_usd is not None:
        if left.cost_microusd <= 0:
            raise ContractError("No money is left for a child; finish with what there is.")
        limits["max_cost_usd"] = left.cost_microusd / 1_000_000
    clamped = {}
    for name, limit in limits.items():
        value = getattr(asked, name)
        if value is None or value > limit:
            clamped[name] = limit
            if name in explicit or (value is not None and name not in _CLAMPED):
                became = f"{name} {_plain(value)} became {_plain(limit)}"
                notes.append(f"{became}: the parent has no more")
    return msgspec.structs.replace(asked, **clamped) if clamped else asked


def _plain(value: float | None) -> str:
    if value is None:
        return "unlimited"
    # Not `g` for both: it would make 1e+06 of a million tokens.
    return str(value) if isinstance(value, int) else f"{value:g}"
