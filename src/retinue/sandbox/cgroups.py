"""Counting all processes and all memory of a command together, where we may make a control group.

Root is not bound by the limit on processes of one user, so for root this is what stops a fork bomb.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from retinue.sandbox.limits import Limits

_ROOT = "/sys/fs/cgroup"
_numbers = itertools.count()


Rules = tuple[tuple[str, str], ...]
"""What is written into the files of a group, by their names."""


class Cgroups(msgspec.Struct, frozen=True):
    """`parents` are the groups to make one in for each command, with its rules."""

    parents: tuple[tuple[str, Rules], ...] = ()

    @classmethod
    def found(cls, limits: Limits) -> Cgroups:
        """Where this process may make groups; nowhere, as an ordinary user mostly."""
        processes = ("pids.max", str(limits.processes))
        memory = str(limits.memory_bytes)
        own = _own_groups()
        wanted: list[tuple[str, Rules]]
        if "" in own and os.path.exists(f"{_ROOT}/cgroup.controllers"):
            wanted = [(_ROOT + own[""].rstrip("/"), (processes, ("memory.max", memory)))]
        else:
            wanted = [
                (f"{_ROOT}/{name}{own[name].rstrip('/')}", (rule,))
                for name, rule in (
                    ("pids", processes),
                    ("memory", ("memory.limit_in_bytes", memory)),
                )
                if name in own
            ]
        return cls(tuple((path, rules) for path, rules in wanted if _usable(path, rules)))

    @contextmanager
    def around(self, argv: Sequence[str]) -> Iterator[list[str]]:
        """The words that run `argv` in groups of its own, which are removed afterwards."""
        name = f"retinue-{os.getpid()}-{next(_numbers)}"
        made: list[str] = []
        try:
            for parent, rules in self.parents:
                group = f"{parent}/{name}"
                with contextlib.suppress(OSError):
                    _make(group, rules)
                    made.append(group)
            if not made:
                yield list(argv)
                return
            enter = " && ".join(f"echo $$ >'{group}/cgroup.procs'" for group in made)
            yield ["/bin/sh", "-c", f'{enter} && exec "$@"', "sh", *argv]
        finally:
            for group in made:
                # Busy for the moment it takes the kernel to bury the last process; a group that is
                # left over costs nothing, and the next one has another name.
                with contextlib.suppress(OSError):
                    os.rmdir(group)


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


def _usable(parent: str, rules: Rules) -> bool:
    trial = f"{parent}/retinue-{os.getpid()}-trial"
    try:
        _make(trial, rules)
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(trial)
    return True


def _make(group: str, rules: Rules) -> None:
    os.mkdir(group)
    for name, value in rules:
        with open(f"{group}/{name}", "w", encoding="ascii") as file:
            file.write(value)
