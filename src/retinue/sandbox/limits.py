"""Resource limits of commands."""

from __future__ import annotations

import contextlib
import resource

import msgspec

MIB = 1024 * 1024


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for a whole command if a control group can count that, else for each process."""

    processes: int = 1_024
    memory_bytes: int = 8_192 * MIB
    file_bytes: int = 2_048 * MIB
    tmp_bytes: int = 1_024 * MIB

    def per_process(self, *, limited: frozenset[str]) -> dict[str, int]:
        """Limits to set for each process, by their names in the module `resource`.

        `limited` is what a control group limits already: "processes", "memory".
        """
        # One byte for core dumps: with 0, the kernel would still start the host's program that
        # collects them, if there is one.
        limits = {"RLIMIT_FSIZE": self.file_bytes, "RLIMIT_CORE": 1}
        if "processes" not in limited:
            # The kernel counts all processes of the user, not only those of the command.
            limits["RLIMIT_NPROC"] = _count_tasks() + self.processes
        if "memory" not in limited:
            limits["RLIMIT_DATA"] = self.memory_bytes
            # Some programs reserve many times the address space that they use.
            limits["RLIMIT_AS"] = 8 * self.memory_bytes
        return limits


DEFAULT_LIMITS = ProcessLimits()


def set_limits(pid: int, limits: dict[str, int]) -> None:
    """Set limits for a process and all that it starts. Lower limits stay."""
    for name, value in limits.items():
        kind = getattr(resource, name)
        _, hard = resource.prlimit(pid, kind)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(pid, kind, (most, most))
    # When memory runs out, the kernel kills this first, not the user's own programs.
    with (
        contextlib.suppress(PermissionError),
        open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as file,
    ):
        file.write("1000")


def _count_tasks() -> int:
    """The number of threads on the machine: at least as many as the user has."""
    with open("/proc/loadavg", encoding="ascii") as file:
        return int(file.read().split()[3].partition("/")[2])
