"""The results of runs and plans, and the report of a plan for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Generic

import msgspec

from retinue.domain.framing import one_line
from retinue.domain.plan.forecast import Forecast
from retinue.domain.plan.plan import Plan, PlanStep
from retinue.domain.plural import plural
from retinue.domain.race import RaceResult
from retinue.domain.result import ChildFailure, Result, Spent, Status, T, cap

SHOWN_TOKENS = 500


class StepState(StrEnum):
    """How a step of a plan ended.

    ```python
    step = {"name": "look", "role": "researcher", "task": "Look around."}
    plan = await rt.execute({"goal": "Know it", "steps": [step]})
    assert plan["look"].state is retinue.StepState.DONE
    ```
    """

    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    """The step never started."""


class StepOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one step ended. `results` are those of its children, one for each attempt.

    ```python
    step = {"name": "look", "role": "researcher", "task": "Look around."}
    plan = await rt.execute({"goal": "Know it", "steps": [step]})
    for outcome in plan.steps:
        print(outcome.step.name, outcome.state, outcome.result, outcome.reason)
    ```
    """

    step: PlanStep
    state: StepState
    results: tuple[Result, ...] = ()
    reason: str = ""
    """Why it was not done."""

    @property
    def result(self) -> Result | None:
        """The result of the last attempt, which counts."""
        return self.results[-1] if self.results else None


class PlanResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a plan ended. `steps` are those of all rounds, in order; `report` is Markdown.

    ```python
    step = {"name": "look", "role": "researcher", "task": "Look around."}
    result = await rt.execute({"goal": "Know it", "steps": [step]})
    assert result.ok
    print(result["look"].results[-1].response, result.total.tokens, result.report)
    ```
    """

    run_id: str
    plan: Plan
    status: Status
    steps: tuple[StepOutcome, ...]
    error: str | None = None
    total: Spent = Spent()
    review: Result | None = None
    left_open: tuple[str, ...] = ()
    """Findings of the review that became no step, and why."""
    forecast: Forecast | None = None
    report: str = ""

    @property
    def ok(self) -> bool:
        """Whether the plan was completed."""
        return self.status is Status.COMPLETED

    def __getitem__(self, name: str) -> StepOutcome:
        for outcome in self.steps:
            if outcome.step.name == name:
                return outcome
        raise KeyError(name)


class RunResult(Result[T], Generic[T], frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The result of a run's root, with the usage and the number of children of the whole tree.

    ```python
    run = await rt.run("What does this project do?")
    print(run.id, run.response, run.children, run.total.tokens, run.total.cost_usd)
    again = await rt.run("Are you sure?", session=run.session)
    ```
    """

    total: Spent = Spent()
    children: int = 0
    session: str = ""
    """The id of the first run of the session; `rt.run(task, session=…)` continues it."""
    failures: tuple[ChildFailure, ...] = ()
    """Failed children of the root that the run has not settled; with some, it is an error."""
    results: tuple[Result, ...] = ()
    """The results of the tasks, in order, if a program led the run and the run was resumed."""
    races: tuple[RaceResult, ...] = ()
    """How the races among these tasks ended, in order."""
    plan: PlanResult | None = None
    """How the whole plan ended, if the run was a plan and was resumed."""

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.run_id


def plan_status(steps: Sequence[StepOutcome], review: Result | None = None) -> tuple[Status, str]:
    """The status of a plan, and why it is not `completed`.

    A plan with a review is not completed if the review failed. A review in prose has not failed;
    its findings become no steps.
    """
    bad = [outcome for outcome in steps if outcome.state is not StepState.DONE]
    if not bad and review is not None and not (review.ok or review.is_prose):
        return review.status, f"all steps are done, and their review failed: {review.error}"
    if not bad:
        return Status.COMPLETED, ""
    statuses = {outcome.result.status for outcome in bad if outcome.result is not None}
    status = statuses.pop() if len(statuses) == 1 else Status.ERROR
    failed = [o.step.name for o in bad if o.state is StepState.FAILED]
    skipped = [o.step.name for o in bad if o.state is StepState.SKIPPED]
    parts = [f"failed: {', '.join(failed)}"] * bool(failed)
    parts += [f"not started: {', '.join(skipped)}"] * bool(skipped)
    return status, f"{len(bad)} of {len(steps)} steps were not done ({'; '.join(parts)})"


def markdown(result: PlanResult) -> str:
    """The report of a plan: goal, steps, evidence, files, cost, failures and what to do next.

    Text of models is one line or a quotation, so that it cannot be taken for evidence.
    """
    done = sum(outcome.state is StepState.DONE for outcome in result.steps)
    lines = [
        f"# {_line(result.plan.goal)}",
        "",
        *([f"> {_line(result.plan.summary)}", ""] if result.plan.summary.strip() else []),
        f"- Run: {result.run_id}",
        f"- Status: {result.status}" + (f" ({_line(result.error)})" if result.error else ""),
        f"- Steps: {done} of {len(result.steps)} done"
        + ("; the rest was planned anew" if result.ok and done < len(result.steps) else ""),
        *([f"- Review: {_review_in_short(result)}"] if result.plan.review else []),
        f"- Used: {result.total.tokens:,} tokens, {plural(result.total.tool_calls, 'tool call')},"
        f" {result.total.duration_s:.1f} s"
        + (f", {result.total.cost_usd:.4f} USD" if result.total.cost_usd else ""),
        *([f"- Against the {result.forecast.against(result.total)}"] if result.forecast else []),
        "",
        "| step | role | status | tokens | seconds |",
        "|---|---|---|---|---|",
        *map(_row, result.steps),
    ]
    changed = {
        change.path: change
        for outcome in result.steps
        if outcome.state is StepState.DONE and outcome.result is not None
        for change in outcome.result.files_modified
    }
    if changed:
        lines += ["", "## Files", "", *(f"- {_line(str(c))}" for c in changed.values())]
    for outcome in result.steps:
        lines += [
            "",
            f"## {outcome.step.name}: {_line(outcome.step.shown)}",
            "",
            *_details(outcome),
        ]
    if result.review is not None:
        lines += ["", "## Review", "", *_reviewed(result.review)]
        lines += [f"- Left open: {_line(text)}" for text in result.left_open]
    if not result.ok:
        lines += ["", "## What to do next", "", *_next_steps(result)]
    return "\n".join(lines) + "\n"


def _review_in_short(result: PlanResult) -> str:
    review = result.review
    if review is None:
        return "not started"
    if review.is_prose:
        return "in prose, without findings as data"
    if not review.ok or not isinstance(review.data, Mapping):
        return "failed"
    left = f", {len(result.left_open)} left open" if result.left_open else ""
    return plural(len(review.data["findings"]), "finding") + left


def _reviewed(review: Result) -> list[str]:
    """The findings of the reviewer, or the text of a review in prose or one that failed."""
    if review.is_prose:
        return _quoted(review.response)
    if not review.ok or not isinstance(review.data, Mapping):
        return [_line(f"{review.status}: {review.error}"), *_quoted(review.response)]
    found = [f"- {_line(finding['task'])}" for finding in review.data["findings"]]
    return [f"> {_line(str(review.data['summary']))}", *(["", *found] if found else [])]


def _line(text: str) -> str:
    """A text as a part of one line."""
    return " ".join(one_line(text).split())


def _quoted(text: str) -> list[str]:
    """A text as a quotation, with an empty line before it."""
    if not text.strip():
        return []
    kept, cut = cap(text.strip(), SHOWN_TOKENS)
    lines = [f"> {line}".rstrip() for line in kept.splitlines()]
    return ["", *lines, *(["", "(cut; `retinue show` has all of it)"] if cut else [])]


def _row(outcome: StepOutcome) -> str:
    tokens = sum(result.usage.tokens for result in outcome.results)
    took_s = sum(result.usage.duration_s for result in outcome.results)
    tries = f" ({len(outcome.results)} tries)" if len(outcome.results) > 1 else ""
    step = outcome.step
    return f"| {step.name} | {step.role} | {outcome.state}{tries} | {tokens:,} | {took_s:.1f} |"


def _details(outcome: StepOutcome) -> list[str]:
    """The section of a step: first what the runtime saw, then what the child says."""
    lines = [f"- Done when: {_line(text)}" for text in outcome.step.success_criteria]
    result = outcome.result
    if outcome.reason:
        lines.append(f"- {str(outcome.state).capitalize()}: {_line(outcome.reason)}")
    if result is None:
        return lines
    for number, earlier in enumerate(outcome.results[:-1], start=1):
        lines.append(f"- Try {number}: {_line(f'{earlier.status}: {earlier.error}')}")
    lines += [f"- Check: {_line(str(check))}" for check in result.checks]
    commands = [(r.command, r.exit_code) for r in result.receipts if r.command is not None]
    for command, exit_code in commands[-5:]:
        shown = _line(command).replace("`", "'")
        lines.append(f"- Ran: `{shown}` (exit code {exit_code})")
    lines += [f"- Changed: {_line(str(change))}" for change in result.files_modified]
    lines += [f"- Note: {_line(note)}" for note in result.notes]
    quote = _quoted(result.response)
    return lines + quote if lines else quote[1:]


def _next_steps(result: PlanResult) -> list[str]:
    lines = []
    for outcome in result.steps:
        child = outcome.result
        if outcome.state is StepState.FAILED and child is not None and child.agent_id:
            look = f"`retinue show {result.run_id} {child.agent_id}`"
            kept = "; what it had made is kept" if child.kept else ""
            lines.append(f"- {outcome.step.name}: {look} shows what happened{kept}.")
    review = result.review
    if review is not None and not review.ok:
        if review.agent_id:
            look = f"`retinue show {result.run_id} {review.agent_id}`"
            lines.append(f"- The review: {look} shows what happened.")
        lines.append(
            '- What the steps have made is there; `retinue spawn reviewer "…"` reviews it.'
        )
    left = [o.step.name for o in result.steps if o.state is not StepState.DONE]
    if left:
        lines.append(
            f"- What is left ({', '.join(left)}) can be put into a plan of its own:"
            " `retinue run --plan FILE`."
        )
    return lines
