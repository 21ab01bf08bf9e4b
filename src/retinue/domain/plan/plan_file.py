"""Reads plans from TOML, JSON or data, with all problems at once, and writes them as TOML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from retinue.domain.budget import Budget
from retinue.domain.framing import one_line
from retinue.domain.plan.plan import (
    NAME,
    Plan,
    PlanBudget,
    PlanStep,
    Problem,
    StepBudget,
    shown,
)
from retinue.errors import ContractError, PlanError

MAX_CHARS = 1_000_000


# Reading


def parse(text: str, *, source: str = "the plan") -> Any:
    """The data of a plan in TOML, or in JSON if `text` begins with a brace. Raises PlanError."""
    if len(text) > MAX_CHARS:
        raise PlanError(f"{source} is not a plan: it has more than {MAX_CHARS:,} characters.")
    text = text.removeprefix("\ufeff")
    try:
        if text.lstrip().startswith("{"):
            return msgspec.json.decode(text)
        return tomllib.loads(text)
    except RecursionError:
        raise PlanError(f"{source} is not a plan: it is nested too deeply.") from None
    except msgspec.DecodeError as error:
        raise PlanError(f"{source} is not JSON: {_with_line(str(error), text)}.") from None
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"{source} is not TOML: {error}.") from None


def _with_line(error: str, text: str) -> str:
    """An error of msgspec, with a line and a column in place of the byte offset."""

    def place(match: re.Match[str]) -> str:
        before = text.encode("utf-8", "replace")[: int(match[1])].decode("utf-8", "ignore")
        *above, last = before.split("\n")
        return f"(at line {len(above) + 1}, column {len(last) + 1})"

    return re.sub(r"\(byte (\d+)\)", place, error)


def read(data: Any) -> tuple[Plan, list[Problem]]:
    """The plan in `data` as far as it can be read, and problems with the rest."""
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
    for name, hint in _REQUIRED.items():
        if data.get(name) is None:
            found.append(Problem(where, name, "is missing"))
        elif name in fields and not fields[name].strip():
            found.append(Problem(where, name, f"is empty; {hint}"))
        elif name == "name" and not NAME.fullmatch(fields.get(name, "x")):
            found.append(Problem(where, name, f"cannot be a name; {hint}"))
        # Keep the step in the plan: else every step that needs it would be reported too.
        fields.setdefault(name, "")
    fields["name"] = fields["name"] if fields["name"].strip() else where
    return PlanStep(**fields, budget=_budget(data.get("budget"), StepBudget, where, found))


_REQUIRED = {
    "name": "use up to 40 of a-z, 0-9, - and _, with a letter or digit first",
    "role": "name the role that does it",
    "task": "say what is to be done",
}


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
            field = shown(name)
            near = get_close_matches(field, types, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(types)}"
            struct_name = {Plan: "plan", PlanStep: "step"}.get(kind, "budget")
            found.append(Problem(step, field, f"is not a field of a {struct_name}{hint}"))
        elif name not in skip and value is not None:
            try:
                fields[name] = msgspec.convert(value, types[name])
            except msgspec.ValidationError as error:
                what = str(error).partition(" - at ")[0]
                text = f"{what[:1].lower()}{what[1:]}, not {shown(repr(value))}"
                found.append(Problem(step, name, text))
    return fields


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


# Writing


def to_toml(plan: Plan, *, comments: Iterable[str] = ()) -> str:
    """The plan as a TOML file that `parse` reads, in the form that a person would write."""
    lines = [f"# {one_line(line)}" for comment in comments for line in comment.splitlines()]
    data = msgspec.to_builtins(plan)
    # An empty list of steps has no heading.
    separate = ("budget", "steps") if plan.steps else ("budget",)
    lines += _table({name: value for name, value in data.items() if name not in separate})
    lines += _table(data.get("budget", {}), "[budget]")
    for step in data["steps"]:
        budget = step.pop("budget", {})
        lines += _table(step, "[[steps]]") + _table(budget, "[steps.budget]")
    return "\n".join(lines) + "\n"


def _table(fields: Mapping[str, Any], heading: str = "") -> list[str]:
    lines = [f"{name} = {_toml(value)}" for name, value in fields.items()]
    return ["", heading, *lines] if lines and heading else lines


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
