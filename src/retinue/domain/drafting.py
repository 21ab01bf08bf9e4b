"""Writing contracts: from what the parent may do and what is asked for, to what the child may do.

One pure function, `draft`. It only ever narrows, and it says in `notes` what it took away and why.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from retinue.domain.budget import Account, Amounts, Budget
from retinue.domain.contract import (
    Contract,
    Execution,
    Outputs,
    Parent,
    Step,
    execution_limits,
    title_of,
)
from retinue.domain.grant import Grant, Mode, Network, narrow
from retinue.domain.messages import Effect
from retinue.domain.role import Role
from retinue.domain.scope import ANYWHERE, Groups, scope
from retinue.errors import ContractError

FREE_HANDED = (Mode.AUTO, Mode.DANGEROUS)


class Order(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is asked of a child, before anybody has looked at what may be given. None: not said."""

    task: str
    role: Role
    tools: tuple[str, ...] | None = None
    mode: Mode | None = None
    write: tuple[str, ...] | None = None
    model: str | None = None
    max_tool_calls: int | None = None
    max_turns: int | None = None
    max_tokens: int | None = None
    max_context_tokens: int | None = None
    timeout_s: float | None = None
    max_cost_usd: float | None = None
    max_retries: int | None = None


class Superior(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What the giver of an order has to give."""

    run_id: str
    agent_id: str | None
    task_prompt: str
    grant: Grant
    budget: Budget
    left: Amounts
    model: str
    working_directory: str

    @classmethod
    def of(cls, contract: Contract, agent_id: str, account: Account) -> Superior:
        return cls(
            run_id=contract.parent.run_id,
            agent_id=agent_id,
            task_prompt=contract.parent.task_prompt,
            grant=contract.permissions,
            budget=contract.execution.budget,
            left=account.unspent(),
            model=contract.execution.model,
            working_directory=contract.execution.working_directory,
        )


class Draft(msgspec.Struct, frozen=True, gc=False):
    contract: Contract
    notes: tuple[str, ...]


def root_grant(
    mode: Mode, effects: Mapping[str, Effect], *, roles: tuple[str, ...], depth: int
) -> Grant:
    """What a run's root may do, from the mode that the user chose."""
    reads = tuple(name for name, effect in effects.items() if effect is Effect.READ)
    others = tuple(name for name, effect in effects.items() if effect is not Effect.READ)
    return Grant(
        allowed_tools=reads + others if mode in FREE_HANDED else reads,
        ask_tools=others if mode is Mode.NORMAL else (),
        mode=mode,
        network=Network.ALL,
        can_spawn_children=True,
        spawn_roles=roles,
        max_delegation_depth=depth,
    )


def draft(
    order: Order, superior: Superior, *, step_idx: int, effects: Mapping[str, Effect]
) -> Draft:
    """The contract for `order`. Raises ContractError where there is nothing that can be given."""
    notes: list[str] = []
    grant = _grant(order, superior.grant, effects, notes)
    budget = _budget(order, superior, notes)
    contract = Contract(
        parent=Parent(
            run_id=superior.run_id,
            agent_id=superior.agent_id,
            step_idx=step_idx,
            task_prompt=superior.task_prompt,
        ),
        step=Step(title=title_of(order.task), description=order.task),
        permissions=grant,
        execution=Execution(
            role=order.role.name,
            instructions=order.role.instructions,
            model=order.model or order.role.model or superior.model,
            working_directory=superior.working_directory,
            **execution_limits(budget),  # type: ignore[arg-type]
        ),
        outputs=Outputs(),
    )
    return Draft(contract, tuple(notes))


def _grant(order: Order, parent: Grant, effects: Mapping[str, Effect], notes: list[str]) -> Grant:
    if not parent.can_spawn_children:
        raise ContractError("This agent may not delegate; do the work with the tools at hand.")
    if order.role.name not in parent.spawn_roles:
        raise ContractError(
            f"This agent may not employ {order.role.name!r}; it may employ:"
            f" {', '.join(parent.spawn_roles)}."
        )
    offered = {*parent.allowed_tools, *parent.ask_tools}
    wanted = order.tools if order.tools is not None else order.role.tools
    if order.tools is not None:
        unknown = sorted(set(order.tools) - effects.keys())
        if unknown:
            raise ContractError(
                f"Unknown tool {unknown[0]!r}; there are: {', '.join(sorted(effects))}."
            )
    mode = parent.mode
    if order.mode is not None:
        mode = min(order.mode, parent.mode, key=lambda m: m.rank)
        if mode is not order.mode:
            notes.append(f"mode {order.mode} became {mode}: the parent has no more than that")
    asked = frozenset(offered if wanted is None else wanted)
    missing = sorted(name for name in asked - offered if name in effects)
    if missing:
        notes.append(f"without {', '.join(missing)}: the parent does not have it")
    allowed = set()
    for name in sorted(asked & offered):
        writes = effects.get(name, Effect.EXECUTE) is not Effect.READ
        if mode is Mode.PLAN and writes:
            notes.append(f"without {name}: plan mode only reads")
        elif name in parent.ask_tools and mode not in FREE_HANDED:
            notes.append(f"without {name}: it needs a person's yes in {mode} mode; use mode auto")
        else:
            allowed.add(name)
    spawns = bool(order.role.spawns)
    child = Grant(
        allowed_tools=tuple(allowed),
        mode=mode,
        write_scope=_scope(order),
        network=Network.NONE,
        can_spawn_children=spawns,
        spawn_roles=order.role.spawns,
        max_delegation_depth=parent.max_delegation_depth - 1,
    )
    # What `ask` became was decided above; nothing of the parent's asking is left in a child.
    opened = msgspec.structs.replace(
        parent,
        allowed_tools=tuple(offered),
        ask_tools=(),
        max_delegation_depth=parent.max_delegation_depth - 1,
    )
    return narrow(opened, child)


def _scope(order: Order) -> Groups:
    asked = ANYWHERE if order.write is None else scope(*order.write)
    return (*order.role.write_scope, *asked)


_CLAMPED = ("max_tool_calls", "max_turns", "timeout_s")


def _budget(order: Order, superior: Superior, notes: list[str]) -> Budget:
    fields = {name: getattr(order.role.budget, name) for name in Budget.__struct_fields__}
    for name in fields:
        asked = getattr(order, name)
        if asked is not None:
            fields[name] = asked
    Budget(**fields)  # What was asked for must make sense before it is clamped.
    explicit = {name for name in fields if getattr(order, name) is not None}

    def clamp(name: str, most: float) -> None:
        value = fields[name]
        if value is None or value > most:
            fields[name] = most
            if value is not None or name in explicit:
                notes.append(
                    f"{name} {_plain(value)} became {_plain(most)}: the parent has no more"
                )

    for name in _CLAMPED:
        clamp(name, getattr(superior.budget, name))
    if superior.budget.max_tokens is not None or superior.left.tokens < (fields["max_tokens"] or 0):
        if superior.left.tokens <= 0:
            raise ContractError("No tokens are left for a child; finish with what there is.")
        clamp("max_tokens", superior.left.tokens)
    if superior.budget.max_cost_usd is not None:
        clamp("max_cost_usd", superior.budget.max_cost_usd)
    return Budget(**fields)


def _plain(value: float | None) -> str:
    return "unlimited" if value is None else f"{value:g}"
