"""One chat: its conversation, its agents, and what can be done with them. It draws nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from retinue.config.environment import Environment
from retinue.config.settings import Settings
from retinue.domain.access import Access
from retinue.domain.agent_state import AgentState
from retinue.domain.approval import Rule
from retinue.domain.budget import Budget
from retinue.domain.contract import Contract, decode_contract
from retinue.domain.events import Event, MessageReceived
from retinue.domain.grant import Mode, Network
from retinue.domain.lifecycle import State
from retinue.domain.plan.outcome import RunResult
from retinue.domain.report import outcome_text
from retinue.domain.result import Status, cap
from retinue.domain.run_state import RunState
from retinue.domain.scope import ANYWHERE
from retinue.errors import RetinueError, UsageError
from retinue.interfaces.chat.input_history import History
from retinue.interfaces.chat.input_parser import Message
from retinue.interfaces.chat.questions import Questions
from retinue.interfaces.chat.runtime_host import Engine
from retinue.interfaces.consent import permanent_rule_hint
from retinue.interfaces.plan_review import Edit, read_only_note, review_plan
from retinue.interfaces.view.agent_tree import AgentTree, Forest, is_active
from retinue.interfaces.view.conversation import Conversation
from retinue.interfaces.view.formatting import clip, one_line
from retinue.interfaces.view.styled_text import Span, Tone
from retinue.ports.clock import Clock
from retinue.ports.listeners import Listeners
from retinue.ports.person import Person
from retinue.ports.sandbox import Sandbox
from retinue.project import STATE_DIR, open_journal, project_root
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.delegation.children import Job
from retinue.runtime.history.audit import read_all
from retinue.runtime.history.session import LAST
from retinue.runtime.history.undo import ChangePatch, UndoResult
from retinue.runtime.planning.plans import LATEST
from retinue.runtime.runtime import Runtime

__all__ = ["LAST", "Chat"]

ROOT = "a0"
INTERRUPTED = "interrupted by the user"
CLOSED = "the chat was closed"
MODES = {
    Mode.PLAN: "agents only read",
    Mode.NORMAL: "you are asked before files change or commands run",
    Mode.AUTO: "files change and commands run without asking",
    Mode.DANGEROUS: "nothing is asked",
}
NO_SHELL = (
    "Shell commands are off: no sandbox is available here. `retinue --unsafe-no-sandbox` runs them"
    " unconfined."
)
PLAN_STOPPED = "The plan is stopped."
SHELL_TIMEOUT_S = 120.0
SHELL_BYTES = 32_000
REPORT_TOKENS = 2_000
# After these, what was being said is on record, or was in vain.
REPLY_ENDS = ("turn.started", "model.replied", "model.failed", "agent.subagent_closed")


class Chat:
    """`serve` it; `commands.submit` is for what is typed meanwhile.

    `on_attention` is called with what a person should know who looks elsewhere, and `on_edit` has
    them edit a text.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        session: str | None = None,
        clock: Clock | None = None,
        notify_after_s: float = Settings().notify_after_s,
        on_attention: Callable[[str], None] = lambda _: None,
        on_quit: Callable[[], None] = lambda: None,
        on_edit: Edit | None = None,
        **options: Any,
    ) -> None:
        self.directory = project_root(directory)
        self.environment: Environment = options.get("environment") or Environment.current()
        self.clock = clock or SystemClock()
        self.forest = Forest()
        self.conversation = Conversation(self.forest)
        self.history = History(self.directory / STATE_DIR / "history")
        self.session: str | None = None
        self._resumed = session
        self.queued: list[str] = []
        """What the user said to the one who leads, and it has not read yet."""
        self.on_attention = on_attention
        self.on_quit = on_quit
        self.on_edit = on_edit
        self.notify_after_s = notify_after_s
        self.waiting = ""
        """What the opening of the runtime waits for."""
        self.questions = Questions(self._asked, self._allowed)
        self.engine = Engine(
            {
                "directory": self.directory,
                "clock": self.clock,
                "person": Person(
                    approve=self.questions.approve,
                    ask=self.questions.ask,
                    choose_model=self.questions.choose,
                ),
                "listeners": Listeners(
                    on_event=self._heard,
                    on_text=self._heard_lead,
                    on_child_text=self._heard_words,
                    on_wait=self._waits,
                ),
                **options,
            },
            on_open=self._opened,
            on_close=self._closing,
            on_problem=self.problem,
        )
        self.leading: str | None = None
        """The run that the user's last words began, while it is under way; "" before it is one."""
        self._lead: asyncio.Task[None] | None = None
        self._words: dict[tuple[str, str], list[str]] = {}
        self._news: list[str] = []
        self._held: list[Message] = []
        self._told: set[str] = set()
        self._commands: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Be there until `engine.close`."""
        await self.engine.serve(self._go_on())

    # What is known

    @property
    def runtime(self) -> Runtime:
        return self.engine.runtime

    @property
    def budget(self) -> Budget | None:
        return self.engine.runtime.policy.budget if self.engine.ready else None

    @property
    def tree(self) -> AgentTree | None:
        """The run under way, or the last one."""
        if self.leading:
            return self.forest.trees.get(self.leading)
        return next(reversed(self.forest.trees.values()), None)

    def agents(self) -> list[tuple[AgentTree, AgentState]]:
        """All of them, latest run first."""
        return [(t, a) for t in reversed(self.forest.trees.values()) for a in t.run.agents.values()]

    def at_work(self) -> list[tuple[AgentTree, AgentState]]:
        """The children that are not closed yet."""
        return [(t, a) for t, a in self.agents() if a.parent_id and is_active(a)]

    def find(self, name: str) -> tuple[AgentTree, AgentState]:
        """An agent by its id, its path or the last part of that; those at work come first."""
        found = [(t, a) for t, a in self.agents() if name in names_of(a)]
        found.sort(key=lambda pair: pair[1].state is State.CLOSED)
        if not found:
            known = ", ".join(a.id for _, a in self.at_work()[:10]) or "none"
            raise UsageError(f"No agent {name!r} in this conversation; at work: {known}.")
        return found[0]

    def failures(self) -> list[tuple[str, str]]:
        """(run, agent) of those that failed: the latest run first, causes before effects."""
        return [
            (tree.run.id, agent)
            for tree in reversed(self.forest.trees.values())
            for agent in tree.failures
        ]

    async def record(self, run_id: str, agent_id: str) -> tuple[Contract, list[Event]]:
        """The contract of an agent, and all that it did so far."""
        async with open_journal(self.directory) as store:
            rows = await store.agents(run_id)
            events = await store.agent_events(run_id, agent_id)
        (contract,) = [row.context_json for row in rows if row.id == agent_id]
        return decode_contract(contract), list(events)

    def saying(self, run_id: str, agent_id: str) -> str:
        """What an agent's model is saying, as far as it has come."""
        return "".join(self._words.get((run_id, agent_id), ()))

    # What the user does

    def send(self, message: Message) -> None:
        """Say something to the one who leads: now, or before its next turn if it is at work."""
        if self.engine.opening:
            self._held.append(message)
            return
        runtime = self.runtime
        if self.leading is None:
            self._take_the_lead(self._answer(message))
        else:
            # It is read before the next turn, or told to the next run if this one is over first.
            self.queued.append(message.text)
            if self.leading and self._root_at_work(self.leading):
                runtime.tell(ROOT, message.text, run_id=self.leading)

    def compact(self) -> None:
        """Have the conversation summed up; it goes on from that."""
        self.engine.check_idle()
        if self.session is None:
            raise UsageError("There is nothing to sum up yet.")
        self._take_the_lead(self._led(partial(self.runtime.compact, self.session)))

    def spawn(self, role: str, task: str) -> None:
        """Give a task to an agent beside the conversation."""
        self.engine.begin(self._spawn(self.runtime, role, task))

    def plan(self, goal: str) -> None:
        """Have a plan written for `goal`, and carry it out if the user agrees."""
        runtime = self.runtime
        self.conversation.add_user_text(f"/plan {goal}")
        self._begin_command(self._plan(runtime, goal))

    def interrupt(self) -> bool:
        """Stop what was begun last, as soon as may be. Is there anything?

        The run can be gone on with; agents beside it are stopped for good.
        """
        if self._lead is None:
            return self.stop()
        if self.leading and self._root_at_work(self.leading):
            self.runtime.suspend(INTERRUPTED, run_id=self.leading)
        else:
            self.conversation.add_notice(f"■ {INTERRUPTED}", Tone.STOPPED)
        self._lead.cancel()
        return True

    @property
    def interrupted(self) -> RunState | None:
        """The latest run, if it was left before its end."""
        run = next(
            (tree.run for tree in reversed(self.forest.trees.values()) if tree.is_model_led), None
        )
        over = run is None or run.status is not None or self.leading is not None
        return None if over else run

    def go_on(self) -> None:
        """Go on with the run that was left before its end."""
        run = self.interrupted
        assert run is not None, "there is one"
        policy = self.runtime.policy
        if (run.model, run.mode) != (policy.model, policy.mode):
            raise UsageError(
                f"It was begun with {run.model}, in {run.mode} mode; choose these again by /model"
                " and /mode, or say what to do instead."
            )
        self._take_the_lead(self._led(partial(self.runtime.resume, run.id)))

    def stop(self) -> bool:
        """Stop what was begun last for good: the run, else the agents beside it."""
        if self.leading and self._root_at_work(self.leading):
            self.runtime.cancel(ROOT, run_id=self.leading)
            return True
        at_work, commands = self.at_work(), list(self._commands)
        for tree, agent in at_work:
            if agent.depth == 1:
                self.runtime.cancel(agent.id, run_id=tree.run.id)
        for command in commands:
            command.cancel()
        return bool(at_work or commands)

    def cancel(self, name: str) -> AgentState:
        tree, agent = self.find(name)
        if agent.state is State.CLOSED:
            raise UsageError(f"{agent.id} ({agent.path}) is over already.")
        self.runtime.cancel(agent.id, run_id=tree.run.id)
        return agent

    async def changes(self, name: str) -> list[ChangePatch]:
        """What an agent has done to the files; without a name, the last run that did something."""
        if name:
            tree, agent = self.find(name)
            return await self.runtime.diff(tree.run.id, agent.id)
        for tree in reversed(self.forest.trees.values()):
            if found := await self.runtime.diff(tree.run.id):
                return found
        return []

    async def undo(self, name: str) -> UndoResult:
        """Take back what an agent has done to the files; without a name, the last run that did
        something that is not taken back yet."""
        if name:
            tree, agent = self.find(name)
            return await self.runtime.undo(tree.run.id, agent.id)
        run_id = await self._first_with("made", reversed(self.forest.trees))
        if run_id is None:
            raise UsageError("There is nothing to undo in this conversation.")
        return await self.runtime.undo(run_id)

    async def redo(self, name: str) -> UndoResult:
        """Make again what was taken back; of an agent that failed, bring in what was kept."""
        if name:
            tree, agent = self.find(name)
            return await self.runtime.redo(tree.run.id, agent.id)
        # The earliest: what came after it was made on top of it.
        run_id = await self._first_with("undone", self.forest.trees)
        if run_id is None:
            raise UsageError("There is nothing to redo in this conversation.")
        return await self.runtime.redo(run_id)

    def begin_anew(self) -> None:
        """Leave the conversation and begin another."""
        self.session = None
        self.forest.trees.clear()
        self.conversation = Conversation(self.forest)
        self.queued, self._news = [], []

    async def resume(self, name: str | None) -> None:
        """Go on with an earlier conversation: that of a run, or the latest."""
        async with open_journal(self.directory) as store:
            rows = await store.session(name)
            journals = [await read_all(store, row.id) for row in rows]
        self.begin_anew()
        for journal in journals:
            for event in journal:
                self.forest.apply(event)
                self.conversation.apply(event)
        self.session = rows[0].id

    def names(self) -> set[str]:
        """What can stand behind an @ at the beginning: roles, and agents at work."""
        names = set(self.runtime.roles) if self.engine.ready else set()
        return names.union(*(names_of(agent) for _, agent in self.at_work()))

    def is_file(self, path: str) -> bool:
        return not path.startswith(("/", "~")) and (self.directory / path).is_file()

    def address(self, name: str, words: str) -> None:
        if name in self.runtime.roles:
            self.spawn(name, words)
            return
        tree, agent = self.find(name)
        self.runtime.tell(agent.id, words, run_id=tree.run.id)
        self.conversation.add_notice(f"» {agent.path.rpartition('/')[2]}: {one_line(words)}")

    def run_shell(self, command: str) -> None:
        if not command:
            raise UsageError("Write the command behind the mark: !make test")
        sandbox = self.runtime.sandbox
        if sandbox is None:
            raise UsageError(NO_SHELL)
        self._begin_command(self._shell(sandbox, command))

    # Inside

    def _begin_command(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work that `stop` ends."""
        task = self.engine.begin(work)
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)

    async def _first_with(self, state: str, runs: Iterable[str]) -> str | None:
        """The first run with a change of that state."""
        for run_id in runs:
            if any(change.state == state for change in await self.runtime.diff(run_id)):
                return run_id
        return None

    async def _go_on(self) -> None:
        """What comes before all else: the conversation that is gone on with."""
        if self._resumed is not None:
            await self.resume(None if self._resumed == LAST else self._resumed)

    def _opened(self, runtime: Runtime) -> None:
        if not self.conversation.entries:
            policy = runtime.policy
            self.conversation.add_notice(
                f"{policy.model}, mode {policy.mode}: {MODES[policy.mode]}.\n"
                "Say what you want done. /help lists commands and keys."
            )
        for note in runtime.policy.notes:
            if note not in self._told:
                self._told.add(note)
                self.conversation.add_notice(note)
        self.waiting = ""
        held, self._held = self._held, []
        for message in held:
            self.send(message)

    def _closing(self, runtime: Runtime) -> None:
        """Say how it is with what is about to be cancelled: the run can be gone on with."""
        runtime.set_cancel_reason(CLOSED)
        if self.leading and self._root_at_work(self.leading):
            runtime.suspend(CLOSED, run_id=self.leading)

    def _root_at_work(self, run_id: str) -> bool:
        root = self.forest.trees[run_id].run.root
        return root is not None and is_active(root)

    def _take_the_lead(self, work: Coroutine[Any, Any, None]) -> None:
        self.leading = ""
        self._lead = self.engine.begin(work)
        self._lead.add_done_callback(self._let_go)

    def _let_go(self, task: asyncio.Task[None]) -> None:
        if task is self._lead:  # It was cancelled before its first step.
            self._led_off()

    def _led_off(self) -> None:
        # What is said next goes on from here, however it ended.
        self.session = self.session or self.leading or None
        self.leading = self._lead = None

    async def _answer(self, message: Message) -> None:
        context, self._news = "\n\n".join(self._news), []
        await self._led(
            partial(
                self.runtime.run,
                message.text,
                session=self.session,
                context=context,
                context_files=message.files,
            )
        )

    async def _led(self, work: Callable[[], Coroutine[Any, Any, RunResult]]) -> None:
        try:
            result = await work()
        finally:
            self._led_off()
            unread, self.queued = self.queued, []
        self.session = result.session
        self._ended(result, unread)

    def _ended(self, result: RunResult, unread: Sequence[str]) -> None:
        if self._is_long(result.total.duration_s):
            word = "Done" if result.ok else str(result.status).replace("_", " ").capitalize()
            self.on_attention(f"{word}: {clip(one_line(result.task), 60)}")
        # What it has not read, it never will.
        if unread and result.status is not Status.CANCELLED:
            self.send(Message("\n".join(unread)))

    async def _spawn(self, runtime: Runtime, role: str, task: str) -> None:
        job: Job = await runtime.start(role, task)
        result = await job.result()
        self._news.append(outcome_text(result, cap_tokens=REPORT_TOKENS))
        if self._is_long(result.usage.duration_s):
            self.on_attention(f"{role} is done: {clip(one_line(task), 60)}")

    async def _plan(self, runtime: Runtime, goal: str) -> None:
        if note := read_only_note(runtime.policy.mode):
            self.conversation.add_notice(note)
        try:
            plan = await runtime.plan(goal)
            accepted = await review_plan(runtime, plan, decide=self._decide, edit=self._edit)
            if accepted is None:
                self.conversation.add_notice(
                    f"Nothing was run. What the planner wrote is in {LATEST}."
                )
                return
            result = await runtime.execute(accepted)
        except asyncio.CancelledError:
            self.conversation.add_notice(f"■ {PLAN_STOPPED}", Tone.STOPPED)
            raise
        self.conversation.add_markdown(result.report)
        self._news.append(cap(result.report, REPORT_TOKENS)[0])
        if self._is_long(result.total.duration_s):
            self.on_attention(f"The plan is {result.status}: {clip(one_line(goal), 60)}")

    async def _decide(self, shown: str | Sequence[str], choices: Sequence[str]) -> str:
        if isinstance(shown, str):
            self.conversation.add_notice(shown, Tone.FAILED)
        else:
            lines = "\n".join(shown).strip("\n").split("\n")
            self.conversation.add_notice(
                lambda width: [(Span(clip(line, width)),) for line in lines]
            )
        return await self.questions.decide("What about the plan above?", choices)

    async def _edit(self, text: str) -> str | None:
        if self.on_edit is None:
            raise UsageError("There is no terminal to open an editor on.")
        return await self.on_edit(text)

    def _is_long(self, seconds: float) -> bool:
        return 0 < self.notify_after_s <= seconds

    async def _shell(self, sandbox: Sandbox, command: str) -> None:
        notice = self.conversation.add_notice(f"$ {command}\n…")
        try:
            done = await sandbox.run(
                command,
                # The user's own words reach as far as those of an agent ever could.
                access=Access(root=str(self.directory), write_scope=ANYWHERE, network=Network.ALL),
                timeout_s=SHELL_TIMEOUT_S,
                max_output_bytes=SHELL_BYTES,
            )
        except asyncio.CancelledError:
            notice.replace(f"$ {command}\n(stopped)", Tone.STOPPED)
            raise
        how = f"killed after {SHELL_TIMEOUT_S:g} s" if done.timed_out else f"exit {done.exit_code}"
        output = done.output.rstrip()
        notice.replace(
            f"$ {command}\n{output}\n({how})" if output else f"$ {command}\n({how})",
            Tone.PLAIN if done.exit_code == 0 else Tone.FAILED,
        )
        self._news.append(f"The user ran `{command}` ({how}):\n{output}")

    def _heard_lead(self, text: str) -> None:
        self.conversation.stream_reply(text)
        self._heard_words(self.leading or "", ROOT, text)

    def _heard_words(self, run_id: str, agent_id: str, text: str) -> None:
        self._words.setdefault((run_id, agent_id), []).append(text)

    def _heard(self, event: Event) -> None:
        if event.type in REPLY_ENDS:
            self._words.pop((event.run_id, event.agent_id), None)
        tree = self.forest.apply(event)
        self.conversation.apply(event)
        if event.type in ("run.started", "run.resumed") and tree.is_model_led:
            self.leading = event.run_id
        elif event.type == "agent.told" and self.queued:
            fact = event.fact
            if (
                isinstance(fact, MessageReceived)
                and fact.source == "user"
                and fact.content in self.queued
            ):
                self.queued.remove(fact.content)

    def problem(self, error: RetinueError) -> None:
        self.conversation.add_notice(str(error), Tone.FAILED)

    def _asked(self) -> None:
        if self.questions.open:
            question = self.questions.open[-1]
            what = f"wants {question.wish.tool}" if question.wish else "asks something"
            self.on_attention(f"{question.path or 'retinue'} {what}")

    def _allowed(self, rule: Rule) -> None:
        self.conversation.add_notice(permanent_rule_hint(rule))

    def _waits(self, what: str) -> None:
        self.waiting = what


def names_of(agent: AgentState) -> tuple[str, ...]:
    return agent.id, agent.path, agent.path.rpartition("/")[2]
