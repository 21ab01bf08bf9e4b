"""What a command may use up of the machine."""

from __future__ import annotations

import msgspec

MIB = 1024 * 1024
# Of `ulimit`, with the units it counts in.
_OPTIONS = {
    "RLIMIT_NPROC": ("-u", 1),
    "RLIMIT_AS": ("-v", 1024),
    "RLIMIT_DATA": ("-d", 1024),
    "RLIMIT_FSIZE": ("-f", 512),
    "RLIMIT_CORE": ("-c", 512),
}


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """For the whole of a command where the kernel can count that, else for each process of it."""

    processes: int = 1_024
    memory_bytes: int = 8_192 * MIB
    file_bytes: int = 2_048 * MIB
    tmp_bytes: int = 1_024 * MIB

    def of_a_process(self, *, counted: frozenset[str]) -> dict[str, int]:
        """What is set for each process, by the names of the module `resource`.

        `counted` is what a control group counts for all of them: "processes", "memory".
        """
        limits = {"RLIMIT_FSIZE": self.file_bytes, "RLIMIT_CORE": 0}
        if "processes" not in counted:
            # The kernel counts all that the user has.
            limits["RLIMIT_NPROC"] = _tasks() + self.processes
        if "memory" not in counted:
            limits["RLIMIT_DATA"] = self.memory_bytes
            # Of addresses, of which some programs reserve many times what they use.
            limits["RLIMIT_AS"] = 8 * self.memory_bytes
        return limits

    def lines(self, *, counted: frozenset[str]) -> list[str]:
        """The same for a shell that is to become the command. Where less is set already, it stays.

        When memory runs out, this goes first and the user's own programs stay.
        """
        said = ["echo 1000 >/proc/self/oom_score_adj"]
        for name, value in self.of_a_process(counted=counted).items():
            option, unit = _OPTIONS[name]
            said.append(f"ulimit {option} {value // unit} 2>/dev/null")
        # The shells do not agree on its letter.
        return [line.replace("-u", "-p") + f" || {line}" if "-u" in line else line for line in said]


def _tasks() -> int:
    """How many the machine has at the moment, which is at least as many as any user has."""
    with open("/proc/loadavg", encoding="ascii") as file:
        return int(file.read().split()[3].partition("/")[2])
