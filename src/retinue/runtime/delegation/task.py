"""Tasks: work for one child, as a program gives it and as the journal stores it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from retinue.domain.agent_spec import RequestedOutput
from retinue.domain.budget import LimitOptions, Limits
from retinue.domain.contract import OnConflict, WorkspaceKind
from retinue.domain.foreign_names import our_name
from retinue.domain.grant import Mode, Network
from retinue.domain.result import Result
from retinue.domain.sampling import NO_SAMPLING, Sampling
from retinue.errors import ContractError, UsageError
from retinue.runtime.agent.output_type import output_type

OTHER_NAMES = {"budget": "max_tool_calls", "allowed_tools": "tools"}
"""Other names that options of `spawn` and `start` have."""
ModeName: TypeAlias = Literal["plan", "normal", "auto", "dangerous"]


class Task(Limits, frozen=True, omit_defaults=True):
    """Work for one child, and what differs from the defaults of its role.

    Its limits are those of `Limits`: `Task("researcher", "Find the bug", max_tool_calls=8)`.

    ```python
    task = retinue.Task(
        "executor",
        "Rename new_code to make_code.",
        write=("snip/",),
        checks=("pytest -q",),
        max_tool_calls=20,
    )
    ```
    """

    # Not keyword-only: inherited keyword-only fields come last, as journals store them.
    role: str
    task: str
    tools: tuple[str, ...] | None = None
    mode: Mode | None = None
    scope: tuple[str, ...] = ()
    """Paths to keep to."""
    write: tuple[str, ...] | None = None
    """Paths that the child may write."""
    context: str = ""
    context_files: tuple[str, ...] = ()
    """Files whose text the child gets with its task."""
    system_prompt: str | None = None
    """Instructions in addition to those of the role."""
    success_criteria: tuple[str, ...] = ()
    output: Any = msgspec.field(default=None, name="output_schema")
    """Type of the answer, or its JSON schema; see `Runtime.spawn`."""
    model: str | None = None
    endpoint: str | None = None
    directory: str | None = None
    """Folder of the project to work in."""
    workspace: WorkspaceKind | None = None
    """"worktree" (a copy, merged at the end), "shared" (the project's own files) or "readonly"."""
    checks: tuple[str, ...] = ()
    """Commands that must succeed on the work before it is merged."""
    on_conflict: OnConflict | None = None
    """"resolve" has another child resolve conflicts with a sibling's work."""
    cache: bool = True
    """Whether the result of an identical earlier child may be used."""
    sampling: Sampling = NO_SAMPLING
    """Settings of the model, such as `Sampling(temperature=0.2, max_output_tokens=64)`."""
    network: Network | None = None
    """Network of the child's commands: "none" (the default), "loopback" or "all"."""
    continues: str = ""
    """The ended child whose conversation the child continues, as "RUN/AGENT". `role` may be ""."""
    skills: tuple[str, ...] | None = None
    """The only skills that the child may load; None: those of its role, or its parent's."""
    web_hosts: tuple[str, ...] | None = None
    """The only hosts that the child may fetch from; None: those of its role, or its parent's."""


class TaskOptions(LimitOptions, total=False):
    """The fields of a Task, as arguments of `spawn` and `start`; strings and lists will do.

    `budget` is another name for `max_tool_calls`, and `allowed_tools` for `tools`.

    ```python
    careful: retinue.TaskOptions = {"max_tool_calls": 5, "tools": ["read_file"], "timeout_s": 60}
    result = await rt.spawn("researcher", "What is in a.txt?", **careful)
    ```
    """

    budget: int | None
    allowed_tools: Sequence[str] | None

    tools: Sequence[str] | None
    mode: ModeName | Mode | None
    scope: Sequence[str]
    write: Sequence[str] | None
    context: str
    context_files: Sequence[str]
    system_prompt: str | None
    success_criteria: Sequence[str]
    model: str | None
    endpoint: str | None
    directory: str | None
    workspace: Literal["worktree", "shared", "readonly"] | WorkspaceKind | None
    checks: Sequence[str]
    on_conflict: Literal["fail", "resolve"] | OnConflict | None
    cache: bool
    sampling: Sampling | Mapping[str, Any]
    network: Literal["none", "loopback", "all"] | Network | None
    continues: str | Result
    skills: Sequence[str] | None
    web_hosts: Sequence[str] | None


def as_task(task: Task | tuple[str, str], output: Any = None) -> Task:
    """An item of a list of tasks, with its types checked. Raises UsageError.

    `output` is the output type of all tasks of the list.
    """
    if isinstance(task, Task):
        fields = {name: getattr(task, name) for name in Task.__struct_fields__}
        if output is not None and task.output is not None:
            raise UsageError(f"Both the call and the task {task.task!r} have an output; leave one.")
        fields["output"] = task.output if output is None else output
        return make_task(fields.pop("role"), fields.pop("task"), fields)
    match task:
        case [role, text]:
            return make_task(role, text, {"output": output})
        case _:
            raise UsageError(f"A task is a retinue.Task or a pair of role and task, not {task!r}.")


def make_task(role: str, task: str, options: Mapping[str, Any]) -> Task:
    """A Task from the arguments of a call. Raises UsageError, with the name of a wrong one."""
    known = Task.__struct_fields__
    options = dict(options)
    for other, name in OTHER_NAMES.items():
        if (value := options.pop(other, None)) is not None:
            if options.get(name) is not None:
                raise UsageError(f"{other} is another name for {name}; give one of them.")
            options[name] = value
    for name in options:
        if name not in known:
            if ours := our_name(name):
                raise UsageError(f"Unknown option {name!r}; retinue has {ours}.")
            raise UsageError(f"Unknown option {name!r}; there are: {', '.join(known)}.")
    if isinstance(continued := options.get("continues"), Result):
        options["continues"] = f"{continued.run_id}/{continued.agent_id}"
    if "output" in options:  # A struct is read by its stored names.
        options["output_schema"] = options.pop("output")
    try:
        return msgspec.convert({**options, "role": role, "task": task}, Task)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`") or "An option"
        raise UsageError(f"{name} is of the wrong type: {what[0].lower()}{what[1:]}.") from error


def race_tasks(
    role: str,
    task: str,
    candidates: Sequence[str | TaskOptions],
    options: Mapping[str, Any],
    times: int,
    roles: Container[str],
) -> list[Task]:
    """The tasks of the candidates of a race. They differ only in what each candidate names.

    A candidate is the name of a model or of one of the `roles`, or options. Raises UsageError.
    """
    if times < 1:
        raise UsageError(f"times must be at least 1, not {times}.")
    tasks = []
    for candidate in candidates or ({},):
        if isinstance(candidate, str):
            own: Mapping[str, Any] = {"role" if candidate in roles else "model": candidate}
        else:
            own = candidate
        fields = {**options, **own, "cache": False}
        tasks.append(make_task(fields.pop("role", role), task, fields))
    return tasks * times


def check_not_empty(task: str) -> None:
    if not task.strip():
        raise ContractError("The task is empty; say what the agent should do.")


def check_unicode(**texts: str | None) -> None:
    """Raise UsageError for a text that UTF-8 cannot encode: no journal or model can take it."""
    for name, text in texts.items():
        try:
            (text or "").encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"The {name} is not valid Unicode: it has half a surrogate pair at character"
                f" {error.start}."
            ) from None


def without_cache_for_duplicates(tasks: Iterable[Task]) -> list[Task]:
    """`tasks`, of which identical ones are not served from the cache: each gives its own answer."""
    seen: set[tuple[str, str]] = set()
    found = []
    for task in tasks:
        same = (task.role, task.task)
        found.append(msgspec.structs.replace(task, cache=False) if same in seen else task)
        seen.add(same)
    return found


def encode_task(task: Task) -> msgspec.Raw:
    """`task` as the journal stores it."""
    if (output := output_type(task.output)) is not None:
        task = msgspec.structs.replace(task, output=output.schema)
    return msgspec.Raw(msgspec.json.encode(task))


def requested_output(output: Any) -> RequestedOutput:
    """The output of the root of a run. Raises ContractError."""
    wanted = output_type(output)
    if wanted is None:
        return RequestedOutput()
    return RequestedOutput(schema=wanted.schema, convert=wanted.convert)


def origin_key(number: int) -> str:
    """Key of a program's task in the record of its child; `resume` matches on it."""
    return f"task {number}"
