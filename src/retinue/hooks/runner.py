"""Runs the hooks of an event: commands as processes, Python functions in this process."""

from __future__ import annotations

import asyncio
import inspect
import shlex
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from retinue.domain.events import HookFinished
from retinue.domain.grant import Access, Network
from retinue.domain.hook import HookAnswer, HookEvent, HookSpec, matches_name
from retinue.domain.scope import NOWHERE
from retinue.errors import ToolFailure, WorkspaceError
from retinue.hooks.answers import Reading, failed, read_answer, read_result
from retinue.hooks.transcript_file import transcript_file
from retinue.ports.hooks import HookCall, HookFunction
from retinue.ports.sandbox import ProcessSandbox
from retinue.processes.child import ProcessSpec, run_process

MAX_OUTPUT_BYTES = 1024 * 1024
CHANGED = "its files have changed since you trusted it; `retinue trust` allows it again"
FindSandbox = Callable[[], Awaitable[ProcessSandbox | None]]


class _Function(msgspec.Struct, frozen=True):
    event: HookEvent
    matcher: str
    function: HookFunction


class HookRunner:
    """The hooks of one runtime. Commands of settings come first, then functions, each in order."""

    def __init__(
        self,
        specs: Sequence[HookSpec] = (),
        *,
        project: str = ".",
        variables: Mapping[str, str] | None = None,
        confined_variables: Mapping[str, str] | None = None,
        find_sandbox: FindSandbox | None = None,
        is_changed: Callable[[HookSpec], bool] = lambda _: False,
    ) -> None:
        """`is_changed` says whether the files of a project's hook differ from the trusted ones."""
        self._specs = tuple(specs)
        self._functions: list[_Function] = []
        self._project = project
        self._variables = variables or {}
        self._confined_variables = confined_variables or {}
        self._find_sandbox = find_sandbox
        self._is_changed = is_changed
        self._sessions: dict[str, HookCall] = {}
        self.events: Collection[HookEvent] = {spec.event for spec in self._specs}

    def add_function(self, event: HookEvent, matcher: str, function: HookFunction) -> None:
        self._functions.append(_Function(event, matcher, function))
        self.events = {*self.events, event}

    def begin_session(self, end: HookCall) -> bool:
        is_new = end.session not in self._sessions
        self._sessions[end.session] = end
        return is_new

    async def end_sessions(self) -> None:
        """Run the hooks for the end of each session of this process."""
        while self._sessions:
            _, call = self._sessions.popitem()
            await self.run(call)

    async def run(self, call: HookCall) -> HookAnswer:
        answer, given = HookAnswer(), dict(call.input)
        hooks: tuple[HookSpec | _Function, ...] = (*self._specs, *self._functions)
        for hook in hooks:
            # An event without names takes no matcher: it is ignored, as in Claude Code.
            if hook.event is not call.event or (
                call.names and not matches_name(hook.matcher, call.names)
            ):
                continue
            if answer.updated_input is not None:
                # The next hook gets the input that would run now.
                given["tool_input"] = answer.updated_input
            name = hook.command if isinstance(hook, HookSpec) else _name(hook.function)
            tool = call.names[0] if call.names and "tool_name" in given else ""
            label = f"{call.event}{f':{tool}' if tool else ''} hook error: [{name}]"
            if isinstance(hook, HookSpec):
                reading = await self._run_command(hook, call, given, label)
            else:
                reading = await _run_function(hook, given, label)
            call.record(
                HookFinished(
                    event=call.event,
                    hook=name,
                    outcome=reading.outcome,
                    detail=reading.detail,
                    call_id=given.get("tool_use_id", ""),
                )
            )
            answer = _joined(answer, reading.answer)
            if answer.blocked or answer.stop:
                break
        return answer

    async def _run_command(
        self, hook: HookSpec, call: HookCall, given: Mapping[str, Any], label: str
    ) -> Reading:
        if hook.of_project and await asyncio.to_thread(self._is_changed, hook):
            # An agent must not disable a hook by rewriting its files.
            refused = HookAnswer(blocked=f"{label}: {CHANGED}")
            answer = refused if call.event is HookEvent.PRE_TOOL_USE else HookAnswer()
            return msgspec.structs.replace(failed(CHANGED), answer=answer)
        variables = {
            "CLAUDECODE": "1",
            "CLAUDE_CODE_ENTRYPOINT": "cli",
            "CLAUDE_CODE_SESSION_ID": call.session,
            "CLAUDE_PROJECT_DIR": self._project,
            **({"CLAUDE_EFFORT": call.effort} if call.effort else {}),
        }
        try:
            with tempfile.TemporaryFile() as stdin:
                stdin.write(msgspec.json.encode(given))
                stdin.seek(0)
                readable = None if hook.of_project else call  # The sandbox hides the file.
                async with (
                    transcript_file(readable),
                    self._process(hook, call, variables) as spec,
                ):
                    done = await run_process(
                        msgspec.structs.replace(spec, stdin=stdin.fileno()),
                        timeout_s=hook.timeout_s,
                        max_output_bytes=MAX_OUTPUT_BYTES,
                        errors_apart=True,
                    )
        except (OSError, ValueError, WorkspaceError, ToolFailure) as error:
            return failed(f"cannot be started: {error}")
        return read_result(call.event, label, done, hook.timeout_s)

    @asynccontextmanager
    async def _process(
        self, hook: HookSpec, call: HookCall, variables: Mapping[str, str]
    ) -> AsyncIterator[ProcessSpec]:
        if not hook.of_project:
            yield ProcessSpec(
                argv=("/bin/sh", "-c", hook.command),
                environment={**self._variables, **variables},
                # Not the copy of a child: a hook that writes a log would change the child's work.
                directory=self._project,
            )
            return
        sandbox = None if self._find_sandbox is None else await self._find_sandbox()
        if sandbox is None:
            raise WorkspaceError("there is no sandbox here, and a project's hooks run in it")
        access = Access(root=self._project, write_scope=NOWHERE)
        if call.access is not None and call.access.root == self._project:
            access = msgspec.structs.replace(call.access, network=Network.NONE)
        async with sandbox.process(
            f"/bin/sh -c {shlex.quote(hook.command)}",
            access=access,
            environment={**self._confined_variables, **variables},
        ) as spec:
            yield spec


async def _run_function(hook: _Function, given: dict[str, Any], label: str) -> Reading:
    try:
        returned = hook.function(given)
        if inspect.isawaitable(returned):
            returned = await returned
    except Exception as error:
        return failed(f"raised {type(error).__name__}: {error}")
    return read_answer(hook.event, label, returned)


def _name(function: HookFunction) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _joined(before: HookAnswer, after: HookAnswer) -> HookAnswer:
    return HookAnswer(
        blocked=before.blocked or after.blocked,
        asks=before.asks or after.asks,
        updated_input=before.updated_input if after.updated_input is None else after.updated_input,
        context=(*before.context, *after.context),
        stop=before.stop or after.stop,
    )
