"""An agent's desk for delegation: what its model asks for, turned into orders, and reports back.

Implements the port `Delegation`. Everything is answered in words that the model can act on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from retinue.domain.agent_state import plain_id
from retinue.domain.drafting import AgentSpec
from retinue.domain.framing import frame
from retinue.domain.grant import Mode
from retinue.domain.plan.schedule import Schedule
from retinue.domain.report import (
    job_block,
    not_found,
    note_lines,
    outcome_text,
    report_cap,
    stopped_text,
)
from retinue.domain.result import Result, Status
from retinue.domain.role import Role
from retinue.errors import BudgetExceeded, UsageError
from retinue.ports.delegation import CallInfo, SpawnRequest, Subtask
from retinue.ports.model import ModelCatalog
from retinue.ports.tool_outcome import ToolOutcome
from retinue.ports.workspace import Workspace
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.baseline import Baseline
from retinue.runtime.agent.children import Children
from retinue.runtime.agent.context_window import fitted, notes_on
from retinue.runtime.agent.output_schema import schema_text
from retinue.runtime.agent.tool_calls import ONE_CALL
from retinue.runtime.core.step_runner import run_steps
from retinue.runtime.delegation.attachments import enclose
from retinue.runtime.delegation.handover import handed_on
from retinue.runtime.delegation.paths import named

MAX_SUBTASKS = 5
CONTEXT_SHARE = 2  # Half of a child's window is the most that may be given along.
PAGE_CHARS = 8_000
READ_FILE = "read_file"


class DelegationHandler:
    def __init__(
        self,
        boss: Agent,
        staff: Children,
        *,
        roles: Mapping[str, Role],
        workspace: Workspace,
        route: Callable[[str | None, str | None], str | None],
        servers: ModelCatalog,
        earlier: Callable[[str], Awaitable[Result | None]],
    ) -> None:
        """`route` makes a model name of a model's choice of (model, endpoint), or raises.

        `earlier` finds how a child of an earlier run of the session ended.
        """
        self._boss = boss
        self._staff = staff
        self._roles = roles
        self._workspace = workspace
        self._route = route
        self._servers = servers
        self._earlier = earlier

    async def spawn(self, request: SpawnRequest, call: CallInfo) -> ToolOutcome:
        job = self._staff.known(call.name)
        try:
            if not request.background:
                result = (
                    await self._staff.employ(await self._spec_for(request), call.name)
                    if job is None
                    else await self._staff.go_on(job)
                )
                text = outcome_text(result, cap_tokens=self._cap(call.room_tokens))
                return ToolOutcome(content=text, ok=result.ok, acted=True)
            job = job or await self._staff.hire(await self._spec_for(request), call.name)
        except UsageError as error:
            return _refused(str(error))
        told = [f"{job.id} started in the background; spawn_await gets its report."]
        told += note_lines(job.agent.notes)
        return ToolOutcome(content="\n".join(told))

    async def wait(self, job_ids: str, call: CallInfo) -> ToolOutcome:
        wanted = list(dict.fromkeys(filter(None, map(plain_id, job_ids.replace(",", " ").split()))))
        if not wanted or "*" in wanted:
            wanted = [job.id for job in self._staff.background]
        if not wanted:
            return ToolOutcome(content="No jobs found.")
        blocks, about = [], []
        cap = self._cap(call.room_tokens // len(wanted))
        for job_id in wanted:
            job = self._staff.jobs.get(job_id)
            result = await (self._earlier(job_id) if job is None else job.result())
            if job is not None:
                job.delivered = True
                about.append(job_id)
            blocks.append(
                not_found(job_id) if result is None else job_block(result, cap_tokens=cap)
            )
        return ToolOutcome(content="\n\n".join(blocks), about=tuple(about))

    async def delegate(self, plan: str, subtasks: Sequence[Subtask], call: CallInfo) -> ToolOutcome:
        problem = _problem(subtasks)
        if problem is not None:
            return _refused(problem)
        reports: list[str] = []
        results: dict[str, Result] = {}
        names = [str(index) for index in range(len(subtasks))]
        needs = {name: tuple(map(str, _dependencies(subtasks[int(name)]))) for name in names}
        # Without weights the order is that of the plan.
        schedule = Schedule(needs, {})

        async def work(name: str) -> Result | str:
            if reports and self._staff.known(f"{call.name}/{name}") is None:
                try:
                    # The call itself paid for the first one.
                    self._boss.account.spend(ONE_CALL)
                except BudgetExceeded:
                    return "skipped: no tool calls are left for it"
            return await self._step(
                plan, name, subtasks[int(name)], needs[name], results, f"{call.name}/{name}"
            )

        def on_end(name: str, step: Result | str) -> None:
            if isinstance(step, Result):
                results[name] = step
                told = outcome_text(step, cap_tokens=self._cap(call.room_tokens) // len(subtasks))
            else:
                told = step
            reports.append(f"{name}. {told}")
            schedule.finish(name)
            if not (isinstance(step, Result) and step.ok):
                schedule.stop()

        await run_steps(
            schedule, max_concurrent=1, on_start=lambda _: None, work=work, on_end=on_end
        )
        if schedule.waiting:
            reports.append(f"Stopped there: {len(schedule.waiting)} more were not begun.")
        done = sum(result.ok for result in results.values())
        head = (
            f"{'' if done == len(subtasks) else '[ERROR] '}{done} of {len(subtasks)} done: {plan}"
        )
        return ToolOutcome(
            content="\n\n".join([head, *reports]), ok=done == len(subtasks), acted=bool(results)
        )

    async def _step(
        self,
        plan: str,
        name: str,
        subtask: Subtask,
        needs: Sequence[str],
        results: Mapping[str, Result],
        part: str,
    ) -> Result | str:
        job = self._staff.known(part)
        if job is not None:
            return await self._staff.go_on(job)
        request = SpawnRequest(task=subtask.task, role=subtask.role, scope=subtask.scope)
        try:
            spec = await self._spec_for(request)
            context, notes = handed_on(
                f"This is part {name} of: {plan}",
                {f"part {need}": results[need].summary for need in needs},
                max_tokens=spec.role.budget.max_context_tokens // CONTEXT_SHARE,
            )
            # Each step begins from what the one before it has made.
            return await self._staff.employ(
                msgspec.structs.replace(spec, context=context, notes=notes), part, Baseline()
            )
        except UsageError as error:
            return f"[ERROR] {error}"

    async def message(self, id: str, text: str) -> ToolOutcome:
        id = plain_id(id)
        job = self._staff.jobs.get(id)
        if job is None:
            return _refused(self._unknown(id))
        stopped = job.agent.stop_reason
        if job.done and (stopped is None or job.outcome.status is not Status.CANCELLED):
            return _refused(f"{id} has ended; spawn_await gives its report, or spawn another.")
        if stopped is not None:
            return _refused(f"{id} was stopped ({stopped}) and stays so.")
        if not text.strip():
            return _refused("The message is empty.")
        job.agent.heard_untrusted = job.agent.heard_untrusted or self._boss.heard_untrusted
        job.agent.inbox.append(("parent", text))
        return ToolOutcome(content=f"{id} will read it before its next turn.")

    async def cancel(self, id: str, call: CallInfo) -> ToolOutcome:
        id = plain_id(id)
        job = self._staff.jobs.get(id)
        if job is None:
            return _refused(self._unknown(id))
        if job.done:
            return ToolOutcome(content=f"{id} had ended already.")
        job.cancel("cancelled by its parent")
        result = await job.result()
        job.delivered = True
        cap = self._cap(call.room_tokens)
        if result.status is Status.CANCELLED:
            text = stopped_text(result, cap_tokens=cap)
        else:  # It was just done.
            text = f"{id} had ended already.\n{outcome_text(result, cap_tokens=cap)}"
        return ToolOutcome(content=text, about=(id,))

    async def result(self, id: str, start: int) -> ToolOutcome:
        id = plain_id(id)
        job = self._staff.jobs.get(id)
        if job is not None and not job.done:
            return _refused(f"{id} is still at work; spawn_await waits for it.")
        result = await (self._earlier(id) if job is None else job.result())
        if result is None:
            return _refused(self._unknown(id))
        text = result.response
        start = max(0, start)
        page = text[start : start + PAGE_CHARS]
        if not page:
            return _refused(f"The report of {id} has {len(text):,} characters.")
        end = start + len(page)
        rest = (
            "" if end == len(text) else f"\n[to {end:,} of {len(text):,}; go on with start={end}]"
        )
        return ToolOutcome(content=frame(page, kind="report", source=id) + rest)

    def _cap(self, room_tokens: int) -> int:
        return report_cap(self._boss.contract, room_tokens)

    async def _spec_for(self, request: SpawnRequest) -> AgentSpec:
        """The order for what a model asked. Raises UsageError."""
        role = self._role(request)
        if not request.task.strip():
            raise UsageError("The task is empty; say what the child should do.")
        files = _items(request.context_files) or ()
        grant = self._boss.contract.permissions
        if files and READ_FILE not in (*grant.allowed_tools, *grant.ask_tools):
            raise UsageError(
                f"You have no {READ_FILE}, so you cannot give files along; say what is in them."
            )
        model = self._route(request.model, request.endpoint)
        used = model or role.model or self._boss.contract.execution.model
        served = await self._servers.served(used)
        role = fitted(role, served)
        context, notes = await enclose(
            self._workspace,
            context=request.context or "",
            files=files,
            max_tokens=role.budget.max_context_tokens // CONTEXT_SHARE,
        )
        return AgentSpec(
            task=request.task,
            role=role,
            extra_instructions=request.system_prompt,
            tools=_items(request.tools),
            mode=_mode(request.mode),
            scope=named(self._workspace, _items(request.scope) or ()),
            context=context,
            model=model,
            output_schema=schema_text(request.output_schema),
            limits=request.limits,
            notes=(*notes, *(notes_on(served) if model else ())),
        )

    def _role(self, request: SpawnRequest) -> Role:
        may = self._boss.contract.permissions.spawn_roles
        name = request.profile or request.role or _default_role(may, _mode(request.mode))
        if name not in self._roles:
            what = "profile" if request.profile else "role"
            raise UsageError(f"Unknown {what} {name!r}; you may employ: {', '.join(may)}.")
        return self._roles[name]

    def _unknown(self, id: str) -> str:
        known = ", ".join(self._staff.jobs) or "none yet"
        return f"You have no child {id!r}; you have: {known}."


def _default_role(may: Sequence[str], mode: Mode | None) -> str:
    """Who is sent when nobody is named: one who changes nothing, unless editing is asked for."""
    wanted = ("executor", "researcher") if mode is Mode.AUTO else ("researcher", "reviewer")
    return next((name for name in wanted if name in may), may[0] if may else "researcher")


def _mode(name: str | None) -> Mode | None:
    if not name:
        return None
    try:
        return Mode(name.strip().lower())
    except ValueError:
        raise UsageError(f"Unknown mode {name!r}; there are: plan, auto.") from None


def _items(value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """A list, or what a model wrote for one: comma-separated, or JSON in a string."""
    if value is None:
        return None
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("["):
            try:
                value = msgspec.json.decode(text, type=list[str])
            except msgspec.DecodeError:
                value = text.strip("[]").split(",")
        else:
            value = text.split(",")
    return tuple(item for part in value if (item := part.strip().strip("\"'")))


def _problem(subtasks: Sequence[Subtask]) -> str | None:
    if not subtasks:
        return "No subtasks; give at least one."
    if len(subtasks) > MAX_SUBTASKS:
        return f"Maximum {MAX_SUBTASKS} subtasks; there are {len(subtasks)}. Join some of them."
    for index, subtask in enumerate(subtasks):
        if not subtask.task.strip():
            return f"Subtask {index} has no task."
        for earlier in _dependencies(subtask):
            if not 0 <= earlier < index:
                return (
                    f"Subtask {index} depends on {earlier}, which is no earlier subtask; they are"
                    " numbered from 0, in order."
                )
    return None


def _dependencies(subtask: Subtask) -> list[int]:
    on = subtask.depends_on
    return [] if on is None else [on] if isinstance(on, int) else list(on)


def _refused(text: str) -> ToolOutcome:
    return ToolOutcome(content=f"[ERROR] {text}", ok=False)
