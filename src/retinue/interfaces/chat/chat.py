"""State and actions of a chat: its conversation, its agents, and the runtime. Draws nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from retinue.config.environment import Environment
from retinue.config.settings import Settings, Theme
from retinue.domain.agent_state import ROOT_ID, AgentState
from retinue.domain.approval import Rule, agent_label
from retinue.domain.budget import Budget
from retinue.domain.contract import Contract, decode_contract, title_of
from retinue.domain.events import AgentClosed, Event, MessageReceived
from retinue.domain.lifecycle import State
from retinue.domain.plan.outcome import RunResult
from retinue.domain.report import outcome_text
from retinue.domain.result import Status
from retinue.domain.role import GENERAL
from retinue.domain.run_state import RunState
from retinue.domain.slash_command import SlashCommand
from retinue.errors import RetinueError, RunSuspended, UsageError
from retinue.interfaces.chat.input_history import InputHistory
from retinue.interfaces.chat.input_parser import MessageInput
from retinue.interfaces.chat.questions import QuestionQueue
from retinue.interfaces.chat.runtime_host import RuntimeHost
from retinue.interfaces.plan_review import Edit
from retinue.interfaces.view.agent_tree import AgentTree, Forest, is_active, short_name, short_names
from retinue.interfaces.view.approvals import permanent_rule_hint, request_title
from retinue.interfaces.view.conversation import Conversation
from retinue.interfaces.view.formatting import clip, one_line, without_controls
from retinue.interfaces.view.modes import MODES
from retinue.interfaces.view.styled_text import Tone, styled
from retinue.ports.clock import Clock
from retinue.ports.person import Listeners, Person
from retinue.project import (
    STATE_DIR,
    open_journal,
    open_run_locks,
    project_root,
    rename_session,
)
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.history.audit import read_all
from retinue.runtime.history.recovery import check_sealed
from retinue.runtime.history.session import LAST, session_entry
from retinue.runtime.runtime import Runtime

INTERRUPTED = "interrupted by the user"
CLOSED = "the chat was closed"
Choice = tuple[str, str]
"""A value, and the help beside it in a list."""
Work = Coroutine[Any, Any, None]
Action = Callable[["Chat", str], Work | None]
Pick = Callable[[str, Sequence[Choice], Callable[[str], None], Callable[[str], None] | None], None]
REPORT_TOKENS = 2_000
# After these events, the text that a model has streamed is recorded, or discarded.
REPLY_ENDS = ("turn.started", "model.replied", "model.failed", "agent.subagent_closed")


async def _no_editor(text: str) -> str | None:
    raise UsageError("There is no terminal to open an editor in.")


def _no_clipboard(text: str) -> None:
    raise UsageError("There is no terminal to copy with.")


class Chat:
    """`serve` runs the chat; `slash_commands.submit` handles what the user types meanwhile.

    `on_notify` receives messages for a user who may look elsewhere. `on_edit` opens a text in the
    user's editor.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        session: str | None = None,
        clock: Clock | None = None,
        notify_after_s: float = Settings().notify_after_s,
        on_notify: Callable[[str], None] = lambda _: None,
        on_quit: Callable[[], None] = lambda: None,
        on_edit: Edit = _no_editor,
        **options: Any,
    ) -> None:
        self.directory = project_root(directory)
        self.environment: Environment = options.get("environment") or Environment.current()
        self.clock = clock or SystemClock()
        self.forest = Forest()
        self.conversation = Conversation(self.forest)
        self.history = InputHistory(self.directory / STATE_DIR / "history")
        self.session: str | None = None
        self.title = ""
        """Title of the session; "" before it has one."""
        self._initial_session = session
        self.unread_messages: list[str] = []
        """Messages of the user that the root agent has not read yet."""
        self.on_notify = on_notify
        self.on_quit = on_quit
        self.on_edit = on_edit
        self.on_copy: Callable[[str], None] = _no_clipboard
        self.on_draft: Callable[[str], None] = lambda _: None
        """Puts a text into the input."""
        self.on_theme: Callable[[Theme], None] = lambda _: None
        self.on_pick: Pick = self._show_choices
        """Shows a list, and calls back with the choice of the user."""
        self.notify_after_s = notify_after_s
        self.on_life: Callable[[], None] = lambda: None
        """Called when the root agent's model is alive and writes nothing."""
        self.waiting_for = ""
        """What an action of the user waits for, outside of any run; empty if for nothing."""
        self.opening_status = ""
        """What the opening of the runtime waits for; empty if it does not wait."""
        self.questions = QuestionQueue(self._on_question, self._on_rule_allowed)
        self.host = RuntimeHost(
            {
                "directory": self.directory,
                "clock": self.clock,
                "person": Person(
                    approve=self.questions.approve,
                    ask=self.questions.ask,
                    choose_model=self.questions.choose_model,
                ),
                "listeners": Listeners(
                    on_event=self._on_event,
                    on_text=self._on_root_text,
                    on_child_text=self._on_agent_text,
                    on_progress=self._on_progress,
                    on_wait=self._on_wait,
                    on_stop=self._on_stop,
                ),
                **options,
            },
            on_open=self._on_open,
            on_close=self._on_close,
            on_error=self.show_error,
        )
        self.current_run_id: str | None = None
        """The run that the user's last message started; "" before the run has an id."""
        self._current_task: asyncio.Task[None] | None = None
        self._title_task: asyncio.Task[None] | None = None
        self._streamed: dict[tuple[str, str], list[str]] = {}
        self._pending_context: list[str] = []
        self._held_messages: list[MessageInput] = []
        self._shown_notes: set[str] = set()
        self._earlier: Runtime | None = None
        """The latest runtime, whose agents' numbers the next one continues."""
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._reading_patches = False

    async def serve(self) -> None:
        """Run until `host.close`."""
        await self.host.serve(self._load_initial_session())

    # Queries

    @property
    def runtime(self) -> Runtime:
        return self.host.runtime

    @property
    def budget(self) -> Budget | None:
        return self.host.runtime.budget if self.host.ready else None

    @property
    def tree(self) -> AgentTree | None:
        """Tree of the current run, or of the last one."""
        if self.current_run_id:
            return self.forest.trees.get(self.current_run_id)
        return next(reversed(self.forest.trees.values()), None)

    def agents(self) -> list[tuple[AgentTree, AgentState]]:
        """All agents, those of the latest run first."""
        return [(t, a) for t in reversed(self.forest.trees.values()) for a in t.run.agents.values()]

    def active_children(self) -> list[tuple[AgentTree, AgentState]]:
        """Children that run or wait."""
        return [(t, a) for t, a in self.agents() if a.parent_id and is_active(a)]

    def find_agent(self, name: str) -> tuple[AgentTree, AgentState]:
        """Find an agent by its id, its path or the last part of its path; active ones first."""
        found = [(t, a) for t, a in self.agents() if name in agent_names(a)]
        found.sort(key=lambda pair: pair[1].state is State.CLOSED)
        if not found:
            known = short_names([a for _, a in self.agents() if a.parent_id], 10)
            raise UsageError(f"No agent {name!r} in this conversation; its children: {known}.")
        return found[0]

    def failed_agents(self) -> list[tuple[str, str]]:
        """(run id, agent id) of failed agents: the latest run first, causes before effects."""
        return [
            (tree.run.id, agent)
            for tree in reversed(self.forest.trees.values())
            for agent in tree.failures
        ]

    async def agent_record(self, run_id: str, agent_id: str) -> tuple[Contract, list[Event]]:
        """Contract and events of an agent, from the journal."""
        async with open_journal(self.directory, self.host.options.get("environment")) as store:
            rows = await store.agents(run_id)
            events = await store.agent_events(run_id, agent_id)
        (contract,) = [row.context_json for row in rows if row.id == agent_id]
        return decode_contract(contract), list(events)

    def streamed_text(self, run_id: str, agent_id: str) -> str:
        """The reply that an agent's model is writing."""
        return "".join(self._streamed.get((run_id, agent_id), ()))

    # Actions of the user

    def perform(self, action: Action, argument: str) -> None:
        """Perform an action; what it has to wait for is a task. Errors become notices."""
        try:
            work = action(self, argument)
            if work is not None:
                self.host.start_task(work)
        except RetinueError as error:
            self.show_error(error)

    def pick(
        self, title: str, choices: Sequence[Choice], then: Action, delete: Action | None = None
    ) -> None:
        """Let the user choose from a list; `then` gets the value, `delete` one to delete."""
        self.on_pick(
            title,
            choices,
            partial(self.perform, then),
            None if delete is None else partial(self.perform, delete),
        )

    def _show_choices(self, title: str, choices: Sequence[Choice], *_: object) -> None:
        """Show a list where nothing can be chosen from one."""
        lines = [styled((title, Tone.STRONG))]
        lines += [styled((f"  {name}  ", Tone.CODE), one_line(text)) for name, text in choices]
        self.conversation.add_lines(lines)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """While inside, the screen shows what the user waits for."""
        self.waiting_for = what
        try:
            yield
        finally:
            self.waiting_for = ""

    def add_context(self, text: str) -> None:
        """Tell the root agent something with the next message."""
        self._pending_context.append(text)

    def send_message(self, message: MessageInput) -> None:
        """Send a message to the root agent. A running one reads it before its next turn."""
        if self.host.opening:
            self._held_messages.append(message)
            return
        runtime = self.runtime
        if self.current_run_id is None:
            self._start_run(self._run_message(message))
        else:
            # If the run ends before the next turn, the next run gets the message.
            self.unread_messages.append(message.text)
            if run_id := self._active_run_id:
                with suppress(UsageError):  # The agent has just answered.
                    runtime.tell(ROOT_ID, message.text, run_id=run_id)

    @property
    def commands(self) -> Mapping[str, SlashCommand]:
        """Slash commands of files."""
        return self.runtime.commands if self.host.ready else {}

    def run_command_file(self, text: str) -> None:
        """Send the prompt of a command file to the root agent, or to the agent that it names."""
        self.host.check_idle()
        self._start_run(self._run_command_file(self.runtime, text))

    async def _run_command_file(self, runtime: Runtime, text: str) -> None:
        command = await runtime.expand(text)
        assert command is not None, "the caller has checked"
        if command.role or command.model:
            self.host.start_task(
                self._spawn(
                    runtime,
                    command.role or GENERAL,
                    command.task,
                    "",
                    model=command.model,
                    tools=command.tools,
                    context_files=command.files,
                )
            )
            return
        await self._run_message(MessageInput(command.task, command.files), tools=command.tools)

    def start_run(self, work: Callable[[], Coroutine[Any, Any, RunResult]]) -> None:
        """Start a run whose session the next message continues."""
        self.host.check_idle()
        self._start_run(self._await_run(work))

    def spawn(self, role: str, task: str, *, continues: str = "") -> None:
        """Start an agent in the background, outside the conversation."""
        self.host.start_task(self._spawn(self.runtime, role, task, continues))

    def interrupt(self) -> bool:
        """Interrupt the current run, or cancel background agents. Returns whether anything ran.

        An interrupted run can be resumed. Background agents cannot.
        """
        if self._current_task is None:
            return self.cancel_current()
        if run_id := self._active_run_id:
            self.runtime.suspend(INTERRUPTED, run_id=run_id)
        else:
            self.conversation.add_notice(f"■ {INTERRUPTED}", Tone.STOPPED)
        self._current_task.cancel()
        return True

    def _on_stop(self, run_id: str) -> bool:
        """Interrupt the current run for another process. Background agents cannot be resumed."""
        return run_id == self._active_run_id and self.interrupt()

    @property
    def interrupted_run(self) -> RunState | None:
        """The latest run, if it was interrupted."""
        run = next(
            (tree.run for tree in reversed(self.forest.trees.values()) if tree.is_model_led), None
        )
        if run is None or run.status is not None or self.current_run_id is not None:
            return None
        return run

    def resume_interrupted(self) -> None:
        run = self.interrupted_run
        assert run is not None, "the caller has checked"
        if (run.model, run.mode) != (self.runtime.model, self.runtime.mode):
            raise UsageError(
                f"The run was started with {run.model} in {run.mode} mode. Choose these with /model"
                " and /mode to resume it, or type what to do instead."
            )
        self._start_run(self._await_run(partial(self.runtime.resume, run.id)))

    def cancel_current(self) -> bool:
        """Cancel the current run or, without one, background agents and commands."""
        if run_id := self._active_run_id:
            self.runtime.cancel(ROOT_ID, run_id=run_id)
            return True
        active, tasks = self.active_children(), list(self._background_tasks)
        for tree, agent in active:
            if agent.depth == 1:
                self.runtime.cancel(agent.id, run_id=tree.run.id)
        for task in tasks:
            task.cancel()
        return bool(active or tasks)

    def cancel_agent(self, name: str) -> AgentState:
        tree, agent = self.find_agent(name)
        if agent.state is State.CLOSED:
            raise UsageError(f"{agent.id} ({agent.path}) has already ended.")
        self.runtime.cancel(agent.id, run_id=tree.run.id)
        return agent

    def start_new_conversation(self) -> None:
        if self._title_task is not None:
            self._title_task.cancel()
        self.session, self.title = None, ""
        self.forest.trees.clear()
        self.conversation = Conversation(self.forest)
        self.unread_messages, self._pending_context = [], []

    async def load_session(self, name: str) -> None:
        """Load an earlier conversation: that of the run `name`, or the `LAST`."""
        async with open_journal(self.directory, self.host.options.get("environment")) as store:
            rows = await store.session(None if name == LAST else name)
            for row in rows:
                check_sealed(row)
            journals = [await read_all(store, row.id) for row in rows]
        locks = open_run_locks(self.directory, self.environment)
        self.start_new_conversation()
        for row, journal in zip(rows, journals, strict=True):
            for event in journal:
                self.forest.apply(event)
                self.conversation.apply(event)
            if (tree := self.forest.trees[row.id]).run.is_open:
                self.conversation.abandon(tree, is_held=locks.is_held(row.id))
        self.session, self.title = rows[0].id, session_entry(rows[::-1]).title
        self._read_patches_soon()

    def addressable_names(self) -> set[str]:
        """Names that a message can start with after an @: roles and child agents."""
        names = set(self.runtime.roles) if self.host.ready else set()
        children = (agent for _, agent in self.agents() if agent.parent_id is not None)
        return names.union(*map(agent_names, children))

    def send_to(self, name: str, text: str) -> None:
        """Start an agent with the role `name`, or send a message to the agent of that name.

        An agent that has ended is continued by a new one.
        """
        if name in self.runtime.roles:
            self.spawn(name, text)
            return
        tree, agent = self.find_agent(name)
        if agent.state is State.CLOSED:
            self.spawn("", text, continues=f"{tree.run.id}/{agent.id}")
            return
        self.runtime.tell(agent.id, text, run_id=tree.run.id)
        self.conversation.add_notice(f"» {short_name(agent)}: {one_line(text)}")

    def start_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that `cancel_current` cancels."""
        task = self.host.start_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    async def _load_initial_session(self) -> None:
        if self._initial_session is not None:
            await self.load_session(self._initial_session)

    def _on_open(self, runtime: Runtime) -> None:
        runtime.share_numbers(self._earlier)
        self._earlier = runtime
        if not self.conversation.entries:
            self.conversation.add_notice(
                f"{self.environment.display_path(self.directory)}\n"
                f"{runtime.model}, {runtime.mode} mode: {MODES[runtime.mode]}.\n"
                "Describe a task to start. /help lists commands and keys."
            )
        for note in runtime.notes:
            if note not in self._shown_notes:
                self._shown_notes.add(note)
                self.conversation.add_notice(note)
        self.opening_status = ""
        self._read_patches_soon()
        held, self._held_messages = self._held_messages, []
        for message in held:
            self.send_message(message)

    def _on_close(self, runtime: Runtime) -> None:
        """Suspend the current run before its task is cancelled, so that it can be resumed."""
        runtime.set_cancel_reason(CLOSED)
        if run_id := self._active_run_id:
            runtime.suspend(CLOSED, run_id=run_id)

    @property
    def _active_run_id(self) -> str | None:
        """The current run, if its root agent is active."""
        root = self.forest.trees[self.current_run_id].run.root if self.current_run_id else None
        return self.current_run_id if root is not None and is_active(root) else None

    def _start_run(self, work: Coroutine[Any, Any, None]) -> None:
        self.current_run_id = ""
        self._current_task = self.host.start_task(work)
        self._current_task.add_done_callback(self._on_current_task_done)

    def _on_current_task_done(self, task: asyncio.Task[None]) -> None:
        if task is self._current_task:  # The task was cancelled before its first step.
            self._clear_current_run()

    def _clear_current_run(self) -> None:
        # The next message continues this session, however the run ended.
        self.session = self.session or self.current_run_id or None
        if self.current_run_id and not self.title:
            self.title = title_of(self.forest.trees[self.current_run_id].run.task)
        self.current_run_id = self._current_task = None

    async def _run_message(self, message: MessageInput, tools: Sequence[str] | None = None) -> None:
        context, self._pending_context = "\n\n".join(self._pending_context), []
        await self._await_run(
            partial(
                self.runtime.run,
                message.text,
                session=self.session,
                context=context,
                context_files=message.files,
                tools=tools,
            )
        )

    async def _await_run(self, work: Callable[[], Coroutine[Any, Any, RunResult]]) -> None:
        is_first = self.session is None
        try:
            result = await work()
        except RunSuspended:
            return  # The conversation shows why, from the event.
        finally:
            self._clear_current_run()
            unread, self.unread_messages = self.unread_messages, []
        self.session = result.session
        word = "Done" if result.ok else str(result.status).replace("_", " ").capitalize()
        self.notify_if_long(result.total.duration_s, word, result.task)
        if is_first and result.ok:
            self._title_task = self.host.start_task(
                self._write_title(self.runtime, result), blocks=False
            )
        # The ended run cannot read these messages any more.
        if unread and result.status is not Status.CANCELLED:
            self.send_message(MessageInput("\n".join(unread)))

    async def _write_title(self, runtime: Runtime, first: RunResult) -> None:
        """Replace the first words as the title, unless the user has renamed the session."""
        words = self.title
        # Whatever prevents it, the first words remain.
        with suppress(RetinueError):
            title = without_controls(await runtime.write_title(first)).strip()
            title = title and await rename_session(
                self.directory, first.session, title, self.environment, replace=False
            )
            if title and (self.session, self.title) == (first.session, words):
                self.title = title

    async def _spawn(
        self, runtime: Runtime, role: str, task: str, continues: str, **options: Any
    ) -> None:
        job = await runtime.start(role, task, continues=continues, **options)
        result = await job.result()
        self._pending_context.append(outcome_text(result, cap_tokens=REPORT_TOKENS))
        self.notify_if_long(result.usage.duration_s, f"{result.role} finished", task)

    def notify_if_long(self, duration_s: float, outcome: str, task: str) -> None:
        if 0 < self.notify_after_s <= duration_s:
            self.on_notify(f"{outcome}: {clip(one_line(task), 60)}")

    def _on_root_text(self, text: str) -> None:
        if not text:
            self.on_life()
            return
        self.conversation.stream_reply(text)
        self._on_agent_text(self.current_run_id or "", ROOT_ID, text)

    def _on_agent_text(self, run_id: str, agent_id: str, text: str) -> None:
        if text:
            self._streamed.setdefault((run_id, agent_id), []).append(text)

    def _on_event(self, event: Event) -> None:
        if event.type in REPLY_ENDS:
            self._streamed.pop((event.run_id, event.agent_id), None)
        tree = self.forest.apply(event)
        self.conversation.apply(event)
        if event.type in ("run.started", "run.resumed") and tree.is_model_led:
            self.current_run_id = event.run_id
        elif event.type == "agent.files_changed":
            self._read_patches_soon()
        elif event.type == "agent.told" and self.unread_messages:
            match event.fact:
                case MessageReceived(source="user", content=text) if text in self.unread_messages:
                    self.unread_messages.remove(text)
        elif event.type == "agent.subagent_closed" and event.parent_agent_id is not None:
            match event.fact:
                case AgentClosed(unread=unread) if unread:
                    name = short_name(tree.run.agents[event.agent_id])
                    for text in unread:
                        self.conversation.add_notice(f"{name} ended before it read: {text}")

    def _read_patches_soon(self) -> None:
        if self.conversation.changes and self.host.ready and not self._reading_patches:
            self._reading_patches = True
            self.host.start_task(self._read_patches(self.runtime))

    async def _read_patches(self, runtime: Runtime) -> None:
        """Show the patches of changes that the conversation lists."""
        waiting = self.conversation.changes
        try:
            while waiting:
                run_id = next(iter(waiting))[0]
                numbers = {number for run, number in waiting if run == run_id}
                patches = {c.number: c.patch for c in await runtime.diff(run_id, numbers=numbers)}
                for number in numbers:
                    waiting.pop((run_id, number)).show(patches.get(number, ""))
        finally:
            self._reading_patches = False

    def show_error(self, error: RetinueError) -> None:
        self.conversation.add_notice(str(error), Tone.FAILED)

    def _on_question(self) -> None:
        if self.questions.open:
            question = self.questions.open[-1]
            if question.request is None:
                asker = agent_label(question.path) if question.path else "retinue"
                self.on_notify(f"{asker} has a question")
            else:
                self.on_notify(request_title(question.request))

    def _on_rule_allowed(self, rule: Rule) -> None:
        self.conversation.add_notice(permanent_rule_hint(rule))

    def _on_progress(self, run_id: str, agent_id: str, tool: str, text: str) -> None:
        if (tree := self.forest.trees.get(run_id)) is not None:
            tree.report(agent_id, text)

    def _on_wait(self, what: str) -> None:
        self.opening_status = what


def agent_names(agent: AgentState) -> tuple[str, ...]:
    return agent.id, agent.path, short_name(agent)
