"""What a command may use up of the machine."""

from __future__ import annotations

import contextlib
import resource

import msgspec

MIB = 1024 * 1024


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    """For the whole of a command where the kernel can count that, else for each process of it."""

    processes: int = 1_024
    memory_bytes: int = 8_192 * MIB
    file_bytes: int = 2_048 * MIB
    tmp_bytes: int = 1_024 * MIB

    def per_process(self, *, limited: frozenset[str]) -> dict[str, int]:
        """What is set for each process, by the names of the module `resource`.

        `limited` is what a control group counts for all of them: "processes", "memory".
        """
        # Of memory that crashed, one byte: with none at all the kernel would still start the
        # program of the host's that takes it, if it has one.
        limits = {"RLIMIT_FSIZE": self.file_bytes, "RLIMIT_CORE": 1}
        if "processes" not in limited:
            # The kernel counts all that the user has.
            limits["RLIMIT_NPROC"] = _count_tasks() + self.processes
        if "memory" not in limited:
            limits["RLIMIT_DATA"] = self.memory_bytes
            # Of addresses, of which some programs reserve many times what they use.
            limits["RLIMIT_AS"] = 8 * self.memory_bytes
        return limits


def set_limits(pid: int, limits: dict[str, int]) -> None:
    """Set them for a process, and so for all that it starts. What is less already stays."""
    for name, value in limits.items():
        kind = getattr(resource, name)
        _, hard = resource.prlimit(pid, kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(pid, kind, (most, most))
    # When memory runs out, this goes first and the user's own programs stay.
    with (
        contextlib.suppress(PermissionError),
        open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file,
    ):
        file.write("1000")


def _count_tasks() -> int:
    """How many the machine has at the moment, which is at least as many as any user has."""
    with open("/proc/loadavg", encoding="ascii") as file:
        return int(file.read().split()[3].partition("/")[2])
