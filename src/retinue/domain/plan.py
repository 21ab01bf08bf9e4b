"""A plan: steps for a goal, as plain data, and everything that can be wrong with one.

    goal = "Add JWT auth"

    [[steps]]
    name = "research"
    role = "researcher"
    task = "How does auth work here?"

    [[steps]]
    name = "implement"
    role = "executor"
    task = "Add JWT tokens."
    writes = ["src/auth/**"]
    depends_on = ["research"]
    checks = ["pytest -q tests/auth"]

`read` makes a plan of such data, and `problems` looks at one with the eyes of those who would carry
it out. Both tell of all that is wrong at once, each problem with its step and its field.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

import msgspec

from retinue.domain.budget import MICRO, Budget, SomeLimits
from retinue.domain.contract import Contract, WorkspaceKind, title_of
from retinue.domain.drafting import Order, Superior, draft
from retinue.domain.lease import overlap
from retinue.domain.messages import Effect
from retinue.domain.role import Role
from retinue.domain.schedule import circles, upstream
from retinue.domain.scope import ANYWHERE, NOWHERE, contains, intersect, scope
from retinue.errors import ContractError, PlanError

MAX_STEPS = 100
MAX_CHARS = 1_000_000
MIN_STEP_TOKENS = 4_000
"""Less than that, and a step could not even read its task and answer."""
REVIEW, REVIEWER = "review", "reviewer"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class OnFailure(StrEnum):
    """What becomes of the plan when a step has failed.

    STOP begins nothing more. CONTINUE goes on with what does not need it. RETRY gives it to another
    child, with what went wrong, and stops if that fails too. REPLAN has the rest planned anew.
    """

    STOP = "stop"
    CONTINUE = "continue"
    RETRY = "retry"
    REPLAN = "replan"


class StepBudget(SomeLimits, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of one step; what is left out is as for its role."""


class PlanBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all steps together may use."""

    max_tokens: int | None = None
    max_cost_usd: float | None = None


class PlanStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece of work. `writes` are the paths that it owns, `expect_s` how long it may take."""

    name: str
    role: str
    task: str
    title: str = ""
    depends_on: tuple[str, ...] = ()
    writes: tuple[str, ...] | None = None
    success_criteria: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    context_files: tuple[str, ...] = ()
    on_failure: OnFailure = OnFailure.STOP
    model: str | None = None
    expect_s: float | None = None
    budget: StepBudget = StepBudget()

    @property
    def shown(self) -> str:
        """What it is called before people."""
        return self.title or title_of(self.task)

    @property
    def tries(self) -> int:
        return 2 if self.on_failure is OnFailure.RETRY else 1


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`review` has a reviewer look at the end, whose findings become one more round of steps."""

    goal: str
    steps: tuple[PlanStep, ...]
    summary: str = ""
    review: bool = False
    budget: PlanBudget = PlanBudget()

    def __getitem__(self, name: str) -> PlanStep:
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)

    @property
    def work(self) -> tuple[PlanStep, ...]:
        """The steps, and the review as the last."""
        if not self.review:
            return self.steps
        everything = tuple(step.name for step in self.steps)
        review = PlanStep(name=REVIEW, role=REVIEWER, task=REVIEW, depends_on=everything)
        return (*self.steps, review)

    @property
    def needs(self) -> dict[str, tuple[str, ...]]:
        return {step.name: step.depends_on for step in self.steps}


class Problem(msgspec.Struct, frozen=True):
    """Something that keeps a plan from being run. `step` is empty for the plan as a whole."""

    step: str
    field: str
    text: str

    def __str__(self) -> str:
        where = f"step {self.step!r}: " if self.step else ""
        return _shown(f"{where}{self.field}: {self.text}", 500)


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan would be carried out with."""

    roles: Mapping[str, Role]
    superior: Superior
    effects: Mapping[str, Effect]
    checks_possible: bool = True
    wrong_with_model: Callable[[str], str] = lambda _: ""
    """Why a model cannot be used, or ""."""
    wrong_with_command: Callable[[str], str] | None = None
    """Why a command that a model has written is not run, or ""; None: none is."""
    unpriced: Callable[[str], str] = lambda _: ""
    """A model behind that name that nobody knows the price of, or ""."""


def refuse(found: Sequence[Problem], *, draft: Plan | None = None) -> None:
    """Raise PlanError if there are problems, with the plan that has them."""
    if found:
        count = f"{len(found)} problem{'' if len(found) == 1 else 's'}"
        lines = "".join(f"\n- {problem}" for problem in found)
        raise PlanError(
            f"The plan cannot be run; {count}:{lines}", problems=tuple(map(str, found)), draft=draft
        )


# Reading


def parse(text: str, *, source: str = "the plan") -> Any:
    """The data of a plan in TOML, or in JSON if it begins like that. Raises PlanError."""
    if len(text) > MAX_CHARS:
        raise PlanError(f"{source} is no plan: it has more than {MAX_CHARS:,} characters.")
    text = text.removeprefix("\ufeff")
    try:
        if text.lstrip().startswith("{"):
            return msgspec.json.decode(text)
        return tomllib.loads(text)
    except RecursionError:
        raise PlanError(f"{source} is no plan: it is nested too deeply.") from None
    except msgspec.DecodeError as error:
        raise PlanError(f"{source} is not JSON: {_with_line(str(error), text)}.") from None
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"{source} is not TOML: {error}.") from None


def _with_line(error: str, text: str) -> str:
    """What msgspec says of a JSON text, with the place as an editor shows it."""

    def place(match: re.Match[str]) -> str:
        before = text.encode("utf-8", "replace")[: int(match[1])].decode("utf-8", "ignore")
        *above, last = before.split("\n")
        return f"(at line {len(above) + 1}, column {len(last) + 1})"

    return re.sub(r"\(byte (\d+)\)", place, error)


def read(data: Any) -> tuple[Plan, list[Problem]]:
    """The plan in `data` as far as it can be read, and what of it cannot."""
    found: list[Problem] = []
    if not isinstance(data, Mapping):
        return Plan(goal="", steps=()), [Problem("", "plan", "must be a table with goal and steps")]
    fields = _fields(data, Plan, "", found, skip=("steps", "budget"))
    if data.get("goal") is None:
        found.append(Problem("", "goal", "is missing; say what the plan is for"))
    elif not fields.get("goal", "x").strip():
        found.append(Problem("", "goal", "is empty; say what the plan is for"))
    steps = []
    given = data.get("steps")
    if given is None:
        found.append(Problem("", "steps", "is missing; a plan has at least one step"))
    elif not isinstance(given, list | tuple):
        found.append(Problem("", "steps", f"must be a list of tables, not {_kind(given)}"))
    elif not given:
        found.append(Problem("", "steps", "is empty; a plan has at least one step"))
    else:
        steps = [_step(number, item, found) for number, item in enumerate(given, start=1)]
    plan = Plan(
        **{"goal": "", **fields},
        steps=tuple(step for step in steps if step is not None),
        budget=_budget(data.get("budget"), PlanBudget, "", found),
    )
    return plan, found


def _step(number: int, data: Any, found: list[Problem]) -> PlanStep | None:
    where = f"#{number}"
    if not isinstance(data, Mapping):
        found.append(Problem(where, "steps", f"must be a table, not {_kind(data)}"))
        return None
    if isinstance(data.get("name"), str) and data["name"].strip():
        where = data["name"]
    fields = _fields(data, PlanStep, where, found, skip=("budget",))
    for name, hint in (("name", _NAMED), ("role", "say who does it"), ("task", _TASK)):
        if data.get(name) is None:
            found.append(Problem(where, name, "is missing"))
        elif name in fields and not fields[name].strip():
            found.append(Problem(where, name, f"is empty; {hint}"))
        elif name == "name" and not _NAME.fullmatch(fields.get(name, "x")):
            found.append(Problem(where, name, f"cannot be a name; {hint}"))
        # Whatever depends on it is not to blame for this, so it stays in the plan.
        fields.setdefault(name, "")
    fields["name"] = fields["name"] if fields["name"].strip() else where
    return PlanStep(**fields, budget=_budget(data.get("budget"), StepBudget, where, found))


_NAMED = "use up to 40 of a-z, 0-9, - and _, with a letter or digit first"
_TASK = "say what is to be done"


def _fields(
    data: Mapping[str, Any],
    kind: type[msgspec.Struct],
    step: str,
    found: list[Problem],
    *,
    skip: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The fields of `data` that are of the right type."""
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    fields = {}
    for name, value in data.items():
        if name not in types:
            field = _shown(name)
            near = get_close_matches(field, types, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(types)}"
            found.append(Problem(step, field, f"is no field of a {_called(kind)}{hint}"))
        elif name not in skip and value is not None:
            try:
                fields[name] = msgspec.convert(value, types[name])
            except msgspec.ValidationError as error:
                what = str(error).partition(" - at ")[0]
                text = f"{what[:1].lower()}{what[1:]}, not {_shown(repr(value))}"
                found.append(Problem(step, name, text))
    return fields


def _shown(value: Any, most: int = 80) -> str:
    """A value of somebody's as a part of a line."""
    text = _printed(str(value))
    return text if len(text) <= most else text[: most - 1] + "…"


def _called(kind: type[msgspec.Struct]) -> str:
    return {Plan: "plan", PlanStep: "step"}.get(kind, "budget")


def _budget(data: Any, kind: type[Any], step: str, found: list[Problem]) -> Any:
    if data is None:
        return kind()
    if not isinstance(data, Mapping):
        found.append(Problem(step, "budget", f"must be a table, not {_kind(data)}"))
        return kind()
    wrong: list[Problem] = []
    fields = _fields(data, kind, step, wrong)
    found += [Problem(step, f"budget.{problem.field}", problem.text) for problem in wrong]
    for name, value in list(fields.items()):
        try:
            Budget(**{name: value})
        except ContractError as error:
            text = str(error).removeprefix(f"{name} ").rstrip(".")
            found.append(Problem(step, f"budget.{name}", text))
            del fields[name]
    return kind(**fields)


def _kind(value: Any) -> str:
    names = {str: "a text", int: "a number", float: "a number", bool: "true or false"}
    if isinstance(value, list | tuple):
        return "a list"
    return names.get(type(value), "a table" if isinstance(value, Mapping) else "a date or time")


# Checking


def problems(plan: Plan, means: Means) -> list[Problem]:
    """All that is wrong with a plan that can be read. None: it can be carried out."""
    found = [*_wrong_with_plan(plan), *_wrong_with_names(plan)]
    contracts: dict[str, Contract] = {}
    for step in plan.steps:
        found += _wrong_with_step(step, means)
        contract, wrong = _terms(plan, step, means)
        found += wrong
        if contract is not None:
            contracts.setdefault(step.name, contract)
    rounds = list(circles(plan.needs))
    for circle in rounds:
        way = " → ".join((*circle, circle[0]))
        found.append(Problem(circle[0], "depends_on", f"goes in a circle: {way}"))
    if not rounds:
        found += _shared(plan, contracts)
    found += _wrong_with_budget(plan, means)
    return found


def _wrong_with_plan(plan: Plan) -> Iterator[Problem]:
    if len(plan.steps) > MAX_STEPS:
        yield Problem("", "steps", f"are {len(plan.steps)}, and {MAX_STEPS} are the most")
    for name in ("goal", "summary"):
        if why := _broken(getattr(plan, name)):
            yield Problem("", name, why)


def _wrong_with_names(plan: Plan) -> Iterator[Problem]:
    seen: dict[str, None] = {}
    for step in plan.steps:
        if step.name in seen:
            yield Problem(step.name, "name", "is that of another step, too; give each its own")
        seen[step.name] = None
    for step in plan.steps:
        for name in dict.fromkeys(step.depends_on):
            if name == step.name:
                yield Problem(step.name, "depends_on", "names the step itself")
            elif name not in seen:
                near = get_close_matches(name, seen, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(seen)}"
                yield Problem(step.name, "depends_on", f"{name!r} is no step; {hint}")
            if step.depends_on.count(name) > 1:
                yield Problem(step.name, "depends_on", f"has {name!r} more than once")


def _wrong_with_step(step: PlanStep, means: Means) -> Iterator[Problem]:
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
        # As `clean_glob` reads it: " .git" and "./.git" are ".git".
        parts = [part.strip() for part in glob.split("/")]
        if glob.strip().startswith(("/", "~")) or ".." in parts:
            yield Problem(name, "writes", f"{glob!r} leaves the project; name paths inside of it")
        elif ".git" in parts or ".retinue" in parts:
            yield Problem(name, "writes", f"{glob!r} is off limits")
    if step.expect_s is not None and not 0 < step.expect_s < 1e9:
        yield Problem(
            name, "expect_s", f"must be a positive number of seconds, not {step.expect_s}"
        )
    if step.model is not None and not step.model.strip():
        yield Problem(name, "model", "is empty; leave it out for that of its role")
    elif step.model is not None and (why := means.wrong_with_model(step.model)):
        yield Problem(name, "model", why.rstrip("."))
    if step.checks and not means.checks_possible:
        yield Problem(name, "checks", "cannot be run: there is no sandbox to run them in")
    if step.budget.max_cost_usd is not None and (nobody_knows := _unpriced(step, means)):
        text = f"is set, and nobody knows what {nobody_knows} costs; name its price in [prices]"
        yield Problem(name, "budget.max_cost_usd", text)


def _unpriced(step: PlanStep, means: Means) -> str:
    """The model of a step, if nobody knows what it costs."""
    of_role = means.roles[step.role].model if step.role in means.roles else None
    return means.unpriced(step.model or of_role or means.superior.model)


def _broken(text: str) -> str:
    """Why neither a journal nor a command can have this text, or ""."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not valid Unicode: it has half a surrogate pair"
    return "has a NUL character" if "\0" in text else ""


def _terms(plan: Plan, step: PlanStep, means: Means) -> tuple[Contract | None, list[Problem]]:
    """The contract that a step would get, and what is wrong with where it would write."""
    if step.role not in means.roles or not step.task.strip():
        return None, []
    role = means.roles[step.role]
    order = Order(
        task=step.task,
        role=role,
        write=step.writes,
        **{
            k: v for k, v in step.budget.chosen().items() if k not in ("max_tokens", "max_cost_usd")
        },
    )
    try:
        drafted = draft(order, means.superior, step_idx=0, effects=means.effects)
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


def _shared(plan: Plan, contracts: Mapping[str, Contract]) -> Iterator[Problem]:
    """Paths that two steps would write at the same time."""
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


def _wrong_with_budget(plan: Plan, means: Means) -> Iterator[Problem]:
    whole, left = plan.budget, means.superior.left
    given = means.superior.budget
    if whole.max_cost_usd is not None and (nobody_knows := means.unpriced(means.superior.model)):
        text = f"is set, and nobody knows what {nobody_knows} costs; name its price in [prices]"
        yield Problem("", "budget.max_cost_usd", text)
    elif whole.max_cost_usd is not None or given.max_cost_usd is not None:
        for step in plan.steps:
            if step.budget.max_cost_usd is None and (nobody_knows := _unpriced(step, means)):
                text = f"money is limited, and nobody knows what {nobody_knows} costs; name its"
                yield Problem(step.name, "model", f"{text} price in [prices]")
    if whole.max_tokens is not None and whole.max_tokens > left.tokens:
        yield Problem(
            "",
            "budget.max_tokens",
            f"{whole.max_tokens:,} are more than the run has: {left.tokens:,}",
        )
    tokens = None if given.max_tokens is None else left.tokens
    money = None if given.max_cost_usd is None else left.cost_microusd / MICRO
    if whole.max_cost_usd is not None and money is not None and whole.max_cost_usd > money:
        text = f"{whole.max_cost_usd:g} is more than the run has: {money:g}"
        yield Problem("", "budget.max_cost_usd", text)
    for name, limit in (
        ("max_tokens", whole.max_tokens or tokens),
        ("max_cost_usd", whole.max_cost_usd or money),
    ):
        if limit is None:
            continue
        asked = {s.name: v * s.tries for s in plan.steps if (v := getattr(s.budget, name))}
        yield from _too_much(name, limit, asked)
        if name == "max_tokens" and sum(asked.values()) <= limit:
            others = sum(s.tries for s in plan.steps if s.budget.max_tokens is None) + plan.review
            rest = int(limit) - sum(asked.values())
            if others and rest // others < MIN_STEP_TOKENS:
                yield Problem(
                    "",
                    "budget.max_tokens",
                    f"{limit:,} leave {rest // others:,} for each step that names no limit, and"
                    f" {MIN_STEP_TOKENS:,} are the least",
                )


def _too_much(name: str, limit: float, asked: Mapping[str, float]) -> Iterator[Problem]:
    """Limits of steps that cannot all be used up within the one of the plan."""
    for step, value in asked.items():
        if value > limit:
            text = f"{value:,g} with its retries is more than the plan has: {limit:,g}"
            yield Problem(step, f"budget.{name}", text)
    total = sum(asked.values())
    if total > limit and all(value <= limit for value in asked.values()):
        parts = ", ".join(f"{step} {value:,g}" for step, value in asked.items())
        text = f"the steps may use {total:,g} ({parts}), and the plan has {limit:,g}"
        yield Problem("", f"budget.{name}", text)


def shares(plan: Plan, roles: Mapping[str, Role], limit: int | None) -> dict[str, int | None]:
    """The tokens that each try of a step may use, so that all together keep to `limit`.

    What names no limit has an equal part of what the others leave, at most what its role has.
    """
    own = {
        step.name: step.budget.max_tokens or roles[step.role].budget.max_tokens
        for step in plan.work
    }
    if limit is None:
        return dict(own)
    named = {s.name: s.budget.max_tokens for s in plan.steps if s.budget.max_tokens is not None}
    tries = {step.name: step.tries for step in plan.steps}
    unnamed = [name for name in own if name not in named]
    rest = limit - sum(value * tries[name] for name, value in named.items())
    share = rest // max(1, sum(tries.get(name, 1) for name in unnamed))
    return {
        name: named[name] if name in named else min(share, value or share)
        for name, value in own.items()
    }


# What further steps may write, which no person has looked at


def owned(steps: Iterable[PlanStep], path: str, roles: Mapping[str, Role]) -> list[PlanStep]:
    """The steps that may write `path`."""
    found = []
    for step in steps:
        own = roles[step.role].write_scope
        if step.writes is not None:
            own = intersect(own, scope(*step.writes))
        elif own == ANYWHERE:
            continue  # Who writes anywhere says where; this one reads.
        if contains(own, path):
            found.append(step)
    return found


def joint(steps: Iterable[PlanStep]) -> tuple[str, ...] | None:
    """What steps of one role may write together; None is all that their role may."""
    globs: dict[str, None] = {}
    for step in steps:
        if step.writes is None:
            return None
        globs.update(dict.fromkeys(step.writes))
    return tuple(globs)


def bounds_of(step: PlanStep, plan: Plan) -> tuple[str, ...] | None:
    """Where `plan` lets the role of a further step write; None is all that the role may."""
    return joint(other for other in plan.steps if other.role == step.role)


def wider(further: Plan, plan: Plan, means: Means) -> Iterator[Problem]:
    """Steps that would write where no step of `plan` with their role may."""
    for step in further.steps:
        bounds, own = bounds_of(step, plan), means.roles[step.role].write_scope
        asked = own if step.writes is None else scope(*step.writes)
        reads = step.writes is None and own == ANYWHERE
        if bounds is not None and not reads and not overlap(asked, scope(*bounds)):
            may = f"the plan lets {step.role} write {', '.join(bounds) or 'nothing'}"
            yield Problem(step.name, "writes", f"is outside of what was agreed on: {may}")


# Writing


def to_toml(plan: Plan, *, comments: Iterable[str] = ()) -> str:
    """The plan as a file that a person would write and `parse` reads."""
    lines = [f"# {_printed(line)}" for comment in comments for line in comment.splitlines()]
    data = msgspec.to_builtins(plan)
    # A list without tables has no heading.
    aside = ("budget", "steps") if plan.steps else ("budget",)
    lines += _table({name: value for name, value in data.items() if name not in aside})
    lines += _section("budget", data.get("budget"))
    for step in data["steps"]:
        budget = step.pop("budget", None)
        lines += ["", "[[steps]]", *_table(step), *_section("steps.budget", budget)]
    return "\n".join(lines) + "\n"


def _printed(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _section(name: str, fields: Mapping[str, Any] | None) -> list[str]:
    return ["", f"[{name}]", *_table(fields)] if fields else []


def _table(fields: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {_toml(value)}" for name, value in fields.items()]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if not isinstance(value, str):
        return repr(value)
    if "\n" in value:
        return '"""\n' + "".join(map(_escaped, value)) + '"""'
    return '"' + "".join(map(_escaped, value)).replace("\n", "\\n") + '"'


def _escaped(char: str) -> str:
    if char in '\\"':
        return f"\\{char}"
    if char in "\n\t" or char.isprintable():
        return char
    return f"\\U{ord(char):08x}"
