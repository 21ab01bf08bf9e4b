"""The runtime: what a program calls to run agents, and to look at runs."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, Unpack

import msgspec

from retinue.domain.agent_spec import AgentSpec
from retinue.domain.agent_state import ROOT_ID
from retinue.domain.budget import LimitOptions, Limits, as_limits
from retinue.domain.events import Event
from retinue.domain.hook import find_event
from retinue.domain.plan.forecast import Forecast
from retinue.domain.plan.outcome import PlanResult, RunResult
from retinue.domain.plan.plan import Plan
from retinue.domain.race import BEST, FIRST, RaceResult
from retinue.domain.result import Result, T
from retinue.domain.resume_point import FROM_USER
from retinue.errors import UsageError
from retinue.ports.hooks import HookFunction
from retinue.runtime.agent.output_type import typed
from retinue.runtime.agent.watchdog import watch
from retinue.runtime.core.task_group import TaskGroup, map_concurrently, run_to_completion
from retinue.runtime.delegation.attachments import NamedData
from retinue.runtime.delegation.registry import AgentNumbers
from retinue.runtime.delegation.task import (
    Task,
    TaskOptions,
    as_task,
    check_unicode,
    make_task,
    origin_key,
    race_tasks,
    requested_output,
    without_cache_for_duplicates,
)
from retinue.runtime.delegation.task_resolver import TaskResolver
from retinue.runtime.integration.baseline import Baseline
from retinue.runtime.open_project import OpenProject
from retinue.runtime.planning.plans import Plans
from retinue.runtime.run.command_expansion import ExpandedCommand, expand
from retinue.runtime.run.job import Job, Jobs
from retinue.runtime.run.program import complete_tasks, program_error
from retinue.runtime.run.run import MODEL_LED, PLAN, PLANNING
from retinue.runtime.run.runs import COMPACT, Runs, new_run_id
from retinue.runtime.run.session_title import ROLE as TITLE_ROLE
from retinue.runtime.run.session_title import keeps_prompt_cache, write_title
from retinue.runtime.run.stream import LEFT, StreamBuffer, TextDelta, ToolProgress
from retinue.runtime.services import Services

JsonSchema = Mapping[str, Any] | str


class Runtime(OpenProject):
    """Opened by `retinue.open`, as an async context manager.

    `run` starts a run of its own, which a model leads. Children from `spawn`, `fan_out` and `start`
    all belong to one other run, whose root is the calling program. That run begins with the first
    child and ends when the runtime is closed; its limits hold for all its children together.

    If a model endpoint is gone, calls that wait for agents raise RunSuspended, once all agents that
    can continue have ended. Close the runtime, and `resume` the run later.

    ```python
    async with retinue.open(".", model=ScriptedModel({"": [say("Done.")]})) as rt:
        run = await rt.run("Add a test.")
        found = await rt.spawn("researcher", "Where are links stored?")
        results = await rt.fan_out([("researcher", "What is in a?"), ("reviewer", "What is in b?")])
        assert all(result.ok for result in results)
    ```
    """

    def __init__(self, services: Services) -> None:
        self._runs = Runs(services)
        super().__init__(services, self._runs.writer)
        self._task_group = TaskGroup()
        self._task_resolver = TaskResolver(services)
        self._plans = Plans(services, self._runs, self._task_resolver)
        self._jobs = Jobs(self._task_group)
        self._streams: set[asyncio.Task[None]] = set()
        """Runs that the program reads as streams."""

    async def __aenter__(self) -> Self:
        await self._task_group.__aenter__()
        self._watch = self._services.clock.watch(self._runs.handle_clock_gap)
        self._watch.__enter__()
        self._watching = [
            self._task_group.create_task(
                watch(self._runs.agents, self._services.clock, self._policy.silence_s / 4)
            ),
            self._task_group.create_task(self._runs.handle_messages()),
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._watch.__exit__(None, None, None)
            for task in (*self._watching, *self._streams):
                task.cancel()
            if error is not None and not isinstance(error, asyncio.CancelledError):
                # Running agents stay as they are in the journal, for `resume`.
                self._runs.suspend(program_error(error), None)
            self._jobs.end()
            await self._task_group.__aexit__(kind, error, trace)
        finally:
            await run_to_completion(self._runs.end_program_led(error))

    async def expand(self, command: str) -> ExpandedCommand | None:
        """The task that `/name arguments` stands for; None if no command has that name.

        Its shell commands run in the sandbox. Raises ApprovalNeeded for a command of a project that
        is not trusted, and UsageError if a shell command fails, or in plan mode.
        """
        return await expand(command, self._services)

    def share_numbers(self, earlier: Runtime | None = None) -> None:
        """Give no two agents of this runtime the same id, nor of `earlier` and this one."""
        self._runs.numbers = AgentNumbers() if earlier is None else earlier._runs.numbers

    def set_cancel_reason(self, reason: str) -> None:
        """Set what the journal gives as the reason if the tasks of this runtime are cancelled."""
        self._runs.set_cancel_reason(reason)

    def suspend(
        self, why: str, then: Callable[[], None] | None = None, *, run_id: str | None = None
    ) -> None:
        """Suspend all runs, or one run, so that `resume` can continue them.

        No agent starts another turn. `then` is called when every agent is between two turns. Cancel
        the tasks at that point, or sooner: the journal keeps what is in progress for `resume`.
        """
        self._runs.suspend(why, then, run_id)

    def on(self, event: str, matcher: str = "") -> Callable[[HookFunction], HookFunction]:
        """Decorator: run a function on an event of every agent, such as "pre_tool_use".

        The function takes the input of a hook as a dict, and returns None or an answer in the
        format of hooks; it may be async. `matcher` limits it to tools: "Bash", "Write|Edit".

        ```python
        @rt.on("pre_tool_use", "Bash")
        def no_push(call: dict) -> dict | None:
            if "git push" in call["tool_input"]["command"]:
                return {"decision": "block", "reason": "Never push."}
            return None
        ```
        """
        found = find_event(event)

        def add(function: HookFunction) -> HookFunction:
            self._services.hooks.add_function(found, matcher, function)
            return function

        return add

    # Agents

    async def run(
        self,
        task: str,
        *,
        output: type[T] | JsonSchema | None = None,
        session: str | None = None,
        context: str = "",
        context_files: Sequence[str | NamedData] = (),
        run_id: str | None = None,
        tools: Sequence[str] | None = None,
    ) -> RunResult[T]:
        """Have a model do `task`, as the root of a new run.

        With `output`, the answer becomes an object: `data` of the result; see `spawn`. `session`
        continues a conversation: the id of one of its runs, a unique prefix of one, or "last";
        `RunResult.session` has it. The model also gets `context` and `context_files`, framed as
        data; instead of the name of a file, `NamedData` has its content. `run_id` is the id of the
        run, if the caller has chosen one. With `tools`, the run has only those.

        ```python
        run = await rt.run("Summarize the notes.", context="The launch is on Friday.")
        assert run.ok
        ```
        """
        wanted = requested_output(output)
        run = await self._runs.begin_model_led(
            task, session, context, context_files, output=wanted, run_id=run_id, tools=tools
        )
        return typed(await self._runs.run_model_led(run), wanted.convert)

    async def stream(
        self,
        task: str,
        *,
        output: type[T] | JsonSchema | None = None,
        session: str | None = None,
        context: str = "",
        context_files: Sequence[str | NamedData] = (),
        run_id: str | None = None,
        tools: Sequence[str] | None = None,
    ) -> AsyncGenerator[TextDelta | ToolProgress | Event | RunResult[T], None]:
        """Like `run`, as a stream: `async for item in rt.stream("…")`.

        Items are the text of all agents as it arrives (`TextDelta`), the events of the run (tool
        calls, children), the progress of tools, and last the `RunResult`. If the reader falls
        behind, the agents wait before their next turn. Leaving the loop cancels the run; with
        `contextlib.aclosing`, it is cancelled before the next statement.

        ```python
        async for item in rt.stream("What does this project do?"):
            match item:
                case retinue.TextDelta(text=text):
                    print(text, end="")
                case retinue.RunResult(total=total):
                    print(total.tokens)
        ```
        """
        run_id = run_id or new_run_id()
        buffer, wanted = StreamBuffer(), requested_output(output)
        run = await self._runs.begin_model_led(
            task,
            session,
            context,
            context_files,
            output=wanted,
            listeners=buffer.listeners(self._services.listeners, run_id),
            run_id=run_id,
            tools=tools,
        )
        run.suspension.reader_has_room = buffer.has_room
        run.runner.cancel_reason = LEFT
        streamed = self._task_group.create_task(buffer.keep(partial(self._runs.run_model_led, run)))
        self._streams.add(streamed)
        streamed.add_done_callback(self._streams.discard)
        async with aclosing(buffer.read(streamed)) as items:
            async for item in items:
                yield typed(item, wanted.convert) if isinstance(item, RunResult) else item

    async def compact(self, session: str) -> RunResult:
        """Have a model summarize a session, which then continues from the summary alone.

        The summary is a run of the session, with limits and an outcome like any other.
        """
        run = await self._runs.begin_model_led(COMPACT, session)
        return await self._runs.run_model_led(run, only_summarize=True)

    async def write_title(self, first: RunResult) -> str:
        """Have a child write a title for the session that the run `first` began.

        "" if the child fails, or if the model server has one slot: its prompt cache would be lost.
        """
        role = self._services.roles[TITLE_ROLE]
        if not keeps_prompt_cache(self._services.models, role.model or self.model):
            return ""
        return await write_title(self._runs, self._task_resolver, first)

    async def resume(self, run_id: str) -> RunResult:
        """Continue a run that was suspended, or whose process has ended.

        Closed agents stay closed. The others continue from their last recorded reply, under the
        same contract and with what is left of the budget. A tool call that was interrupted runs
        again if it only reads; otherwise the model is told that it was interrupted.

        For a run that a program led, `results` has the results of all its tasks, in order, and
        `races` those of its races. For a plan, `plan` has the outcome of all steps. For a plan that
        was being written, `response` is its text.

        Raises RunError if the run has ended, or another process works on it, and WorkspaceError if
        another process uses a working copy of the run.
        """
        run, found = await self._runs.reopen(run_id)
        if found.started.kind == MODEL_LED:
            return await self._runs.run_model_led(run, only_summarize=found.started.task == COMPACT)
        if found.started.kind == PLAN:
            return await self._plans.resume(run, found)
        if found.started.kind == PLANNING:
            return await self._plans.resume_writing(run, found)
        tasks = complete_tasks(run, found, self._task_resolver)
        results, races = await self._runs.run_to_end(run, tasks)
        return msgspec.structs.replace(run.outcome, results=results, races=races)

    async def fork(
        self,
        run_id: str,
        agent: str = ROOT_ID,
        *,
        at: int | str | None = None,
        tell: str = "",
        limits: Limits | LimitOptions | None = None,
        new_budget: bool = False,
        tools: Sequence[str] | None = None,
    ) -> RunResult:
        """Start a new run from a moment of another one, with the model and mode of this runtime.

        The root of the new run continues an agent of the other one, named by id or path; by default
        its root. `at` is the number of an event, or "t3" for the end of turn 3; by default the last
        moment that can be forked. The conversation is the same, `tell` follows it. The files are a
        copy as they were; `redo(run, "a0")` applies the work of the agent, changed as the fork has
        changed it. Limits are what was left. With `tools`, the fork has only those. It may do no
        more than the agent could.

        ```python
        model = ScriptedModel([say("A list."), say("A dictionary.")])
        async with retinue.open(".", model=model) as rt:
            run = await rt.run("What would you use?")
            fork = await rt.fork(run.id, tell="Do not use a list.")
            assert fork.response == "A dictionary."
        ```
        """
        run = await self._runs.begin_fork(
            run_id, agent, at, tell, as_limits(limits), new_budget=new_budget, tools=tools
        )
        return await self._runs.run_model_led(run)

    async def spawn(
        self,
        role: str,
        task: str,
        *,
        output: type[T] | JsonSchema | None = None,
        **options: Unpack[TaskOptions],
    ) -> Result[T]:
        """Have one child do a task, and wait for it. The options are the fields of `Task`.

        With `output`, the answer becomes an object of that type: a pydantic model, a msgspec
        struct, a dataclass or a TypedDict. With a JSON schema, it becomes JSON data. An answer that
        does not fit is sent back to the model once; then the child fails.

        `continues` names an ended child, by its `Result` or as "RUN/AGENT": the new child continues
        its conversation under a contract of its own, and with the role "" it keeps its role.

        ```python
        result = await rt.spawn("researcher", "Where are links stored?", max_tool_calls=5)
        more = await rt.spawn("", "And who reads them?", continues=result)
        ```
        """
        work = make_task(role, task, {**options, "output": output})
        spec = await self._task_resolver.resolve(work)
        run, number = self._runs.submit([work], self._policy.max_concurrent)
        result = await run.spawn(spec, origin_key(number), Baseline())
        return typed(result, spec.output.convert)

    async def fan_out(
        self,
        tasks: Sequence[Task | tuple[str, str]],
        *,
        output: type[T] | JsonSchema | None = None,
        max_concurrent: int | None = None,
    ) -> list[Result[T]]:
        """Have each task done by a child of its own; results are in the order of the tasks.

        A child that fails gives a failed result, and its siblings continue. `output` is the output
        type of all tasks; without it, each task may have its own.

        ```python
        files = await rt.files("*.txt")
        tasks = [retinue.Task("researcher", f"Summarize {f}.", context_files=(f,)) for f in files]
        for file, result in zip(files, await rt.fan_out(tasks, max_concurrent=4), strict=True):
            print(file, result.response if result.ok else result.error)
        ```
        """
        max_concurrent = self._policy.concurrency(max_concurrent)
        wanted = without_cache_for_duplicates(as_task(task, output) for task in tasks)
        # Make all specs first: a wrong task raises before any work begins.
        specs = [await self._task_resolver.resolve(task) for task in wanted]
        if not specs:
            return []
        run, first = self._runs.submit(wanted, max_concurrent)
        baseline = Baseline()

        async def spawn(numbered: tuple[int, AgentSpec]) -> Result:
            number, spec = numbered
            result = await run.spawn(spec, origin_key(number), baseline)
            return typed(result, spec.output.convert)

        return await map_concurrently(spawn, list(enumerate(specs, first)), max_concurrent)

    async def race(
        self,
        role: str,
        task: str,
        candidates: Sequence[str | TaskOptions] = (),
        *,
        times: int = 1,
        first: bool = False,
        max_concurrent: int | None = None,
        output: type[T] | JsonSchema | None = None,
        **options: Unpack[TaskOptions],
    ) -> RaceResult:
        """Have several candidates do one task, each in its own copy, and merge the best work.

        A candidate is the name of a model or a role, or options that differ from `options`, such as
        `{"system_prompt": "Be brief."}`; without candidates, it is the default model. Each takes
        part `times` times. The `checks` decide first; among those that pass, fewer changed lines,
        then cost, tokens and time. With `first`, the first that passes stops the others. Their
        changes are kept: `redo` applies them. Raises UsageError, before any call of a model, for a
        race without checks, with one candidate, or whose worst case exceeds the budget.
        """
        max_concurrent = self._policy.concurrency(max_concurrent)
        tasks = race_tasks(
            role, task, candidates, {**options, "output": output}, times, self._services.roles
        )
        specs = [await self._task_resolver.resolve(one) for one in tasks]

        async def spec(number: int) -> AgentSpec:
            return specs[number]

        run, number = self._runs.submit(tasks, max_concurrent, race=FIRST if first else BEST)
        race = await run.race(
            origin_key(number),
            len(tasks),
            spec,
            rule=FIRST if first else BEST,
            max_concurrent=max_concurrent,
        )
        if race.winner is None:
            return race
        return msgspec.structs.replace(race, winner=typed(race.winner, specs[0].output.convert))

    async def start(
        self,
        role: str,
        task: str,
        *,
        output: type[T] | JsonSchema | None = None,
        **options: Unpack[TaskOptions],
    ) -> Job[T]:
        """Start a child in the background. Its contract is durable when this returns.

        The arguments are those of `spawn`.

        ```python
        job = await rt.start("researcher", "Look around.", timeout_s=60)
        result = await job.result()
        ```
        """
        work = make_task(role, task, {**options, "output": output})
        spec = await self._task_resolver.resolve(work)
        run, number = self._runs.submit([work], self._policy.max_concurrent)
        return await self._jobs.start(run, spec, origin_key(number))

    async def join(self, jobs: Iterable[Job[T]] | Literal["*"] = "*") -> list[Result[T]]:
        """Wait for jobs, by default for all. A job can be joined more than once.

        ```python
        jobs = [await rt.start("researcher", f"Question {n}") for n in (1, 2)]
        first, second = await rt.join(jobs)
        ```
        """
        return await self._jobs.join(jobs)

    # Plans

    async def plan(
        self, goal: str, *, context: str = "", context_files: Sequence[str] = ()
    ) -> Plan:
        """Have a planner, which only reads, write a plan for `goal`. The plan is not run.

        Raises PlanError if the plan cannot be run; the error has the plan as `plan`.
        """
        return await self._plans.write(goal, context=context, files=context_files)

    async def check(self, plan: Plan | Mapping[str, Any]) -> Plan:
        """The plan as `execute` would run it. Raises PlanError, with every problem.

        `plan` may be data, as from a TOML or JSON file. Nothing is run.
        """
        return await self._plans.check(plan)

    async def forecast(
        self, work: Plan | Sequence[Task | tuple[str, str]], *, max_concurrent: int | None = None
    ) -> Forecast:
        """Estimate the tokens, money and time of a plan, or of the tasks of a fan-out.

        The estimate comes from what earlier agents of the same roles used in this project.
        """
        return await self._plans.forecast(work, most=self._policy.concurrency(max_concurrent))

    async def execute(
        self, plan: Plan | Mapping[str, Any], *, max_concurrent: int | None = None
    ) -> PlanResult:
        """Run `plan`, as a run of its own. Raises PlanError before anything is done.

        ```python
        step = {"name": "look", "role": "researcher", "task": "Look around."}
        assert (await rt.execute({"goal": "Know it", "steps": [step]})).ok
        ```
        """
        return await self._plans.execute(plan, most=self._policy.concurrency(max_concurrent))

    # Running agents

    def cancel(self, agent_id: str, *, run_id: str | None = None) -> None:
        """Cancel one agent and its descendants; its parent gets a cancelled result."""
        run, agent = self._runs.find_agent(agent_id, run_id)
        run.cancel(agent)

    async def cancel_suspended(self, run_id: str, agent_id: str = ROOT_ID) -> None:
        """Cancel a run that was suspended, or whose process has ended; or one of its agents.

        The work of its agents in working copies is kept: `redo` merges it. Raises like `resume`.
        """
        await self._runs.cancel_suspended(run_id, agent_id)

    def tell(self, agent_id: str, text: str, *, run_id: str | None = None) -> None:
        """Send a message to a running agent, which reads it before its next turn.

        Raises UsageError if the agent has given its answer. A message that arrives during its last
        turn is a note of its result.
        """
        if not text.strip():
            raise UsageError("The message is empty.")
        check_unicode(text=text)
        _, agent = self._runs.find_agent(agent_id, run_id)
        agent.receive(text, source=FROM_USER)
