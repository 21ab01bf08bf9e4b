"""A piece of work that a program gives, as it says it and as the journal keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

import msgspec

from retinue.domain.budget import Limits
from retinue.domain.contract import OnConflict, WorkspaceKind
from retinue.domain.grant import Mode
from retinue.errors import ContractError, UsageError
from retinue.runtime.agent.output_schema import schema_text

ModeName: TypeAlias = Literal["plan", "normal", "auto", "dangerous"]


class Task(Limits, frozen=True, omit_defaults=True):
    """One piece of work for a child, with the terms that differ from its role's.

    `scope` are the paths to keep to, `write` those it may write, `context` and `context_files` what
    it is given along. `output_schema` (a JSON schema, or a pydantic or msgspec type) makes the
    answer data. `directory` is a folder of the project to work in. `cache=False` asks anew.
    `workspace` is "worktree" (a copy, merged at the end), "shared" (the project's own files) or
    "readonly". `checks` are commands that must succeed on its work before that is integrated, and
    `on_conflict="resolve"` has a further child settle what contradicts a sibling's.
    """

    role: str
    task: str
    tools: tuple[str, ...] | None = None
    mode: Mode | None = None
    scope: tuple[str, ...] = ()
    write: tuple[str, ...] | None = None
    context: str = ""
    context_files: tuple[str, ...] = ()
    system_prompt: str | None = None
    success_criteria: tuple[str, ...] = ()
    output_schema: Any = None
    model: str | None = None
    endpoint: str | None = None
    directory: str | None = None
    workspace: WorkspaceKind | None = None
    checks: tuple[str, ...] = ()
    on_conflict: OnConflict | None = None
    cache: bool = True


class TaskOptions(TypedDict, total=False):
    """The terms of a Task, as arguments of `spawn` and `start`: texts and lists do as well."""

    tools: Sequence[str] | None
    mode: ModeName | Mode | None
    scope: Sequence[str]
    write: Sequence[str] | None
    context: str
    context_files: Sequence[str]
    system_prompt: str | None
    success_criteria: Sequence[str]
    output_schema: Any
    model: str | None
    endpoint: str | None
    directory: str | None
    workspace: Literal["worktree", "shared", "readonly"] | WorkspaceKind | None
    checks: Sequence[str]
    on_conflict: Literal["fail", "resolve"] | OnConflict | None
    cache: bool
    max_tool_calls: int | None
    max_turns: int | None
    max_tokens: int | None
    max_context_tokens: int | None
    timeout_s: float | None
    max_cost_usd: float | None
    max_retries: int | None


def asked(task: Task | tuple[str, str]) -> Task:
    """What somebody has put into a list of tasks; one that was made by hand may hold anything."""
    if isinstance(task, Task):
        fields = {name: getattr(task, name) for name in Task.__struct_fields__}
        return as_task(fields.pop("role"), fields.pop("task"), fields)
    match task:
        case [role, text]:
            return as_task(role, text, {})
        case _:
            raise UsageError(f"A task is a retinue.Task or a pair of role and task, not {task!r}.")


def as_task(role: str, task: str, terms: Mapping[str, Any]) -> Task:
    """A Task from loose arguments; an unknown one is told by name."""
    known = Task.__struct_fields__
    for name in terms:
        if name not in known:
            raise UsageError(f"Unknown term {name!r}; there are: {', '.join(known)}.")
    try:
        return msgspec.convert({**terms, "role": role, "task": task}, Task)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`") or "A term"
        raise UsageError(f"{name} is of the wrong type: {what[0].lower()}{what[1:]}.") from error


def check_task(task: str) -> None:
    if not task.strip():
        raise ContractError("The task is empty; say what the agent should do.")


def check_text(**texts: str | None) -> None:
    """Raise UsageError for a text that has no bytes: neither a journal nor a model can take it."""
    for name, text in texts.items():
        try:
            (text or "").encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"The {name} is not valid Unicode: it has half a surrogate pair at character"
                f" {error.start}."
            ) from None


def each_for_itself(tasks: Iterable[Task]) -> list[Task]:
    """Who asks the same several times at once wants several answers, not one of them repeated."""
    seen: set[tuple[str, str]] = set()
    found = []
    for task in tasks:
        same = (task.role, task.task)
        found.append(msgspec.structs.replace(task, cache=False) if same in seen else task)
        seen.add(same)
    return found


def on_record(task: Task) -> msgspec.Raw:
    if task.output_schema is not None:
        schema = schema_text(task.output_schema)
        task = msgspec.structs.replace(task, output_schema=schema)
    return msgspec.Raw(_encoder.encode(task))


def origin_key(number: int) -> str:
    """What a task of a program is called in the record of the child that it has made."""
    return f"task {number}"


_encoder = msgspec.json.Encoder()
