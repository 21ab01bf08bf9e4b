"""Counting all processes and all memory of a command together, where we may make a control group.

Root is not bound by the limit on processes of one user, so for root this is what stops a fork bomb.

To move a process into a group takes the kernel ten milliseconds and more. So where the threads of a
process may be in different groups (version 1), a thread of ours moves once and stays: what it
starts is born in the group, and after that the next command is.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import os
import shlex
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from subprocess import Popen
from typing import Protocol

import msgspec

from retinue.errors import WorkspaceError
from retinue.sandbox.limits import Limits
from retinue.sandbox.process import Birth, here

_ROOT = "/sys/fs/cgroup"
_PREFIX = "retinue-"
_SPARE = 8
_numbers = itertools.count()


class Rule(msgspec.Struct, frozen=True):
    """What is counted, and the file and the value that limit it."""

    what: str
    file: str
    value: int


Groups = tuple[tuple[str, tuple[Rule, ...]], ...]
"""Folders of groups, with the rules of each."""


class Place(msgspec.Struct, frozen=True):
    """Where a command starts: `new_agent` starts it there, with `words` before its own."""

    new_agent: Birth = here
    words: tuple[str, ...] = ()


class Cgroups(Protocol):
    """Groups for commands; `counted` is what they limit for a command as a whole."""

    @property
    def counted(self) -> frozenset[str]: ...

    def place(self) -> AbstractAsyncContextManager[Place]:
        """One for a command, as long as it runs."""


@cache
def cgroups(limits: Limits) -> Cgroups:
    """What this process may make; nothing, as an ordinary user mostly."""
    processes = Rule("processes", "pids.max", limits.processes)
    memory = limits.memory_bytes
    own = _own_groups()
    if os.path.exists(f"{_ROOT}/cgroup.controllers"):
        rules = (processes, Rule("memory", "memory.max", memory))
        # A group that has processes of its own, as ours has, may not divide what it gets; the one
        # above it does, and may be the user's too.
        group = _ROOT + own.get("", "/").rstrip("/")
        for parent in (group, os.path.dirname(group)):
            if parent.startswith(_ROOT) and _usable(parent, rules):
                return _Unified(parent, rules)
        return _None()
    of_old = {"pids": processes, "memory": Rule("memory", "memory.limit_in_bytes", memory)}
    wanted = (
        (f"{_ROOT}/{name}{own.get(name, '').rstrip('/')}", (of_old[name],)) for name in of_old
    )
    usable = tuple(pair for pair in wanted if _usable(*pair))
    return _Divided(usable) if usable else _None()


# Its threads are not those of who made them.
os.register_at_fork(after_in_child=cgroups.cache_clear)


class _None:
    counted: frozenset[str] = frozenset()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        yield Place()


class _Unified:
    """Version 2: a process is in a group with all its threads, and has to move."""

    def __init__(self, parent: str, rules: tuple[Rule, ...]) -> None:
        self._parent = parent
        self._rules = rules
        self.counted = frozenset(rule.what for rule in rules)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        groups = ((f"{self._parent}/{_name()}", self._rules),)
        try:
            _make(groups)
            enter = f'echo $$ >{shlex.quote(groups[0][0])}/cgroup.procs && exec "$@"'
            yield Place(words=("/bin/sh", "-c", enter, "sh"))
        finally:
            # Busy for the moment it takes the kernel to bury the last process; a group that is
            # left over costs nothing, and the next one has another name.
            _remove(groups)


class _Divided:
    """Version 1: a hierarchy for each controller, and threads may be where their process is not."""

    def __init__(self, parents: Groups) -> None:
        self._parents = parents
        self._spare: list[_Nest] = []
        self.counted = frozenset(rule.what for _, rules in parents for rule in rules)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        nest = self._spare.pop() if self._spare else await self._new()
        try:
            yield Place(new_agent=nest.new_agent)
        finally:
            if len(self._spare) < _SPARE:
                self._spare.append(nest)
            else:
                nest.leave()

    async def _new(self) -> _Nest:
        name = _name()
        nest = _Nest(tuple((f"{parent}/{name}", rules) for parent, rules in self._parents))
        try:
            await nest.enter()
        except BaseException:
            nest.leave()
            raise
        return nest


class _Nest:
    """A thread in groups of its own."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._thread = ThreadPoolExecutor(1)
        atexit.register(self._tidy)

    async def enter(self) -> None:
        _make(self._groups)
        moving = self._thread.submit(_move, [path for path, _ in self._groups])
        try:
            await asyncio.wrap_future(moving)
        except OSError as error:
            raise WorkspaceError(f"No control group can be used: {error.strerror}.") from error

    def new_agent(self, start: Callable[[], Popen[bytes]]) -> Popen[bytes]:
        # Waited for: it is over in a millisecond, in which our own thread would have done it.
        return self._thread.submit(start).result()

    def leave(self) -> None:
        """For good; in the background, as it takes its time."""

        def move() -> None:
            with contextlib.suppress(OSError):
                _move([os.path.dirname(path) for path, _ in self._groups])
            _remove(self._groups)

        atexit.unregister(self._tidy)
        self._thread.submit(move)
        self._thread.shutdown(wait=False)

    def _tidy(self) -> None:
        """At the end, when the thread is gone, or is so in a moment."""
        for _ in range(20):
            if _remove(self._groups):
                break
            time.sleep(0.001)


def _move(groups: Iterable[str]) -> None:
    """This thread, and nobody else's."""
    for path in groups:
        with open(f"{path}/tasks", "w", encoding="ascii") as file:
            file.write(str(threading.get_native_id()))


def _own_groups() -> dict[str, str]:
    """The group of this process in each hierarchy, by the controller's name; "" is the unified."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        _, names, path = line.split(":", 2)
        found |= dict.fromkeys(names.split(","), path)
    return found


def _usable(parent: str, rules: tuple[Rule, ...]) -> bool:
    trial: Groups = ((f"{parent}/{_name()}", rules),)
    try:
        _make(trial)
    except WorkspaceError:
        return False
    finally:
        _remove(trial)
    _bury(parent)
    return True


def _bury(parent: str) -> None:
    """Remove what those have left who were killed."""
    for name in os.listdir(parent):
        if name.startswith(_PREFIX) and not os.path.exists(f"/proc/{name.split('-')[1]}"):
            _remove(((f"{parent}/{name}", ()),))


def _name() -> str:
    return f"{_PREFIX}{os.getpid()}-{next(_numbers)}"


def _make(groups: Groups) -> None:
    try:
        for path, rules in groups:
            os.mkdir(path)
            for rule in rules:
                with open(f"{path}/{rule.file}", "w", encoding="ascii") as file:
                    file.write(str(rule.value))
    except OSError as error:
        raise WorkspaceError(f"No control group can be made: {error.strerror}.") from error


def _remove(groups: Groups) -> bool:
    """Are they gone?"""
    for path, _ in groups:
        with contextlib.suppress(OSError):
            os.rmdir(path)
    return not any(os.path.exists(path) for path, _ in groups)
