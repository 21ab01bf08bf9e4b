"""Limits all processes and all memory of a command together, where control groups can be made.

The per-user limit on processes does not bind root, so for root only a control group stops a fork
bomb.

The kernel takes ten milliseconds and more to move a process into a group. With cgroups version 1,
threads of one process may be in different groups. There, a thread of ours moves once and stays: the
processes that it starts are in the group from the beginning, one command after the other.
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
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from subprocess import Popen

import msgspec

from retinue.errors import WorkspaceError
from retinue.processes.child import Starter, start_here
from retinue.sandbox.limits import ProcessLimits

_ROOT = "/sys/fs/cgroup"
_PREFIX = "retinue-"
_MAX_SPARE = 8
_numbers = itertools.count()


# The resource that each file limits.
_RESOURCES = {"pids.max": "processes", "memory.max": "memory", "memory.limit_in_bytes": "memory"}

LimitedGroups = Mapping[str, Mapping[str, int]]
"""Folders of groups, with the values to write into files of each."""


class CgroupSlot(msgspec.Struct, frozen=True):
    """How to start a command in its group: by `start_process`, with `argv_prefix` in front."""

    start_process: Starter = start_here
    argv_prefix: tuple[str, ...] = ()


class Cgroups:
    """Makes groups for commands below `parents`; without parents, commands run in no group."""

    def __init__(self, parents: LimitedGroups) -> None:
        self._parents = parents
        self.limited = frozenset(_RESOURCES[file] for files in parents.values() for file in files)
        """The resources that a group limits."""

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[CgroupSlot]:
        """A group for one command."""
        yield CgroupSlot()

    def _new_groups(self) -> LimitedGroups:
        name = _name()
        return {f"{parent}/{name}": files for parent, files in self._parents.items()}


@cache
def cgroups(limits: ProcessLimits) -> Cgroups:
    """The groups that this process can make. Ordinary users can mostly make none."""
    processes, memory = limits.processes, limits.memory_bytes
    own = _own_groups()
    if os.path.exists(f"{_ROOT}/cgroup.controllers"):
        files = {"pids.max": processes, "memory.max": memory}
        # A group with processes in it, such as ours, cannot have limited subgroups. Its parent can,
        # and may belong to the user too.
        group = _ROOT + own.get("", "/").rstrip("/")
        for parent in (group, os.path.dirname(group)):
            if parent.startswith(_ROOT) and _usable(parent, files):
                return _CgroupsV2({parent: files})
        return Cgroups({})
    wanted = {"pids": {"pids.max": processes}, "memory": {"memory.limit_in_bytes": memory}}
    parents = {
        f"{_ROOT}/{name}{own.get(name, '').rstrip('/')}": files for name, files in wanted.items()
    }
    usable = {parent: files for parent, files in parents.items() if _usable(parent, files)}
    return _CgroupsV1(usable) if usable else Cgroups({})


# Threads do not survive a fork, so the child must make new ones.
os.register_at_fork(after_in_child=cgroups.cache_clear)


class _CgroupsV2(Cgroups):
    """Version 2: all threads of a process are in one group, so each command has to move."""

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[CgroupSlot]:
        groups = self._new_groups()
        (folder,) = groups
        try:
            _make(groups)
            enter = f'echo $$ >{shlex.quote(folder)}/cgroup.procs && exec "$@"'
            yield CgroupSlot(argv_prefix=("/bin/sh", "-c", enter, "sh"))
        finally:
            # Fails while the kernel still removes the last process. A group that stays costs
            # nothing, and the next one has another name.
            _remove(groups)


class _CgroupsV1(Cgroups):
    """Version 1: one hierarchy per controller; threads of a process may be in other groups."""

    def __init__(self, parents: LimitedGroups) -> None:
        super().__init__(parents)
        self._spare: list[_ThreadInGroups] = []

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[CgroupSlot]:
        thread = self._spare.pop() if self._spare else await self._new_thread()
        try:
            yield CgroupSlot(start_process=thread.start_process)
        finally:
            if len(self._spare) < _MAX_SPARE:
                self._spare.append(thread)
            else:
                thread.leave()

    async def _new_thread(self) -> _ThreadInGroups:
        thread = _ThreadInGroups(self._new_groups())
        try:
            await thread.enter()
        except BaseException:
            thread.leave()
            raise
        return thread


class _ThreadInGroups:
    """A thread of ours that has moved into groups of its own, and starts commands there."""

    def __init__(self, groups: LimitedGroups) -> None:
        self._groups = groups
        self._thread = ThreadPoolExecutor(1)
        atexit.register(self._tidy)

    async def enter(self) -> None:
        _make(self._groups)
        moving = self._thread.submit(_move_this_thread, self._groups)
        try:
            await asyncio.wrap_future(moving)
        except OSError as error:
            raise WorkspaceError(f"No control group can be used: {error.strerror}.") from error

    def start_process(self, start: Callable[[], Popen[bytes]]) -> Popen[bytes]:
        # Blocks: starting a process takes a millisecond in any thread.
        return self._thread.submit(start).result()

    def leave(self) -> None:
        """End the thread and remove its groups, in the background."""

        def move() -> None:
            with contextlib.suppress(OSError):
                _move_this_thread(map(os.path.dirname, self._groups))
            _remove(self._groups)

        atexit.unregister(self._tidy)
        self._thread.submit(move)
        self._thread.shutdown(wait=False)

    def _tidy(self) -> None:
        """Remove the groups at exit, when the thread has ended or is about to."""
        for _ in range(20):
            if _remove(self._groups):
                break
            time.sleep(0.001)


def _move_this_thread(groups: Iterable[str]) -> None:
    """Move the calling thread into groups."""
    for path in groups:
        with open(f"{path}/tasks", "w", encoding="ascii") as file:
            file.write(str(threading.get_native_id()))


def _own_groups() -> dict[str, str]:
    """The group of this process by controller; "" is the unified hierarchy."""
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


def _usable(parent: str, files: Mapping[str, int]) -> bool:
    trial = {f"{parent}/{_name()}": files}
    try:
        _make(trial)
    except WorkspaceError:
        return False
    finally:
        _remove(trial)
    _remove_leftovers(parent)
    return True


def _remove_leftovers(parent: str) -> None:
    """Remove the groups of processes that were killed."""
    for name in os.listdir(parent):
        if name.startswith(_PREFIX) and not os.path.exists(f"/proc/{name.split('-')[1]}"):
            _remove([f"{parent}/{name}"])


def _name() -> str:
    return f"{_PREFIX}{os.getpid()}-{next(_numbers)}"


def _make(groups: LimitedGroups) -> None:
    try:
        for folder, files in groups.items():
            os.mkdir(folder)
            for name, value in files.items():
                with open(f"{folder}/{name}", "w", encoding="ascii") as file:
                    file.write(str(value))
    except OSError as error:
        raise WorkspaceError(f"No control group can be made: {error.strerror}.") from error


def _remove(groups: Collection[str]) -> bool:
    """Remove groups; whether they are gone."""
    for folder in groups:
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    return not any(map(os.path.exists, groups))
