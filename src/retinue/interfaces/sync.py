"""Synchronous calls for scripts and notebooks, on one event loop in a background thread.

The loop lives as long as the process, so the calls also work where another loop already runs.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar, Unpack

from retinue.app import OpenOptions, open_runtime
from retinue.domain.plan.outcome import RunResult
from retinue.domain.result import Result, T
from retinue.errors import UsageError
from retinue.interfaces.notebook import NotebookCell, NotebookProgress, in_notebook
from retinue.runtime.delegation.task import Task
from retinue.runtime.runtime import JsonSchema, Runtime

R = TypeVar("R")


@cache  # Two first calls at the same moment may make two loops, which does no harm.
def _background_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="retinue", daemon=True).start()
    return loop


# A forked process has no thread that runs the loop; it starts its own.
os.register_at_fork(after_in_child=_background_loop.cache_clear)


def _call(
    work: Callable[[Runtime], Awaitable[R]], directory: str | Path, options: OpenOptions
) -> R:
    """Open a runtime in the background, do `work` in it, and wait. Ctrl-C cancels the work."""
    if threading.current_thread().name == "retinue":
        raise UsageError("This runs on retinue's own loop; use `await rt.spawn(…)` here.")
    ended, progress = threading.Event(), None
    if "listeners" not in options and in_notebook():
        progress = NotebookProgress(NotebookCell())
        options = {**options, "listeners": progress.listeners}

    async def inside() -> R:
        try:
            async with open_runtime(directory, **options) as runtime:
                return await work(runtime)
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(inside(), _background_loop())
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        ended.wait()
        raise
    finally:
        if progress is not None:
            progress.draw()


def run_sync(
    task: str,
    directory: str | Path = ".",
    *,
    output: type[T] | JsonSchema | None = None,
    **options: Unpack[OpenOptions],
) -> RunResult[T]:
    """`Runtime.run` for scripts and notebooks. The options are those of `retinue.open`.

    In a notebook, the tree of agents is shown below the cell. Ctrl-C cancels the run.

    ```python
    model = ScriptedModel([say("It shortens links.")])
    run = retinue.run_sync("What does this project do?", ".", model=model)
    assert run.response == "It shortens links."
    ```
    """
    return _call(lambda rt: rt.run(task, output=output), directory, options)


def spawn_sync(
    role: str,
    task: str,
    directory: str | Path = ".",
    *,
    output: type[T] | JsonSchema | None = None,
    **options: Unpack[OpenOptions],
) -> Result[T]:
    """`Runtime.spawn` for scripts and notebooks. The options are those of `retinue.open`.

    For a child with options of its own, give a `Task` to `fan_out_sync`.

    ```python
    model = ScriptedModel([say('{"title": "Herons", "lines": 3}')])
    schema = {"type": "object", "required": ["title"]}
    result = retinue.spawn_sync("researcher", "Describe a.txt.", ".", output=schema, model=model)
    assert result.unwrap()["title"] == "Herons"
    ```
    """
    return _call(lambda rt: rt.spawn(role, task, output=output), directory, options)


def fan_out_sync(
    tasks: Sequence[Task | tuple[str, str]],
    directory: str | Path = ".",
    *,
    output: type[T] | JsonSchema | None = None,
    **options: Unpack[OpenOptions],
) -> list[Result[T]]:
    """`Runtime.fan_out` for scripts and notebooks. The options are those of `retinue.open`.

    ```python
    tasks = [("researcher", "What is in a.txt?"), ("researcher", "What is in b.txt?")]
    model = ScriptedModel({"": [say("A greeting.")]})
    for result in retinue.fan_out_sync(tasks, ".", model=model, max_concurrent=2):
        print(result.status, result.response)
    ```
    """
    return _call(lambda rt: rt.fan_out(tasks, output=output), directory, options)
