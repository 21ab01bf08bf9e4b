"""One session of an editor: its runtime, its prompts, its updates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from retinue.domain.events import Event
from retinue.domain.plan.outcome import RunResult
from retinue.domain.result import Status
from retinue.errors import RetinueError, RunSuspended, UnknownRun
from retinue.interfaces.acp.outbox import Outbox, Update
from retinue.interfaces.acp.permissions import Permissions
from retinue.interfaces.acp.prompt import Prompt, read_prompt
from retinue.interfaces.acp.tool_call import patch_diffs
from retinue.interfaces.acp.updates import MODEL_LED, SessionUpdates
from retinue.interfaces.json_rpc import INTERNAL_ERROR, INVALID_REQUEST, Connection, RpcError
from retinue.interfaces.lazy_runtime import LazyRuntime
from retinue.ports.person import Listeners, Person
from retinue.ports.store import RunRow
from retinue.project import open_journal, open_run_changes
from retinue.runtime.core.task_group import TaskGroup
from retinue.runtime.history.audit import read_all
from retinue.runtime.history.recovery import check_sealed
from retinue.runtime.runtime import Runtime

INTERRUPTED = "interrupted by the user"
STOP_REASONS = {
    Status.COMPLETED: "end_turn",
    Status.CANCELLED: "cancelled",
    Status.BUDGET_EXCEEDED: "max_turn_requests",
    Status.TIMEOUT: "max_turn_requests",
}

OpenRuntime = Callable[..., AbstractAsyncContextManager[Runtime]]
"""Opens a runtime in a directory, with a person, listeners, a model and a mode."""


class Command(NamedTuple):
    """A slash command that a person can type in the editor."""

    name: str
    hint: str
    """Shown in place of the argument; "" for a command without one."""
    help: str
    run: Callable[[AcpSession, Runtime, str], Awaitable[RunResult[Any] | None]]

    @property
    def description_for_editor(self) -> dict[str, Any]:
        hint = {"input": {"hint": self.hint}} if self.hint else {}
        return {"name": self.name, "description": self.help, **hint}


class AcpSession:
    """One session. Its id is the id of its first run, which starts with the first prompt."""

    def __init__(
        self,
        session_id: str,
        root: Path,
        connection: Connection,
        open_runtime: OpenRuntime,
        tasks: TaskGroup,
        *,
        options: Mapping[str, Any],
        commands: Mapping[str, Command],
        reads_buffers: bool,
        shows_subagents: bool,
        shows_terminals: bool,
    ) -> None:
        self.id = session_id
        self.root = root
        self.options = dict(options)
        """Model, mode and the editor's MCP servers. A change holds from the next prompt on."""
        self._commands = commands
        self._connection = connection
        self._open_runtime = open_runtime
        self._reads_buffers = reads_buffers
        self._shows_subagents = shows_subagents
        self._shows_terminals = shows_terminals
        self._has_runs = False
        self._prompt: asyncio.Task[Any] | None = None
        self._cancelled = False
        self.run_id: str | None = None
        """The run that answers the prompt."""
        self._runtime = LazyRuntime(self._new_runtime, tasks)
        self._runtime_options: dict[str, Any] = {}
        self._outbox = Outbox(self.send, lambda: connection.is_congested)
        self.updates = self._new_updates(self._outbox, live=True)
        self._changed: list[tuple[str, str]] = []
        self._permissions = Permissions(
            root, self.request, self.updates.call_of, on_answered=self.update_call
        )
        self._sending = tasks.create_task(self._outbox.keep_sending())

    def _new_updates(self, outbox: Outbox, *, live: bool) -> SessionUpdates:
        def changed(run_id: str, agent_id: str) -> None:
            self._changed.append((run_id, agent_id))

        announce = self._announce if self._shows_subagents and live else None
        return SessionUpdates(
            self.root,
            outbox,
            live=live,
            on_changed=changed,
            announce=announce,
            terminals=self._shows_terminals,
        )

    # Messages to the editor

    def send(self, update: Update) -> None:
        self._connection.notify("session/update", {"sessionId": self.id, "update": update})

    async def request(self, method: str, params: dict[str, Any]) -> Any:
        """Ask the editor. Raises RpcError."""
        self._outbox.flush()  # The editor knows the tool call that the question is about.
        return await self._connection.request(method, {"sessionId": self.id, **params})

    def _announce(self, parent: str, update: Update) -> None:
        # Not after a flush: 200 children would flush the progress of all others.
        where = {"sessionId": parent or self.id, "update": update}
        self._connection.notify("session/update", where)

    def announce_commands(self) -> None:
        commands = [command.description_for_editor for command in self._commands.values()]
        self._outbox.put(
            {"sessionUpdate": "available_commands_update", "availableCommands": commands}
        )

    # Prompts

    async def prompt(self, blocks: Any) -> dict[str, Any]:
        """Answer a prompt. Raises RpcError."""
        if self._prompt is not None:
            raise RpcError(
                INVALID_REQUEST,
                "The session is still answering a prompt: wait for it, or send session/cancel.",
            )
        self._prompt = task = asyncio.current_task()
        self._cancelled = False
        assert task is not None
        try:
            return {"stopReason": await self._answer(blocks)}
        except asyncio.CancelledError:
            if not self._cancelled:
                raise
            task.uncancel()
            return {"stopReason": "cancelled"}
        except RunSuspended as error:
            hint = "Send /resume to continue."
            raise RpcError(INTERNAL_ERROR, f"{str(error).rstrip('.')}. {hint}") from None
        finally:
            self._prompt = self.run_id = None
            self._outbox.flush()

    async def _answer(self, blocks: Any) -> str:
        prompt = await read_prompt(blocks, self.root, self._read_buffer)
        runtime = await self._open()
        name, _, argument = prompt.text.partition(" ")
        command = self._commands.get(name.removeprefix("/")) if name.startswith("/") else None
        if command is not None:
            result = await command.run(self, runtime, argument.strip())
        else:
            result = await self._run(runtime, prompt)
        await self._show_changes()
        if result is None:
            return "end_turn"
        if (reason := STOP_REASONS.get(result.status)) is None:
            raise RpcError(INTERNAL_ERROR, result.error or f"The run has ended: {result.status}.")
        if reason == "max_turn_requests":
            self.say(f"\n\n{result.error}")
        return reason

    async def _run(self, runtime: Runtime, prompt: Prompt) -> RunResult[Any]:
        session, run_id = (self.id, None) if self._has_runs else (None, self.id)
        return await runtime.run(
            prompt.text, session=session, context_files=prompt.files, run_id=run_id
        )

    def cancel(self) -> None:
        """End the prompt. Its run can be resumed."""
        if self._prompt is None or self._cancelled:
            return
        self._cancelled = True
        self.suspend(INTERRUPTED)
        self._prompt.cancel()

    def suspend(self, why: str, then: Callable[[], None] | None = None) -> None:
        """Suspend what runs. `then` is called when every agent is between two turns."""
        self._runtime.suspend(why, then)

    def update_call(self, name: str, status: str, **fields: Any) -> None:
        """Show the state of a tool call that no agent makes. A `title` starts a new one."""
        kind = "tool_call" if "title" in fields else "tool_call_update"
        update = {"sessionUpdate": kind, "toolCallId": name, "status": status}
        self._outbox.put(update | fields)

    def say(self, text: str) -> None:
        """Show a text that no model wrote."""
        content = {"type": "text", "text": text}
        self._outbox.put({"sessionUpdate": "agent_message_chunk", "content": content})

    def cancel_child(self, name: str) -> None:
        run_id, _, agent_id = name.partition("/")
        if (runtime := self._runtime.runtime) is not None:
            with suppress(RetinueError):  # The child has already ended.
                runtime.cancel(agent_id, run_id=run_id)

    async def _read_buffer(self, path: str) -> str | None:
        if not self._reads_buffers:
            return None
        try:
            answer = await self.request("fs/read_text_file", {"path": path})
        except RpcError:
            return None
        content = answer.get("content") if isinstance(answer, dict) else None
        return content if isinstance(content, str) else None

    async def _show_changes(self) -> None:
        """Send the diffs of children that have changed files."""
        changed, self._changed = self._changed, []
        for run_id, agent_id in changed:
            run = self.updates.runs[run_id]
            with suppress(RetinueError):
                async with open_run_changes(self.root, run_id) as changes:
                    patches = await changes.diff(agent_id)
                diffs = [diff for patch in patches for diff in patch_diffs(patch.patch, self.root)]
                update = self.updates.child_update(run, run.agents[agent_id])
                locations = [{"path": path} for path in dict.fromkeys(d["path"] for d in diffs)]
                update["content"] += diffs
                self._outbox.put(update | {"locations": locations})

    # The runtime

    async def _open(self) -> Runtime:
        """The runtime, with the model and mode that are chosen. Raises RetinueError."""
        if self._runtime_options != self.options:
            await self._runtime.close()
            self._runtime_options = dict(self.options)
        return await self._runtime.get()

    def _new_runtime(self) -> AbstractAsyncContextManager[Runtime]:
        listeners = Listeners(
            on_event=self._on_event,
            on_text=self.updates.stream,
            on_child_text=self.updates.stream_child,
        )
        return self._open_runtime(
            directory=self.root,
            person=Person(
                approve=self._permissions.approve,
                read_buffer=self._read_buffer if self._reads_buffers else None,
            ),
            listeners=listeners,
            **self._runtime_options,
        )

    async def close(self) -> None:
        """End the prompt, and close the runtime. The journal keeps the session."""
        self.cancel()
        if self._prompt is not None:
            await asyncio.wait([self._prompt])
        await self._runtime.close()
        self._outbox.flush()
        self._sending.cancel()

    def _on_event(self, event: Event) -> None:
        self.updates.apply(event)
        run = self.updates.runs[event.run_id]
        if event.type in ("run.started", "run.resumed") and run.kind == MODEL_LED:
            self.run_id, self._has_runs = event.run_id, True

    # History

    async def load(self, *, replay: bool) -> None:
        """Continue the session with this id from the journal. Raises RetinueError."""
        async with open_journal(self.root) as store:
            rows = await store.session(self.id)
            if rows[0].id != self.id:
                raise UnknownRun(f"There is no session {self.id!r}; its first run is {rows[0].id}.")
            for row in rows:
                check_sealed(row)
            journals = [await read_all(store, row.id) for row in rows] if replay else []
        self._has_runs = True
        past = self._new_updates(self._outbox, live=False)
        for journal in journals:
            for event in journal:
                past.apply(event)
        self.updates.runs.update(past.runs)
        await self._show_changes()
        self._outbox.flush()

    async def runs(self) -> list[str]:
        """Ids of the session's runs, oldest first. Plans count only if this process ran them."""
        rows: Sequence[RunRow] = ()
        if self._has_runs:
            async with open_journal(self.root) as store:
                rows = await store.session(self.id)
        return list(dict.fromkeys([*(row.id for row in rows), *self.updates.runs]))
