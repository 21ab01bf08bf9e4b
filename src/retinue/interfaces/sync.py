"""Synchronous calls for scripts and notebooks, on one event loop in a background thread.

The loop lives as long as the process, so the calls also work where another loop already runs.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

from retinue.app import OpenOptions, open_runtime
from retinue.domain.plan.outcome import RunResult
from retinue.domain.result import Result
from retinue.errors import UsageError
from retinue.interfaces.notebook import NotebookCell, NotebookProgress, in_notebook
from retinue.runtime.delegation.task import Task
from retinue.runtime.runtime import Runtime

T = TypeVar("T")
R = TypeVar("R")
JsonSchema = Mapping[str, Any] | str
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _background_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="retinue", daemon=True).start()
        return _loop


def _forget_loop() -> None:
    global _loop
    _loop = None


os.register_at_fork(after_in_child=_forget_loop)


def _call(
    work: Callable[[Runtime], Awaitable[R]], directory: str | Path, options: OpenOptions
) -> R:
    """Open a runtime in the background, do `work` in it, and wait. Ctrl-C cancels the work."""
    loop, ended = _background_loop(), threading.Event()
    progress = None
    if "listeners" not in options and in_notebook():
        progress = NotebookProgress(NotebookCell())
        options = {**options, "listeners": progress.listeners}

    async def inside() -> R:
        try:
            async with open_runtime(directory, **options) as runtime:
                return await work(runtime)
        finally:
            ended.set()

    if threading.current_thread().name == "retinue" and loop.is_running():
        raise UsageError("This runs on retinue's own loop; use `await rt.spawn(…)` here.")
    future = asyncio.run_coroutine_threadsafe(inside(), loop)
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        ended.wait()
        raise
    finally:
        if progress is not None:
            progress.draw()


@overload
def run_sync(
    task: str, directory: str | Path = ".", *, output: type[T], **options: Unpack[OpenOptions]
) -> RunResult[T]: ...


@overload
def run_sync(
    task: str,
    directory: str | Path = ".",
    *,
    output: JsonSchema | None = None,
    **options: Unpack[OpenOptions],
) -> RunResult[Any]: ...


def run_sync(
    task: str,
    directory: str | Path = ".",
    *,
    output: Any = None,
    **options: Unpack[OpenOptions],
) -> RunResult[Any]:
    """`Runtime.run` for scripts and notebooks. The options are those of `retinue.open`.

    In a notebook, the tree of agents is shown below the cell. Ctrl-C cancels the run.
    """
    return _call(lambda rt: rt.run(task, output=output), directory, options)


@overload
def spawn_sync(
    role: str,
    task: str,
    directory: str | Path = ".",
    *,
    output: type[T],
    **options: Unpack[OpenOptions],
) -> Result[T]: ...


@overload
def spawn_sync(
    role: str,
    task: str,
    directory: str | Path = ".",
    *,
    output: JsonSchema | None = None,
    **options: Unpack[OpenOptions],
) -> Result[Any]: ...


def spawn_sync(
    role: str,
    task: str,
    directory: str | Path = ".",
    *,
    output: Any = None,
    **options: Unpack[OpenOptions],
) -> Result[Any]:
    """`Runtime.spawn` for scripts and notebooks. The options are those of `retinue.open`.

    For a child with options of its own, give a `Task` to `fan_out_sync`.
    """
    return _call(lambda rt: rt.spawn(role, task, output=output), directory, options)


@overload
def fan_out_sync(
    tasks: Sequence[Task | tuple[str, str]],
    directory: str | Path = ".",
    *,
    output: type[T],
    **options: Unpack[OpenOptions],
) -> list[Result[T]]: ...


@overload
def fan_out_sync(
    tasks: Sequence[Task | tuple[str, str]],
    directory: str | Path = ".",
    *,
    output: JsonSchema | None = None,
    **options: Unpack[OpenOptions],
) -> list[Result[Any]]: ...


def fan_out_sync(
    tasks: Sequence[Task | tuple[str, str]],
    directory: str | Path = ".",
    *,
    output: Any = None,
    **options: Unpack[OpenOptions],
) -> list[Result[Any]]:
    """`Runtime.fan_out` for scripts and notebooks. The options are those of `retinue.open`."""
    return _call(lambda rt: rt.fan_out(tasks, output=output), directory, options)
