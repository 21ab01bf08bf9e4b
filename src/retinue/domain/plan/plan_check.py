"""Checks a plan before anything of it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches

import msgspec

from retinue.domain.account import MICROUSD_PER_USD
from retinue.domain.agent_spec import AgentSpec, Authority, RequestedPermissions
from retinue.domain.contract import Contract, WorkspaceKind
from retinue.domain.drafting import ContractDrafter
from retinue.domain.messages import Effect
from retinue.domain.paths import PROTECTED_NAMES
from retinue.domain.permissions import Approvals
from retinue.domain.plan.plan import (
    MAX_STEPS,
    MIN_STEP_TOKENS,
    REVIEW,
    Plan,
    PlanStep,
    Problem,
    bounds_of,
)
from retinue.domain.plan.schedule import cycles, upstream
from retinue.domain.role import Role
from retinue.domain.scope import ANYWHERE, NOWHERE, overlap, scope
from retinue.errors import ContractError


class PlanContext(msgspec.Struct, frozen=True, kw_only=True):
    """The roles, rights and limits of a run, against which its plan is checked."""

    roles: Mapping[str, Role]
    authority: Authority
    effects: Mapping[str, Effect]
    approvals: Approvals = Approvals()
    checks_possible: bool = True
    wrong_with_model: Callable[[str], str] = lambda _: ""
    """Why a model cannot be used, or ""."""
    wrong_with_command: Callable[[str], str] | None = None
    """Why a check that a model has written may not run, or ""; None if none may."""
    unpriced: Callable[[str], str] = lambda _: ""
    """The model behind a name, if its price is unknown; else ""."""


def problems(plan: Plan, means: PlanContext) -> list[Problem]:
    """All problems of a plan that could be read. Without problems it can be run."""
    found = [*_wrong_with_plan(plan), *_wrong_with_names(plan)]
    contracts: dict[str, Contract] = {}
    for step in plan.steps:
        found += _wrong_with_step(step, means)
        contract, wrong = _draft(plan, step, means)
        found += wrong
        if contract is not None:
            contracts.setdefault(step.name, contract)
    rounds = list(cycles(plan.needs))
    for circle in rounds:
        way = " → ".join((*circle, circle[0]))
        found.append(Problem(circle[0], "depends_on", f"goes in a circle: {way}"))
    if not rounds:
        found += _shared(plan, contracts)
    found += _wrong_with_budget(plan, means)
    return found


def _wrong_with_plan(plan: Plan) -> Iterator[Problem]:
    if len(plan.steps) > MAX_STEPS:
        yield Problem("", "steps", f"are {len(plan.steps)}; the maximum is {MAX_STEPS}")
    for name in ("goal", "summary"):
        if why := _broken(getattr(plan, name)):
            yield Problem("", name, why)


def _wrong_with_names(plan: Plan) -> Iterator[Problem]:
    seen: dict[str, None] = {}
    for step in plan.steps:
        if step.name in seen:
            yield Problem(
                step.name, "name", "is used by another step too; give each step its own name"
            )
        seen[step.name] = None
    for step in plan.steps:
        for name in dict.fromkeys(step.depends_on):
            if name == step.name:
                yield Problem(step.name, "depends_on", "names the step itself")
            elif name not in seen:
                near = get_close_matches(name, seen, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(seen)}"
                yield Problem(step.name, "depends_on", f"{name!r} is not a step; {hint}")
            if step.depends_on.count(name) > 1:
                yield Problem(step.name, "depends_on", f"has {name!r} more than once")


def _wrong_with_step(step: PlanStep, means: PlanContext) -> Iterator[Problem]:
    name = step.name
    if name == REVIEW:
        yield Problem(name, "name", "is the name of the review at the end; choose another")
    if step.role.strip() and step.role not in means.roles:
        near = get_close_matches(step.role, means.roles, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(means.roles)}"
        yield Problem(name, "role", f"{step.role!r} is unknown; {hint}")
    for field in ("success_criteria", "checks", "context_files", "writes"):
        items = getattr(step, field) or ()
        if any(not item.strip() for item in items):
            yield Problem(name, field, "has an empty entry")
        if why := _broken("".join(items)):
            yield Problem(name, field, why)
    for field in ("task", "title", "model"):
        if why := _broken(getattr(step, field) or ""):
            yield Problem(name, field, why)
    for glob in step.writes or ():
        # `clean_glob` reads " .git" and "./.git" as ".git" too.
        parts = [part.strip() for part in glob.split("/")]
        if glob.strip().startswith(("/", "~")) or ".." in parts:
            yield Problem(name, "writes", f"{glob!r} leaves the project; name paths inside of it")
        elif PROTECTED_NAMES.intersection(parts):
            yield Problem(name, "writes", f"{glob!r} is off limits")
    if step.expect_s is not None and not 0 < step.expect_s < 1e9:
        yield Problem(
            name, "expect_s", f"must be a positive number of seconds, not {step.expect_s}"
        )
    if step.candidates < 1:
        yield Problem(name, "candidates", f"must be at least 1, not {step.candidates}")
    elif step.candidates > 1 and not (step.checks or means.authority.checks):
        yield Problem(name, "candidates", "need checks, which decide between them; name some")
    if step.model is not None and not step.model.strip():
        yield Problem(name, "model", "is empty; leave it out for that of its role")
    elif step.model is not None and (why := means.wrong_with_model(step.model)):
        yield Problem(name, "model", why.rstrip("."))
    if step.checks and not means.checks_possible:
        yield Problem(name, "checks", "cannot be run: there is no sandbox to run them in")
    if step.budget.max_cost_usd is not None and (unpriced := _unpriced(step, means)):
        text = f"is set, but the price of {unpriced} is unknown; add it to [prices]"
        yield Problem(name, "budget.max_cost_usd", text)


def _unpriced(step: PlanStep, means: PlanContext) -> str:
    """The model of a step, if its price is unknown; else ""."""
    of_role = means.roles[step.role].model if step.role in means.roles else None
    return means.unpriced(step.model or of_role or means.authority.model)


def _broken(text: str) -> str:
    """Why a journal or a command cannot hold this text, or ""."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not valid Unicode: it has half a surrogate pair"
    return "has a NUL character" if "\0" in text else ""


def _draft(plan: Plan, step: PlanStep, means: PlanContext) -> tuple[Contract | None, list[Problem]]:
    """The contract that a step would get, and problems with where it would write."""
    if step.role not in means.roles or not step.task.strip():
        return None, []
    role = means.roles[step.role]
    spec = AgentSpec(
        task=step.task,
        role=role,
        permissions=RequestedPermissions(write=step.writes),
        limits=msgspec.structs.replace(step.budget, max_tokens=None, max_cost_usd=None),
    )
    try:
        drafted = ContractDrafter(means.effects, means.approvals).draft(
            spec, means.authority, step_idx=0
        )
    except ContractError as error:
        return None, [Problem(step.name, "role", str(error).rstrip("."))]
    contract, found = drafted.contract, []
    reads_only = contract.execution.workspace is WorkspaceKind.READONLY
    writer = role.write_scope != NOWHERE and any(
        means.effects.get(tool) is Effect.WRITE for tool in role.tools or means.effects
    )
    if reads_only and step.writes:
        why = f"{step.role} does not write; use another role, or leave it out"
        if writer:
            mode = contract.permissions.mode
            why = f"in {mode} mode no child may write; use mode auto (--mode auto)"
        found.append(Problem(step.name, "writes", why))
    elif reads_only and step.candidates > 1:
        why = f"{step.role} changes nothing here, and a race compares changes; leave it out"
        found.append(Problem(step.name, "candidates", why))
    elif reads_only and step.checks:
        why = f"{step.role} changes nothing that they could check; move them to a step that writes"
        if writer:
            mode = contract.permissions.mode
            why = f"in {mode} mode no child runs commands; use mode auto (--mode auto)"
        found.append(Problem(step.name, "checks", why))
    elif writer and step.writes == ():
        text = f"is empty, and {step.role} writes; leave it out for its own paths, or name some"
        found.append(Problem(step.name, "writes", text))
    elif not reads_only and contract.permissions.write_scope == ANYWHERE and step.writes is None:
        text = f'is missing: {step.role} writes; name the paths that it owns ("**" is all of them)'
        found.append(Problem(step.name, "writes", text))
    elif step.writes and not overlap(role.write_scope, scope(*step.writes)):
        globs = ", ".join(glob for group in role.write_scope for glob in group)
        text = f"has nothing in common with what {step.role} may write: {globs}"
        found.append(Problem(step.name, "writes", text))
    return contract, found


def writers(plan: Plan, means: PlanContext) -> dict[str, WorkspaceKind]:
    """The steps that can write, each with the kind of its workspace."""
    found: dict[str, WorkspaceKind] = {}
    for step in plan.steps:
        contract, _ = _draft(plan, step, means)
        if contract is not None and contract.execution.workspace is not WorkspaceKind.READONLY:
            found[step.name] = contract.execution.workspace
    return found


def _shared(plan: Plan, contracts: Mapping[str, Contract]) -> Iterator[Problem]:
    """Paths that two steps could write at the same time."""
    above = {step.name: upstream(plan.needs, step.name) for step in plan.steps}
    writers = [
        (name, contract.permissions.write_scope)
        for name, contract in contracts.items()
        if contract.execution.workspace is not WorkspaceKind.READONLY
    ]
    for at, (name, mine) in enumerate(writers):
        for other, theirs in writers[:at]:
            apart = other in above[name] or name in above[other]
            if not apart and overlap(mine, theirs):
                text = f"shares paths with step {other!r}, which may run at the same time"
                hint = "let one depend on the other, or name other paths"
                yield Problem(name, "writes", f"{text}; {hint}")


def _wrong_with_budget(plan: Plan, means: PlanContext) -> Iterator[Problem]:
    whole, left = plan.budget, means.authority.remaining
    given = means.authority.budget
    if whole.max_cost_usd is not None and (unpriced := means.unpriced(means.authority.model)):
        text = f"is set, but the price of {unpriced} is unknown; add it to [prices]"
        yield Problem("", "budget.max_cost_usd", text)
    elif whole.max_cost_usd is not None or given.max_cost_usd is not None:
        for step in plan.steps:
            if step.budget.max_cost_usd is None and (unpriced := _unpriced(step, means)):
                text = f"the cost is limited, but the price of {unpriced} is unknown; add it to"
                yield Problem(step.name, "model", f"{text} [prices]")
    if whole.max_tokens is not None and whole.max_tokens > left.tokens:
        yield Problem(
            "",
            "budget.max_tokens",
            f"{whole.max_tokens:,} are more than the run has: {left.tokens:,}",
        )
    tokens = None if given.max_tokens is None else left.tokens
    money = None if given.max_cost_usd is None else left.cost_microusd / MICROUSD_PER_USD
    if whole.max_cost_usd is not None and money is not None and whole.max_cost_usd > money:
        text = f"{whole.max_cost_usd:g} is more than the run has: {money:g}"
        yield Problem("", "budget.max_cost_usd", text)
    for name, limit in (
        ("max_tokens", whole.max_tokens or tokens),
        ("max_cost_usd", whole.max_cost_usd or money),
    ):
        if limit is None:
            continue
        asked = {s.name: v * s.children for s in plan.steps if (v := getattr(s.budget, name))}
        yield from _too_much(name, limit, asked)
        if name == "max_tokens" and sum(asked.values()) <= limit:
            unlimited = [s for s in plan.steps if s.budget.max_tokens is None]
            others = sum(step.children for step in unlimited) + plan.review
            rest = int(limit) - sum(asked.values())
            if others and rest // others < MIN_STEP_TOKENS:
                yield Problem(
                    "",
                    "budget.max_tokens",
                    f"{limit:,} leaves {rest // others:,} for each step without a limit; the"
                    f" minimum is {MIN_STEP_TOKENS:,}",
                )


def _too_much(name: str, limit: float, asked: Mapping[str, float]) -> Iterator[Problem]:
    """Limits of steps that add up to more than the limit of the plan."""
    for step, value in asked.items():
        if value > limit:
            text = f"{value:,g} with its retries is more than the plan has: {limit:,g}"
            yield Problem(step, f"budget.{name}", text)
    total = sum(asked.values())
    if total > limit and all(value <= limit for value in asked.values()):
        parts = ", ".join(f"{step} {value:,g}" for step, value in asked.items())
        text = f"the steps may use {total:,g} ({parts}), and the plan has {limit:,g}"
        yield Problem("", f"budget.{name}", text)


def wider(further: Plan, plan: Plan, means: PlanContext) -> Iterator[Problem]:
    """Steps of `further` that write where no step of `plan` with the same role may."""
    for step in further.steps:
        bounds, own = bounds_of(step, plan), means.roles[step.role].write_scope
        asked = own if step.writes is None else scope(*step.writes)
        reads = step.writes is None and own == ANYWHERE
        if bounds is not None and not reads and not overlap(asked, scope(*bounds)):
            may = f"the plan lets {step.role} write {', '.join(bounds) or 'nothing'}"
            yield Problem(step.name, "writes", f"is outside of what was agreed on: {may}")
