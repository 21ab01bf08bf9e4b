"""The Agent Client Protocol for one editor: handshake, sessions, prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.errors import RetinueError, UnknownRun, UsageError
from retinue.interfaces.json_rpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Connection,
    LineReader,
    Params,
    RequestId,
    RpcError,
)
from retinue.runtime.core.task_group import TaskGroup, run_to_completion
from retinue.version import VERSION

if TYPE_CHECKING:  # Imported with the first session: editors wait for the handshake.
    from retinue.interfaces.acp.session import AcpSession, OpenRuntime
    from retinue.interfaces.cli.terminal.interrupts import Interrupts

PROTOCOL_VERSION = 1
RESOURCE_NOT_FOUND = -32002
SESSIONS_PER_PAGE = 50
MAX_LISTED_RUNS = 2_000
DEFAULT_MODEL = "default"
NO_AUTHENTICATION = (
    "retinue has no accounts. Models and their keys are in your settings; `retinue doctor` says"
    " what is missing."
)
CAPABILITIES: dict[str, Any] = {
    "loadSession": True,
    "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
    "mcpCapabilities": {"http": True, "sse": True},
    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
}


class AcpAgent:
    """Serves one editor. Each session has a runtime of its own, which its first prompt opens."""

    def __init__(self, open_runtime: OpenRuntime, *, mode: str | None) -> None:
        self._open_runtime = open_runtime
        self._mode = mode
        """The mode of new sessions; None for the mode of the settings."""
        self._sessions: dict[str, AcpSession] = {}
        self._reads_buffers = self._shows_subagents = self._shows_terminals = False

    async def serve(self, lines: LineReader, output: int, interrupts: Interrupts) -> None:
        """Serve the editor until it closes the connection; then suspend what still runs."""
        connection = Connection(lines, output, self._on_request, self._on_notification)
        self._connection = connection
        interrupts.runtime = self
        async with TaskGroup() as self._tasks:
            serving = self._tasks.create_task(connection.serve())
            try:
                await connection.closed.wait()
                if connection.busy:
                    interrupts.interrupt()  # Suspends the runs, then cancels this task.
                    await asyncio.Event().wait()
            finally:
                await run_to_completion(connection.stop_answering())
                for session in self._sessions.values():
                    await run_to_completion(session.close())
                serving.cancel()
        await connection.flush()

    def suspend(self, why: str, then: Callable[[], None] | None = None) -> None:
        """Suspend the runs of all sessions, for `Interrupts`."""
        waiting = len(self._sessions)

        def session_is_idle() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting <= 0 and then is not None:
                then()

        for session in self._sessions.values():
            session.suspend(why, session_is_idle)
        if not self._sessions and then is not None:
            then()

    # Messages

    async def _on_request(self, request_id: RequestId, method: str, params: Params) -> Any:
        try:
            return await self._answer(method, params)
        except UnknownRun as error:
            raise RpcError(RESOURCE_NOT_FOUND, str(error)) from None
        except UsageError as error:
            raise RpcError(INVALID_PARAMS, str(error)) from None

    async def _answer(self, method: str, params: Params) -> Any:
        match method:
            case "initialize":
                return self._initialize(params)
            case "authenticate":
                raise RpcError(INVALID_PARAMS, NO_AUTHENTICATION)
            case "session/new":
                return await self._new_session(params)
            case "session/load" | "session/resume":
                return await self._load_session(params, replay=method == "session/load")
            case "session/list":
                return await self._list_sessions(params)
            case "session/prompt":
                return await self._session(params).prompt(params.get("prompt"))
            case "session/set_mode":
                return self._set_mode(self._session(params), params.get("modeId"))
            case "session/set_config_option":
                return self._set_option(params)
            case "session/close":
                session = self._session(params)
                del self._sessions[session.id]
                await session.close()
                return {}
        raise RpcError(METHOD_NOT_FOUND, f"Unknown method {method!r}.")

    def _on_notification(self, method: str, params: Params) -> None:
        if method == "session/cancel":
            # Later, so that a prompt that has just arrived takes its first step before.
            asyncio.get_running_loop().call_soon(self._cancel, params.get("sessionId"))

    def _cancel(self, session_id: Any) -> None:
        if not isinstance(session_id, str):
            return
        if session_id in self._sessions:
            self._sessions[session_id].cancel()
        for session in self._sessions.values():
            session.cancel_child(session_id)

    def _initialize(self, params: Params) -> dict[str, Any]:
        if not isinstance(params.get("protocolVersion"), int):
            raise RpcError(INVALID_PARAMS, "protocolVersion must be a whole number.")
        offered = params.get("clientCapabilities")
        offered = offered if isinstance(offered, dict) else {}
        files = offered.get("fs")
        self._reads_buffers = isinstance(files, dict) and files.get("readTextFile") is True
        self._shows_subagents = isinstance(offered.get("subagents"), dict)
        extensions = offered.get("_meta")
        self._shows_terminals = isinstance(extensions, dict) and (
            extensions.get("terminal_output") is True
        )
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentCapabilities": CAPABILITIES,
            "agentInfo": {"name": "retinue", "title": "retinue", "version": VERSION},
            "authMethods": [],
        }

    # Sessions

    def _session(self, params: Params) -> AcpSession:
        session_id = params.get("sessionId")
        session = self._sessions.get(session_id) if isinstance(session_id, str) else None
        if session is None:
            raise RpcError(
                RESOURCE_NOT_FOUND,
                f"No session {session_id!r} is open; open one with session/new or session/load.",
            )
        return session

    async def _new_session(self, params: Params) -> dict[str, Any]:
        from retinue.runtime.run.runs import new_run_id

        session = self._make_session(new_run_id(), params)
        return {"sessionId": session.id, **self._opened(session)}

    async def _load_session(self, params: Params, *, replay: bool) -> dict[str, Any]:
        session_id = params.get("sessionId")
        if not isinstance(session_id, str):
            raise RpcError(INVALID_PARAMS, "sessionId must be a text.")
        if session_id in self._sessions:
            await self._sessions.pop(session_id).close()
        session = self._make_session(session_id, params)
        try:
            await session.load(replay=replay)
        except RetinueError:
            await session.close()
            raise
        return self._opened(session)

    def _make_session(self, session_id: str, params: Params) -> AcpSession:
        from retinue.interfaces.acp.commands import COMMANDS
        from retinue.interfaces.acp.mcp_servers import editor_servers
        from retinue.interfaces.acp.session import AcpSession
        from retinue.project import project_root

        options: dict[str, Any] = {} if self._mode is None else {"mode": self._mode}
        if servers := editor_servers(params.get("mcpServers")):
            options["mcp_servers"] = servers
        return AcpSession(
            session_id,
            project_root(_directory(params)),
            self._connection,
            self._open_runtime,
            self._tasks,
            options=options,
            commands=COMMANDS,
            reads_buffers=self._reads_buffers,
            shows_subagents=self._shows_subagents,
            shows_terminals=self._shows_terminals,
        )

    def _opened(self, session: AcpSession) -> dict[str, Any]:
        self._sessions[session.id] = session
        session.announce_commands()
        return {"modes": self._modes(session), "configOptions": self._options(session)}

    async def _list_sessions(self, params: Params) -> dict[str, Any]:
        """Sessions, the latest first. Runs of children belong to no session and are not listed."""
        from retinue.project import has_journal, open_journal, project_root

        start = _cursor(params)
        root = project_root("." if params.get("cwd") is None else _directory(params))
        if not await has_journal(root):
            return {"sessions": []}
        async with open_journal(root) as store:
            rows = await store.runs(limit=MAX_LISTED_RUNS)
        found: dict[str, dict[str, Any]] = {}
        for row in rows:  # The latest run first, so the title of the oldest run stays.
            if row.session is not None and row.sealed and not row.pruned:
                at = datetime.fromtimestamp(row.finished_at or row.started_at, UTC).isoformat()
                entry = found.setdefault(
                    row.session, {"sessionId": row.session, "cwd": str(root), "updatedAt": at}
                )
                entry["title"] = (row.title or row.task)[:200]
        page = list(found.values())[start : start + SESSIONS_PER_PAGE]
        more = start + SESSIONS_PER_PAGE < len(found)
        return {"sessions": page} | ({"nextCursor": str(start + SESSIONS_PER_PAGE)} if more else {})

    # Mode and model

    def _modes(self, session: AcpSession) -> dict[str, Any]:
        from retinue.domain.grant import Mode
        from retinue.interfaces.view.modes import MODES

        current = session.options.get("mode") or str(_settings(session.root).merged.mode)
        # Only the command line and the settings can choose the mode that never asks.
        offered = [
            mode for mode in MODES if mode is not Mode.DANGEROUS or mode == self._first(session)
        ]
        modes = [
            {"id": str(mode), "name": str(mode).capitalize(), "description": MODES[mode]}
            for mode in offered
        ]
        return {"currentModeId": current, "availableModes": modes}

    def _first(self, session: AcpSession) -> str:
        """The mode that the session began with."""
        return self._mode or str(_settings(session.root).merged.mode)

    def _set_mode(self, session: AcpSession, mode: Any) -> dict[str, Any]:
        known = [offered["id"] for offered in self._modes(session)["availableModes"]]
        if mode not in known:
            raise RpcError(INVALID_PARAMS, f"Unknown mode {mode!r}; there are: {', '.join(known)}.")
        session.options["mode"] = mode
        session.send({"sessionUpdate": "current_mode_update", "currentModeId": mode})
        return {}

    def _options(self, session: AcpSession) -> list[dict[str, Any]]:
        settings = _settings(session.root)
        modes = self._modes(session)
        models = [{"value": DEFAULT_MODEL, "name": settings.merged.model or "Default"}]
        models += [
            {"value": name, "name": name, "description": model}
            for name, model in settings.user.models.items()
        ]
        return [
            {
                "type": "select",
                "id": "mode",
                "name": "Mode",
                "category": "mode",
                "currentValue": modes["currentModeId"],
                "options": [
                    {"value": mode["id"], "name": mode["name"], "description": mode["description"]}
                    for mode in modes["availableModes"]
                ],
            },
            {
                "type": "select",
                "id": "model",
                "name": "Model",
                "category": "model",
                "currentValue": session.options.get("model", DEFAULT_MODEL),
                "options": models,
            },
        ]

    def _set_option(self, params: Params) -> dict[str, Any]:
        session, name, value = self._session(params), params.get("configId"), params.get("value")
        options = {option["id"]: option for option in self._options(session)}
        if name not in options:
            raise RpcError(INVALID_PARAMS, f"Unknown option {name!r}; there are: mode, model.")
        known = [choice["value"] for choice in options[name]["options"]]
        if value not in known:
            raise RpcError(
                INVALID_PARAMS, f"Unknown {name} {value!r}; there are: {', '.join(known)}."
            )
        if name == "mode":
            self._set_mode(session, value)
        elif value == DEFAULT_MODEL:
            session.options.pop("model", None)
        else:
            session.options["model"] = value
        return {"configOptions": self._options(session)}


def _settings(root: Path) -> Any:
    from retinue.config.environment import Environment
    from retinue.config.settings_file import load_settings

    return load_settings(Environment.current(), root)


def _directory(params: Params) -> str:
    directory = params.get("cwd")
    if not isinstance(directory, str) or not directory.startswith("/") or "\0" in directory:
        raise RpcError(INVALID_PARAMS, f"cwd must be an absolute path, not {directory!r}.")
    return directory


def _cursor(params: Params) -> int:
    cursor = params.get("cursor")
    if cursor is None:
        return 0
    if not isinstance(cursor, str) or not cursor.isdecimal() or not cursor.isascii():
        raise RpcError(INVALID_PARAMS, f"Unknown cursor {cursor!r}.")
    return int(cursor)
