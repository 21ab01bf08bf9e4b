"""Commands of the page and of API clients, which run the same code as the command line.

The process that works on a run executes its commands. The server sends them through the run's lock
file and reads in the journal that they were executed. So the page controls runs of other processes
like its own.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from aiohttp import web

from retinue.app import cancel_suspended
from retinue.domain.agent_state import ROOT_ID
from retinue.domain.events import Event
from retinue.domain.grant import Mode
from retinue.domain.plural import plural
from retinue.domain.remote_commands import READS_NO_MORE, Command, Verb, encode_command
from retinue.domain.result import FileChange
from retinue.errors import RunError, UsageError
from retinue.interfaces.view.run_status import abandoned_message
from retinue.interfaces.web.hosted_runs import ORIGIN, HostedRuns, PersonAtPage
from retinue.interfaces.web.run_reader import RunReader
from retinue.interfaces.web.server import Route, answer
from retinue.ports.store import RunRow
from retinue.project import open_run_undo
from retinue.runtime.history.audit import read_all
from retinue.runtime.history.recovery import check_sealed, recorded_options
from retinue.runtime.runtime import Runtime

T = TypeVar("T")
ACCEPT_TIMEOUT_S = 5.0
POLL_S = 0.05
ANSWERED = frozenset(
    f"agent.subagent_{state}" for state in ("waiting_for_merge", "completed", "failed", "closed")
)
"""Events of an agent after which it reads no messages."""


class StartRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    task: str
    model: str | None = None
    mode: Mode | None = None


class ForkRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Without `at`, the number of an event, the last moment that can be forked."""

    agent: str = ROOT_ID
    at: int | None = None
    tell: str = ""


class ToAgent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agent: str = ROOT_ID


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    agent: str = ROOT_ID


class AnswerQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answer to an approval ("yes", "always" or "no", with a reason in `text`), or in words."""

    agent: str
    request: int = 0
    answer: str = ""
    text: str = ""


class ChangeFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    agent: str | None = None


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Done(msgspec.Struct, frozen=True):
    """What was done, in one sentence."""

    run: str
    done: str
    files: tuple[FileChange, ...] = ()


class Commands:
    """The routes that change something. A server that is read-only does not have them."""

    def __init__(self, reader: RunReader, hosted: HostedRuns) -> None:
        self._reader = reader
        self._hosted = hosted

    def routes(self) -> list[Route]:
        run = "/api/runs/{run}"
        return [
            Route("POST", "/api/runs", self.start, "Start a run", Done, StartRun),
            Route("POST", f"{run}/resume", self.resume, "Resume a run", Done, Nothing),
            Route("POST", f"{run}/fork", self.fork, "Fork a run at an event", Done, ForkRun),
            Route("POST", f"{run}/stop", self.stop, "Suspend a run", Done, Nothing),
            Route("POST", f"{run}/cancel", self.cancel, "Cancel a run or an agent", Done, ToAgent),
            Route("POST", f"{run}/message", self.message, "Message an agent", Done, Message),
            Route(
                "POST", f"{run}/answer", self.answer, "Answer an agent's question", Done,
                AnswerQuestion,
            ),
            Route("POST", f"{run}/undo", self.undo, "Undo changes of files", Done, ChangeFiles),
            Route("POST", f"{run}/redo", self.redo, "Redo changes of files", Done, ChangeFiles),
        ]  # fmt: skip

    async def start(self, request: web.Request) -> web.Response:
        body = await _body(request, StartRun)
        if not body.task.strip():
            raise UsageError("The task is empty.")

        async def work(runtime: Runtime) -> object:
            return await runtime.run(body.task)

        options = {"model": body.model, "mode": body.mode}
        run_id = await self._hosted.start(options, work)
        return answer(Done(run_id, f"Run {run_id} has started."))

    async def resume(self, request: web.Request) -> web.Response:
        await _body(request, Nothing)
        async with self._reader.open() as store:
            row = await store.run(request.match_info["run"])
            options = await recorded_options(store, _check_open(row))
        if self._reader.is_live(row.id):
            raise RunError(f"Another process works on run {row.id}.")

        async def work(runtime: Runtime) -> object:
            return await runtime.resume(row.id)

        await self._hosted.start(options, work)
        return answer(Done(row.id, f"Run {row.id} continues."))

    async def fork(self, request: web.Request) -> web.Response:
        body = await _body(request, ForkRun)
        async with self._reader.open() as store:
            row = await store.run(request.match_info["run"])
            options = await recorded_options(store, row, body.agent)

        async def work(runtime: Runtime) -> object:
            return await runtime.fork(row.id, body.agent, at=body.at, tell=body.tell)

        run_id = await self._hosted.start(options, work)
        return answer(Done(run_id, f"Run {run_id} is a fork of run {row.id}."))

    async def stop(self, request: web.Request) -> web.Response:
        await _body(request, Nothing)
        run_id = await self._send(request, Command(verb=Verb.STOP, agent_id=ROOT_ID, by=ORIGIN))
        return answer(Done(run_id, f"Run {run_id} stops, and can be resumed."))

    async def cancel(self, request: web.Request) -> web.Response:
        agent, run_id = (await _body(request, ToAgent)).agent, await self._open_run_id(request)
        if self._reader.is_live(run_id):
            await self._send(request, Command(verb=Verb.CANCEL, agent_id=agent, by=ORIGIN))
        else:
            await cancel_suspended(
                self._reader.directory,
                run_id,
                agent,
                person=PersonAtPage(),
                environment=self._reader.environment,
            )
        return answer(Done(run_id, f"{run_id if agent == ROOT_ID else agent} is cancelled."))

    async def message(self, request: web.Request) -> web.Response:
        body = await _body(request, Message)
        if not body.text.strip():
            raise UsageError("The message is empty.")
        run_id = await self._send(
            request, Command(verb=Verb.MESSAGE, agent_id=body.agent, by=ORIGIN, text=body.text)
        )
        return answer(Done(run_id, f"{body.agent} reads it before its next turn."))

    async def answer(self, request: web.Request) -> web.Response:
        body = await _body(request, AnswerQuestion)
        if body.request and body.answer not in ("yes", "always", "no"):
            raise UsageError(f"The answer must be yes, always or no, not {body.answer!r}.")
        run_id = await self._send(
            request,
            Command(
                verb=Verb.ANSWER,
                agent_id=body.agent,
                by=ORIGIN,
                text=body.text,
                request=body.request,
                answer=body.answer,
            ),
        )
        return answer(Done(run_id, f"{body.agent} has your answer."))

    async def undo(self, request: web.Request) -> web.Response:
        return await self._rewrite(request, undo=True)

    async def redo(self, request: web.Request) -> web.Response:
        return await self._rewrite(request, undo=False)

    async def _rewrite(self, request: web.Request, *, undo: bool) -> web.Response:
        agent, run_id = (await _body(request, ChangeFiles)).agent, await self._run_id(request)
        runtime = self._hosted.runtime(run_id)
        if runtime is not None:
            result = await (runtime.undo if undo else runtime.redo)(run_id, agent)
        else:
            async with open_run_undo(
                self._reader.directory,
                run_id,
                agent=agent,
                environment=self._reader.environment,
                by=ORIGIN,
            ) as changes:
                result = await (changes.undo if undo else changes.redo)(agent)
        done = "undone" if undo else "redone"
        result.check(done)
        text = f"{plural(len(result.files), 'file')} {done}."
        return answer(Done(run_id, text, result.files))

    async def _run_id(self, request: web.Request) -> str:
        return (await self._reader.run(request.match_info["run"])).id

    async def _open_run_id(self, request: web.Request) -> str:
        async with self._reader.open() as store:
            return _check_open(await store.run(request.match_info["run"])).id

    async def _send(self, request: web.Request, command: Command) -> str:
        """Send a command to the process of the run, and wait until it is executed."""
        async with self._reader.open() as store:
            row = await store.run(request.match_info["run"])
            check_sealed(_check_open(row))
            for event in await store.agent_events(row.id, command.agent_id):
                _check_reads(command, event)
            if not self._reader.run_locks.send(row.id, encode_command(command)):
                raise RunError(abandoned_message(row.id))
            after, waited_s = row.head_seq, 0.0
            while waited_s < ACCEPT_TIMEOUT_S:
                for event in await read_all(store, row.id, after=after):
                    after = event.seq
                    if event.type == "command.received" and event.agent_id == command.agent_id:
                        return row.id
                    _check_reads(command, event)
                await asyncio.sleep(POLL_S)
                waited_s += POLL_S
        raise RunError(
            f"The process of run {row.id} has not accepted the command within"
            f" {ACCEPT_TIMEOUT_S:g} s: the agent may have ended, its question may be answered"
            f" already, or the process does not accept `{command.verb}`."
        )


def _check_open(row: RunRow) -> RunRow:
    """`row`, if its run has no outcome yet. Raises RunError."""
    if row.status is not None:
        raise RunError(f"Run {row.id} has already ended ({row.status}).")
    return row


def _check_reads(command: Command, event: Event) -> None:
    """Raises RunError for a message if `event` says that its agent has given its answer."""
    ended = event.agent_id == command.agent_id and event.type in ANSWERED
    if ended and command.verb is Verb.MESSAGE:
        raise RunError(READS_NO_MORE.format(agent=command.agent_id))


async def _body(request: web.Request, kind: type[T]) -> T:
    """The body of a request, as JSON. Raises UsageError."""
    if request.content_type != "application/json":
        raise UsageError("Send the command as application/json.")
    try:
        return msgspec.json.decode(await request.read() or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise UsageError(f"The command cannot be read: {error}.") from error
