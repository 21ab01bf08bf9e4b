"""Tool calls in progress. A call can outlive the request that started it, and ask questions.

Clients with a handshake wait for the result and answer questions on the same connection. Stateless
clients get a question as the result of their request, and send the request again with the answer.
Stateless clients that declare the tasks extension get a task, which they poll.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from retinue.interfaces.json_rpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError
from retinue.interfaces.mcp_server.task_files import KEPT_S, TaskFiles
from retinue.runtime.core.task_group import TaskGroup

POLL_MS = 1_000
ABANDONED_S = 3600.0
"""A call is cancelled if its client does not answer a question for this long."""
INTERRUPTED = (
    "The server ended while the task was running. Its run is suspended; continue it with: retinue"
    " resume {run}"
)
ENDED = ("completed", "failed", "cancelled")

Elicit = Callable[[dict[str, Any]], Awaitable[Any]]
"""Asks the user of the client: parameters of `elicitation/create` -> its result."""
OnProgress = Callable[[str], None]
Work = Callable[["RunningCall"], Awaitable[dict[str, Any]]]

current_call: ContextVar[RunningCall | None] = ContextVar("current MCP call", default=None)
"""The call that the current task works for."""


class RunningCall:
    """One call: its state, its open questions, and its result."""

    def __init__(self, elicit: Elicit | None = None, *, keeps_questions: bool = False) -> None:
        """A call that `keeps_questions` waits for `answer`, instead of using `elicit`."""
        self.id = secrets.token_urlsafe(32)
        self._elicit = elicit
        self._keeps_questions = keeps_questions
        self.on_progress: OnProgress | None = None
        self.is_task = False
        self.run_id = ""
        self.status = "working"
        self.message = ""
        self.result: dict[str, Any] = {}
        self.error: RpcError | None = None
        self.questions: dict[str, dict[str, Any]] = {}
        """Open questions by key. No key is used twice."""
        self.created_at = self._updated_at = _now()
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._asked = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    def start(self, work: Work, tasks: TaskGroup, on_end: Callable[[RunningCall], None]) -> None:
        def end(_: object) -> None:
            self.questions.clear()
            self._change("cancelled")
            on_end(self)

        self._task = tasks.create_task(self._run(work))
        self._task.add_done_callback(end)

    async def _run(self, work: Work) -> None:
        token = current_call.set(self)
        try:
            self.result = await work(self)
        except RpcError as error:
            self._fail(error)
        except Exception as error:  # A bug in one call must not end the others.
            traceback.print_exc(file=sys.stderr)
            self._fail(RpcError(INTERNAL_ERROR, f"retinue failed: {error!r}"))
        else:
            self._change("completed")
        finally:
            current_call.reset(token)

    def _fail(self, error: RpcError) -> None:
        if not self.ended:
            self.message, self.error = str(error), error
            self._change("failed")

    def _change(self, status: str) -> None:
        if not self.ended:
            self.status, self._updated_at = status, _now()
        self._changed.set()
        self._changed = asyncio.Event()

    async def settled(self) -> None:
        """Wait until the call has ended, or asks a question."""
        while not self.ended and not self.questions:
            await self._changed.wait()

    async def stopped(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    def cancel(self) -> None:
        """Stop the call. It counts as cancelled at once; its agents may take a moment."""
        self._change("cancelled")
        if self._task is not None:
            self._task.cancel()

    def interrupt(self) -> None:
        """Stop the call because the server ends. Its run is suspended."""
        if not self.ended and self._task is not None:
            self._fail(RpcError(INTERNAL_ERROR, INTERRUPTED.format(run=self.run_id)))
            self._task.cancel()

    def report(self, text: str) -> None:
        """Progress, in a line of text. What agents do in the background later is not reported."""
        if self.ended:
            return
        self.message, self._updated_at = text, _now()
        if self.on_progress is not None:
            self.on_progress(text)

    # Questions

    @property
    def elicit(self) -> Elicit | None:
        """Asks the user of the client; None if nobody can be asked."""
        if not self._keeps_questions:
            return self._elicit
        # An agent in the background has no request that could carry a question.
        return None if self.ended else self._keep_question

    async def _keep_question(self, question: dict[str, Any]) -> Any:
        self._asked += 1
        key = f"question-{self._asked}"
        answer = self._answers[key] = asyncio.get_running_loop().create_future()
        self.questions[key] = {"method": "elicitation/create", "params": question}
        abandoned = asyncio.get_running_loop().call_later(ABANDONED_S, self.cancel)
        self._change("input_required")
        try:
            return await answer
        finally:
            abandoned.cancel()
            self.questions.pop(key, None)
            self._change("input_required" if self.questions else "working")

    def answer(self, responses: Any) -> None:
        """Answer open questions. Unknown keys, and answers that come twice, are ignored."""
        if not isinstance(responses, Mapping):
            raise RpcError(INVALID_PARAMS, "inputResponses must be an object, by question.")
        for key, response in responses.items():
            answer = self._answers.pop(key, None)
            if answer is not None and not answer.done():
                self.questions.pop(key, None)
                answer.set_result(response)

    # States for clients

    def as_input_required(self) -> dict[str, Any]:
        """The result of a request that has to be sent again, with answers."""
        return {
            "resultType": "input_required",
            "inputRequests": dict(self.questions),
            # Another one for each round, as clients expect.
            "requestState": f"{self.id}.{self._asked}",
        }

    def is_state(self, request_state: str) -> bool:
        """Whether the call has sent this `requestState`."""
        return request_state in {f"{self.id}.{asked + 1}" for asked in range(self._asked)}

    def as_task(self) -> dict[str, Any]:
        """The state of the call, as `tasks/get` returns it."""
        status = self.status
        if not self.ended:
            status = "input_required" if self.questions else "working"
        state: dict[str, Any] = {
            "taskId": self.id,
            "status": status,
            "statusMessage": self.message or status,
            "createdAt": self.created_at,
            "lastUpdatedAt": self._updated_at,
            "ttlMs": KEPT_S * 1000,
            "pollIntervalMs": POLL_MS,
        }
        if status == "input_required":
            state["inputRequests"] = dict(self.questions)
        elif status == "completed":
            state["result"] = self.result
        elif status == "failed" and self.error is not None:
            state["error"] = {"code": self.error.code, "message": str(self.error)}
        return state


class RunningCalls:
    """The calls of all clients. Tasks are kept on disk, for clients that connect again."""

    def __init__(self, tasks: TaskGroup, directory: str) -> None:
        self._tasks = tasks
        self._files = TaskFiles(directory)
        self._calls: dict[str, RunningCall] = {}

    @property
    def busy(self) -> bool:
        return any(not call.ended for call in self._calls.values())

    def start(self, call: RunningCall, work: Work) -> None:
        """Start a call in a task of its own."""
        self._calls[call.id] = call
        call.start(work, self._tasks, on_end=self._ended)

    def start_task(self, call: RunningCall, work: Work) -> dict[str, Any]:
        """Start a call that the client polls, and return its first state. Raises RpcError."""
        call.is_task = True
        try:
            self._files.save(call.as_task())
        except OSError as error:
            raise RpcError(INTERNAL_ERROR, f"The task cannot be saved: {error}.") from None
        self.start(call, work)
        return {**call.as_task(), "resultType": "task"}

    def _ended(self, call: RunningCall) -> None:
        del self._calls[call.id]
        if call.is_task:
            with suppress(OSError):  # A client is then told that the task was interrupted.
                self._files.save(call.as_task())

    def waiting(self, request_state: Any) -> RunningCall:
        """The call that a client sends again, with answers. Raises RpcError."""
        call_id = request_state.partition(".")[0] if isinstance(request_state, str) else ""
        call = self._calls.get(call_id)
        if call is None or call.is_task or not call.is_state(request_state):
            raise RpcError(INVALID_PARAMS, "Unknown requestState: make the call again without it.")
        return call

    def task(self, task_id: Any) -> RunningCall | None:
        """A task that is running here; None if it has ended. Raises RpcError if there is none."""
        call = self._calls.get(task_id) if isinstance(task_id, str) else None
        if call is not None and call.is_task:
            return call
        self.task_state(task_id)
        return None

    def task_state(self, task_id: Any) -> dict[str, Any]:
        """The state of a task, also of one that ended before a restart. Raises RpcError."""
        if isinstance(task_id, str):
            if (call := self._calls.get(task_id)) is not None and call.is_task:
                return call.as_task()
            if (state := self._files.load(task_id)) is not None:
                return state if state["status"] in ENDED else _lost(state)
        raise RpcError(INVALID_PARAMS, f"Unknown task {task_id!r}; tasks are kept for a day.")

    async def close(self) -> None:
        """Stop all calls, and wait for their end."""
        calls = list(self._calls.values())
        for call in calls:
            call.interrupt()
        for call in calls:
            await call.stopped()


def _lost(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a task whose server was killed."""
    error = {"code": INTERNAL_ERROR, "message": INTERRUPTED.format(run="")}
    state.pop("inputRequests", None)
    return state | {"status": "failed", "statusMessage": error["message"], "error": error}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
