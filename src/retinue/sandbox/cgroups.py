"""Counting all processes and all memory of a command together, where we may make a control group.

Root is not bound by the limit on processes of one user, so for root this is what stops a fork bomb.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from retinue.errors import WorkspaceError
from retinue.sandbox.limits import Limits

_ROOT = "/sys/fs/cgroup"
_numbers = itertools.count()


Rules = tuple[tuple[str, str, str], ...]
"""What is counted, and the file and the value that limit it."""


class Cgroups(msgspec.Struct, frozen=True):
    """`parents` are the groups to make one in for each command, with its rules."""

    parents: tuple[tuple[str, Rules], ...] = ()

    @classmethod
    def found(cls, limits: Limits) -> Cgroups:
        """Where this process may make groups; nowhere, as an ordinary user mostly."""
        processes = ("processes", "pids.max", str(limits.processes))
        memory = str(limits.memory_bytes)
        own = _own_groups()
        if os.path.exists(f"{_ROOT}/cgroup.controllers"):
            rules: Rules = (processes, ("memory", "memory.max", memory))
            # A group that has processes of its own, as ours has, may not divide what it gets; the
            # one above it does, and may be the user's too.
            group = _ROOT + own.get("", "/").rstrip("/")
            wanted = [(group, rules), (os.path.dirname(group), rules)]
            usable = [pair for pair in wanted if pair[0].startswith(_ROOT) and _usable(*pair)]
            return cls(tuple(usable[:1]))
        of_old = {"pids": processes, "memory": ("memory", "memory.limit_in_bytes", memory)}
        wanted = [
            (f"{_ROOT}/{name}{own[name].rstrip('/')}", (rule,))
            for name, rule in of_old.items()
            if name in own
        ]
        return cls(tuple(pair for pair in wanted if _usable(*pair)))

    @property
    def counted(self) -> frozenset[str]:
        """What is limited for a command as a whole."""
        return frozenset(what for _, rules in self.parents for what, _, _ in rules)

    @contextmanager
    def around(self, argv: Sequence[str], *, first: Sequence[str] = ()) -> Iterator[list[str]]:
        """The words that run `argv` in groups of its own, which are removed afterwards.

        `first` are lines for the shell that does so.
        """
        name = f"retinue-{os.getpid()}-{next(_numbers)}"
        made: list[str] = []
        try:
            for parent, rules in self.parents:
                group = f"{parent}/{name}"
                made.append(group)
                _make(group, rules)
            enter = [f"echo $$ >{shlex.quote(group)}/cgroup.procs || exit" for group in made]
            lines = [*enter, *first, 'exec "$@"']
            yield ["/bin/sh", "-c", "\n".join(lines), "sh", *argv] if lines[1:] else list(argv)
        except OSError as error:
            raise WorkspaceError(f"No control group can be made: {error.strerror}.") from error
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
    for _, name, value in rules:
        with open(f"{group}/{name}", "w", encoding="ascii") as file:
            file.write(value)
