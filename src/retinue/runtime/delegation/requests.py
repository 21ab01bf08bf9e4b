"""Handle the delegation tools of an agent: turn requests into specs, and return reports.

Every answer is text that the model can act on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from retinue.domain.agent_spec import AgentSpec, RequestedOutput, RequestedPermissions, StepLabel
from retinue.domain.agent_state import plain_id
from retinue.domain.budget import Limits
from retinue.domain.contract import title_of
from retinue.domain.framing import frame
from retinue.domain.grant import Mode, Network
from retinue.domain.permissions import READ_FILE, SPAWN_AWAIT
from retinue.domain.race import BEST, FIRST
from retinue.domain.report import (
    job_block,
    not_found,
    note_lines,
    outcome_text,
    report_cap,
    stopped_text,
)
from retinue.domain.result import Result, Status
from retinue.domain.resume_point import FROM_PARENT
from retinue.domain.role import GENERAL, Role
from retinue.domain.web_hosts import canonical_hosts, web_host
from retinue.errors import BudgetExceeded, ContractError, UsageError
from retinue.ports.tool import CallInfo, RaceRequest, SpawnRequest, Subtask, ToolOutcome
from retinue.runtime.agent.agent import Agent
from retinue.runtime.agent.output_schema import schema_text
from retinue.runtime.delegation.attachments import attach, handover_context
from retinue.runtime.delegation.children import Children
from retinue.runtime.delegation.continuation import continue_from
from retinue.runtime.delegation.race import Race
from retinue.runtime.delegation.task_resolver import fit_role, relative_paths, server_notes
from retinue.runtime.history.recorded_conversation import (
    RecordedConversation,
    continuable,
    find_ended,
    load_conversation,
)
from retinue.runtime.history.session import Session, find_earlier_result
from retinue.runtime.integration.baseline import Baseline
from retinue.runtime.integration.review import SPAWN
from retinue.runtime.services import Services

MAX_SUBTASKS = 5
CONTEXT_SHARE = 2  # Context may take at most half of a child's window.
PAGE_CHARS = 8_000


class DelegationHandler:
    """Delegation for one agent. Implements the port `Delegation`."""

    def __init__(
        self,
        parent: Agent,
        children: Children,
        services: Services,
        session: Session,
        start_race: Callable[..., Race],
    ) -> None:
        """`session` has the earlier runs whose children the parent may ask about.

        `start_race` makes a `Race` of the parent's children, from its key and the rest.
        """
        self._start_race = start_race
        self._parent = parent
        self._children = children
        self._services = services
        self._session = session
        self._asking = asyncio.Lock()
        self._asked_turn = ""
        """The last turn whose `spawn_agent` calls the user was asked about together."""
        directory = parent.contract.execution.working_directory
        self._workspace = parent.files.tree.workspace(directory)

    async def spawn(self, request: SpawnRequest, call: CallInfo) -> ToolOutcome:
        # Without `spawn_await` a parent could not wait for it; its report comes with the answer.
        can_wait = SPAWN_AWAIT in self._parent.contract.permissions.allowed_tools
        try:
            if not (request.background and can_wait):
                make_spec = partial(self._approved_spec, request, call)
                result = await self._children.spawn(make_spec, call.name)
                text = outcome_text(result, cap_tokens=self._cap(call.room_tokens))
                return ToolOutcome(content=text, ok=result.ok, acted=True)
            job = self._children.restored(call.name)
            if job is None:
                job = await self._children.start(
                    await self._approved_spec(request, call), call.name
                )
        except UsageError as error:
            shown = error.shown if isinstance(error, ContractError) else ""
            return _refused(str(error), shown)
        lines = [f"{job.id} started in the background; spawn_await gets its report."]
        lines += note_lines(job.agent.state.notes)
        return ToolOutcome(content="\n".join(lines))

    async def wait(self, job_ids: str, call: CallInfo) -> ToolOutcome:
        wanted = list(dict.fromkeys(filter(None, map(plain_id, job_ids.replace(",", " ").split()))))
        if not wanted or "*" in wanted:
            wanted = [job.id for job in self._children.background]
        if not wanted:
            return ToolOutcome(content="No jobs found.")
        blocks, about = [], []
        cap = self._cap(call.room_tokens // len(wanted))
        for job_id in wanted:
            job = self._children.jobs.get(job_id)
            result = await (self._earlier_result(job_id) if job is None else job.result())
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
        results: list[Result] = []
        cap = self._cap(call.room_tokens) // len(subtasks)
        if self._children.may_ask:
            await self._approve_subtasks(subtasks, call)
        # Subtasks need only earlier ones, so they run in their order.
        for index, subtask in enumerate(subtasks):
            make_spec = partial(self._subtask_spec, plan, index, subtask, results)
            try:
                # Each subtask starts from the files that the one before it left.
                result = await self._children.spawn(make_spec, f"{call.name}/{index}", Baseline())
            except BudgetExceeded:
                reports.append(f"{index}. skipped: no tool calls are left for it")
                break
            except UsageError as error:
                reports.append(f"{index}. [ERROR] {error}")
                break
            results.append(result)
            reports.append(f"{index}. {outcome_text(result, cap_tokens=cap)}")
            if not result.ok:
                break
        if left := len(subtasks) - len(reports):
            reports.append(f"Stopped there: {left} more were not begun.")
        done = sum(result.ok for result in results)
        ok = done == len(subtasks)
        head = f"{'' if ok else '[ERROR] '}{done} of {len(subtasks)} done: {plan}"
        return ToolOutcome(content="\n\n".join([head, *reports]), ok=ok, acted=bool(results))

    async def race(self, request: RaceRequest, call: CallInfo) -> ToolOutcome:
        names = _items(request.candidates) or ()

        async def make_spec(number: int) -> AgentSpec:
            if number:  # The call itself is charged for the first candidate.
                self._parent.account.spend_call()
            name = names[number]
            is_role = name in self._services.roles
            return await self._spec(
                SpawnRequest(
                    task=request.task,
                    role=name if is_role else request.role,
                    model=None if is_role else name,
                    scope=request.scope,
                    limits=request.limits,
                )
            )

        children = self._children
        race = self._start_race(
            call.name, FIRST if request.first else BEST, children.permits, children.add
        )
        try:
            found = await race.run([f"{call.name}/{n}" for n in range(len(names))], make_spec)
        except BudgetExceeded:
            return _refused(f"No tool calls are left for {len(names)} candidates.")
        except UsageError as error:
            return _refused(str(error))
        if found.winner is None:
            return ToolOutcome(content=f"[ERROR] {found.error}", ok=False, acted=True)
        report = outcome_text(found.winner, cap_tokens=self._cap(call.room_tokens))
        lines = [
            f"{one.agent_id}: {'passed' if one.passed else 'failed'}, {one.changed_lines:,} changed"
            f" lines, {one.tokens:,} tokens"
            for one in found.standings
        ]
        head = f"{found.winner.agent_id} has won, and its work is merged."
        return ToolOutcome(content="\n".join([head, *lines, "", report]), acted=True)

    async def _approved_spec(self, request: SpawnRequest, call: CallInfo) -> AgentSpec:
        """The spec for a request, after the user was asked about it. Raises UsageError.

        The user is asked once about all children of one reply.
        """
        spec = await self._spec(request)
        if self._children.may_ask:
            async with self._asking:
                if call.name not in self._parent.state.answers:
                    # Once per turn: calls that need no approval get no answer to recognise them by.
                    turn, others = call.name.partition(":")[0], {}
                    if turn != self._asked_turn:
                        others = await self._other_specs(call)
                    await self._children.approve({call.name: spec, **others})
                    self._asked_turn = turn
        return spec

    async def _other_specs(self, call: CallInfo) -> dict[str, AgentSpec]:
        """The specs for the other `spawn_agent` calls of the turn that can be read."""
        turn, _, call_id = call.name.partition(":")
        specs = {}
        for other in call.turn:
            name = f"{turn}:{other.id}"
            if (
                other.name == SPAWN
                and other.id != call_id
                and self._children.restored(name) is None
            ):
                with suppress(msgspec.MsgspecError, UsageError):
                    specs[name] = await self._spec(_decode_request(other.arguments))
        return specs

    async def _approve_subtasks(self, subtasks: Sequence[Subtask], call: CallInfo) -> None:
        specs = {}
        for index, subtask in enumerate(subtasks):
            name = f"{call.name}/{index}"
            if self._children.restored(name) is None:
                with suppress(UsageError):
                    specs[name] = await self._spec(_subtask_request(subtask))
        await self._children.approve(specs)

    async def _subtask_spec(
        self, plan: str, index: int, subtask: Subtask, results: Sequence[Result]
    ) -> AgentSpec:
        """The spec of a subtask, with the reports of those that it depends on; one call is charged.

        Raises BudgetExceeded if no call is left, and UsageError.
        """
        if index:  # The call of `delegate_task` itself is charged for the first child.
            self._parent.account.spend_call()
        spec = await self._spec(_subtask_request(subtask))
        context, notes = handover_context(
            f"This is part {index} of: {plan}",
            {f"part {need}": results[need].summary for need in _dependencies(subtask)},
            max_tokens=spec.role.budget.context_tokens // CONTEXT_SHARE,
        )
        step = StepLabel(goal_summary=title_of(plan))
        return msgspec.structs.replace(spec, context=context, notes=notes, step=step)

    async def message(self, id: str, text: str) -> ToolOutcome:
        id = plain_id(id)
        job = self._children.jobs.get(id)
        if job is None:
            return _refused(self._unknown(id))
        stopped = job.agent.stop_reason
        if job.done and (stopped is None or job.outcome.status is not Status.CANCELLED):
            return _refused(
                f'{id} has ended; spawn_agent with continues="{id}" and your message as the task'
                " continues its conversation."
            )
        if stopped is not None:
            return _refused(f"{id} was stopped ({stopped}) and stays so.")
        if not text.strip():
            return _refused("The message is empty.")
        try:
            job.agent.receive(text, source=FROM_PARENT)
        except UsageError as error:
            return _refused(str(error))
        job.agent.state.message_from(self._parent.state)
        return ToolOutcome(content=f"{id} will read it before its next turn.")

    async def cancel(self, id: str, call: CallInfo) -> ToolOutcome:
        id = plain_id(id)
        job = self._children.jobs.get(id)
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
        else:  # The child ended before it could be cancelled.
            text = f"{id} had ended already.\n{outcome_text(result, cap_tokens=cap)}"
        return ToolOutcome(content=text, about=(id,))

    async def result(self, id: str, start: int) -> ToolOutcome:
        id = plain_id(id)
        job = self._children.jobs.get(id)
        if job is not None and not job.done:
            return _refused(f"{id} is still at work; spawn_await waits for it.")
        result = await (self._earlier_result(id) if job is None else job.result())
        if result is None:
            return _refused(self._unknown(id))
        text = result.response
        start = max(0, start)
        page = text[start : start + PAGE_CHARS]
        if not page:
            return _refused(f"The report of {id} has {len(text):,} characters.")
        end = start + len(page)
        rest = (
            ""
            if end == len(text)
            else f"\n[to {end:,} of {len(text):,}; continue with start={end}]"
        )
        return ToolOutcome(content=frame(page, kind="report", source=id) + rest)

    async def _earlier_result(self, id: str) -> Result | None:
        return await find_earlier_result(self._services.storage.store, self._session, id)

    def _cap(self, room_tokens: int) -> int:
        return report_cap(self._parent.contract, room_tokens)

    async def _spec(self, request: SpawnRequest) -> AgentSpec:
        """The spec for a request of the model. Raises UsageError."""
        found = await self._continued(request.continues)
        role = self._role(request, found)
        if not request.task.strip():
            raise UsageError("The task is empty; say what the child should do.")
        files = _items(request.context_files) or ()
        grant = self._parent.contract.permissions
        if files and READ_FILE not in (*grant.allowed_tools, *grant.ask_tools):
            raise UsageError(
                f"You have no {READ_FILE}, so you cannot attach files; describe their content."
            )
        model = self._services.models.resolve(request.model, request.endpoint)
        if found is not None:
            model = model or found.contract.execution.model
        used = model or role.model or self._parent.contract.execution.model
        served = await self._services.models.served(used)
        notes_about, role = server_notes(served, role.budget), fit_role(role, served)
        attached = await attach(
            self._workspace,
            context=request.context or "",
            files=files,
            max_tokens=role.budget.context_tokens // CONTEXT_SHARE,
            served=served,
        )
        spec = AgentSpec(
            task=request.task,
            role=role,
            context=attached.text,
            images=attached.images,
            system_prompt=request.system_prompt,
            model=model,
            sampling=request.sampling,
            permissions=RequestedPermissions(
                tools=_items(request.tools),
                mode=_mode(request.mode),
                network=_network(request.network),
                web_hosts=_hosts(request.web_hosts),
                scope=relative_paths(self._workspace, _items(request.scope) or ()),
            ),
            replaces=self._replaced(request.replaces),
            limits=request.limits,
            output=RequestedOutput(schema=schema_text(request.output_schema)),
            notes=(*attached.notes, *(notes_about if model else ())),
        )
        if found is None:
            return spec
        directory = self._parent.contract.execution.working_directory
        return continue_from(spec, found, directory, self._services.tools.effects)

    def _role(self, request: SpawnRequest, continued: RecordedConversation | None) -> Role:
        allowed = self._parent.contract.permissions.spawn_roles
        earlier = None if continued is None else continued.contract.execution.role
        name = request.profile or request.role or earlier or _default_role(allowed)
        if name not in self._services.roles:
            kind = "profile" if request.profile else "role"
            raise UsageError(f"Unknown {kind} {name!r}; you may spawn: {', '.join(allowed)}.")
        return self._services.roles[name]

    def _replaced(self, id: str | None) -> str:
        """The ended child that a new one replaces; "" if it replaces none. Raises UsageError."""
        if not id:
            return ""
        id = plain_id(id)
        job = self._children.jobs.get(id)
        if job is None:
            raise UsageError(self._unknown(id))
        if not job.done:
            raise UsageError(f"{id} is still at work; stop it with agent_cancel before.")
        return id

    async def _continued(self, id: str | None) -> RecordedConversation | None:
        """The conversation of the ended child that a new one continues. Raises UsageError."""
        if not id:
            return None
        id = plain_id(id)
        store, job = self._services.storage.store, self._children.jobs.get(id)
        if job is not None and job.done:
            return await load_conversation(store, f"{job.run_id}/{id}", agent=job.agent.state)
        earlier = await self._earlier_result(id) if job is None else None
        if earlier is not None:
            reference, agent = await find_ended(store, f"{earlier.run_id}/{id}")
            return await load_conversation(store, reference, agent=agent)
        ended = continuable([one.id for one in self._children.jobs.values() if one.done])
        if job is not None:
            raise UsageError(f"{id} is still at work; tell it with agent_message. {ended}")
        raise UsageError(f"You have no child {id!r}. {ended}")

    def _unknown(self, id: str) -> str:
        known = ", ".join(self._children.jobs) or "none yet"
        return f"You have no child {id!r}; you have: {known}."


def _decode_request(arguments: str) -> SpawnRequest:
    """The request in the arguments of `spawn_agent`. Raises MsgspecError."""
    request = msgspec.json.decode(arguments, type=SpawnRequest, strict=False)
    limits = msgspec.json.decode(arguments, type=Limits, strict=False)
    return msgspec.structs.replace(request, limits=limits)


def _subtask_request(subtask: Subtask) -> SpawnRequest:
    return SpawnRequest(task=subtask.task, role=subtask.role, scope=subtask.scope)


def _default_role(allowed: Sequence[str]) -> str:
    """The role if none is named. A contract of an earlier version does not allow `general`."""
    wanted = (GENERAL, "researcher", "reviewer")
    return next((name for name in wanted if name in allowed), allowed[0] if allowed else GENERAL)


def _mode(name: str | None) -> Mode | None:
    if not name:
        return None
    try:
        return Mode(name.strip().lower())
    except ValueError:
        raise UsageError(f"Unknown mode {name!r}; there are: plan, auto.") from None


def _network(name: str | None) -> Network | None:
    if not name:
        return None
    try:
        return Network(name.strip().lower())
    except ValueError:
        raise UsageError(f"Unknown network {name!r}; there are: {', '.join(Network)}.") from None


def _hosts(value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    names = _items(value)
    # Models write whole addresses too.
    return None if names is None else canonical_hosts(web_host(name) or name for name in names)


def _items(value: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """A list. Models also write comma-separated text, or JSON in a string."""
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


def _refused(text: str, shown: str = "") -> ToolOutcome:
    return ToolOutcome(content=f"[ERROR] {text}", shown=shown, ok=False)
