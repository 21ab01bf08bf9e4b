"""The result of a command as one JSON object, and the JSON schemas of what `--json` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from retinue.domain.agent_state import AgentState
from retinue.domain.events import Event, Fact
from retinue.domain.plan.outcome import PlanResult, RunResult
from retinue.domain.race import RaceResult
from retinue.domain.result import FileChange, Result, Spent, merge_changes, total_spent
from retinue.domain.run_state import RunState
from retinue.errors import RunSuspended
from retinue.interfaces.view.result_blocks import spent_by

SUSPENDED = "suspended"


class ChildOutput(msgspec.Struct, frozen=True, kw_only=True):
    """How one child ended."""

    agent_id: str
    role: str
    task: str
    status: str
    answer: str = ""
    data: Any = None
    error: str | None = None
    tokens: int = 0
    cost_usd: float = 0.0


class RunOutput(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="result"):
    """The last line of `--json`, and all that `--output json` prints."""

    run_id: str
    status: str
    """A value of `Status`, or `suspended` for a run that `retinue resume` can continue."""
    answer: str = ""
    """The whole answer; for a plan its report, and for several tasks all their answers."""
    data: Any = None
    """The answer as JSON, if an output schema was given."""
    error: str | None = None
    usage: Spent
    """What all agents used together."""
    cost_usd: float
    files: tuple[FileChange, ...] = ()
    """Files of the project that have changed."""
    children: tuple[ChildOutput, ...] = ()
    session: str = ""
    """`retinue run --resume` continues this conversation; "" for commands other than `run`."""


def output_of_run(result: Result, state: RunState | None) -> RunOutput:
    """The output of `run`, or of a child that `spawn` has made; `state` has the whole tree."""
    is_run = isinstance(result, RunResult)
    agents = [] if state is None else [a for a in state.agents.values() if a.parent_id is not None]
    total = result.total if isinstance(result, RunResult) else result.usage
    return RunOutput(
        run_id=result.run_id,
        status=result.status,
        answer=result.response,
        data=result.data,
        error=result.error,
        usage=total,
        cost_usd=total.cost_usd,
        files=result.files_modified,
        children=tuple(map(_child_of_state, agents)) if is_run else (_child_of(result),),
        session=result.session if isinstance(result, RunResult) else "",
    )


def output_of_race(race: RaceResult) -> RunOutput:
    """The output of a race: the answer is that of the winner."""
    return msgspec.structs.replace(
        output_of_tasks(list(race.results)),
        run_id=race.run_id,
        status=race.status,
        answer="" if race.winner is None else race.winner.response,
        error=race.error,
    )


def output_of_tasks(results: list[Result]) -> RunOutput:
    """The output of a fan-out."""
    failed = [result for result in results if not result.ok]
    statuses = {result.status for result in failed}
    longest_s = max((r.usage.duration_s for r in results), default=0.0)
    usage = total_spent([r.usage for r in results], longest_s)
    return RunOutput(
        run_id=results[0].run_id if results else "",
        status=(statuses.pop() if len(statuses) == 1 else "error") if failed else "completed",
        answer="\n\n".join(result.response for result in results),
        error=f"{len(failed)} of {len(results)} tasks failed" if failed else None,
        usage=usage,
        cost_usd=usage.cost_usd,
        files=_files(results),
        children=tuple(map(_child_of, results)),
    )


def output_of_plan(result: PlanResult) -> RunOutput:
    """The output of a plan; its children are those of all steps."""
    results = [one for step in result.steps for one in step.results]
    return RunOutput(
        run_id=result.run_id,
        status=result.status,
        answer=result.report,
        error=result.error,
        usage=result.total,
        cost_usd=result.total.cost_usd,
        files=_files(one for one in results if one.ok),
        children=tuple(map(_child_of, results)),
    )


def suspended_output(error: RunSuspended, state: RunState | None) -> RunOutput:
    """The output of a run whose model endpoint is gone, with the tasks that are done."""
    done = output_of_tasks(list(error.results))
    usage = (
        done.usage
        if state is None
        else spent_by(state.agents.values(), state.last_at - state.started_at)
    )
    return msgspec.structs.replace(
        done,
        run_id=error.run_id,
        status=SUSPENDED,
        error=str(error),
        usage=usage,
        cost_usd=usage.cost_usd,
    )


def _child_of(result: Result) -> ChildOutput:
    return ChildOutput(
        agent_id=result.agent_id,
        role=result.role,
        task=result.task,
        status=result.status,
        answer=result.response,
        data=result.data,
        error=result.error,
        tokens=result.usage.tokens,
        cost_usd=result.usage.cost_usd,
    )


def _child_of_state(agent: AgentState) -> ChildOutput:
    return ChildOutput(
        agent_id=agent.id,
        role=agent.role,
        task=agent.title,
        status=str(agent.status or agent.state),
        answer=agent.response,
        error=agent.error or None,
        tokens=agent.usage.tokens,
        cost_usd=agent.usage.cost_usd,
    )


def _files(results: Iterable[Result]) -> tuple[FileChange, ...]:
    found: dict[str, FileChange] = {}
    for result in results:
        for change in () if result.kept else result.files_modified:
            found[change.path] = merge_changes(found.get(change.path), change)
    return tuple(found.values())


def event_schema() -> dict[str, Any]:
    """JSON schema of one event: a line of `--json`, and of `retinue show RUN --json`."""
    (event, fact), parts = msgspec.json.schema_components(
        [Event, Fact], ref_template="#/$defs/{name}"
    )
    parts["Event"]["properties"]["payload"] = fact
    return _document("event", event, parts)


def result_schema() -> dict[str, Any]:
    """JSON schema of the result object: the last line of `--json`, and `--output json`."""
    (result,), parts = msgspec.json.schema_components([RunOutput], ref_template="#/$defs/{name}")
    return _document("result", result, parts)


def _document(name: str, schema: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"retinue {name}",
        **schema,
        "$defs": without_examples(parts),
    }


def without_examples(schemas: dict[str, Any]) -> dict[str, Any]:
    """JSON schemas by name; their descriptions are docstrings, whose examples are in Python."""
    for schema in schemas.values():
        if "description" in schema:
            schema["description"] = schema["description"].partition("```")[0].rstrip()
    return schemas
