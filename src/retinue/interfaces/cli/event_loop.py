"""Runs the coroutine of a command in an event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import click

P = ParamSpec("P")
T = TypeVar("T")

PIPE_CLOSED = 128 + signal.SIGPIPE


def async_command(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Turn a coroutine function into one that click can call."""

    @wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_async(function(*args, **kwargs))

    return command


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in an event loop. Exits with 141 if the reader of standard output goes away."""
    # Imported modules are never garbage; frozen, the collector does not scan them again.
    gc.freeze()
    try:
        return asyncio.run(work)
    except BrokenPipeError:
        # Python flushes the buffer at exit, and complains if that fails.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(PIPE_CLOSED) from None
