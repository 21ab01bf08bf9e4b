"""What a command may use up of the machine."""

from __future__ import annotations

import shutil
from functools import cache

import msgspec

MIB = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """For the whole of a command where the kernel can count that, else for each process of it."""

    processes: int = 1_024
    memory_bytes: int = 8_192 * MIB
    file_bytes: int = 2_048 * MIB
    tmp_bytes: int = 1_024 * MIB

    def of_a_process(self) -> dict[str, int]:
        """What is set for each process, by the names of the module `resource`."""
        return {
            "RLIMIT_NPROC": self.processes,
            # Of addresses, of which some programs reserve many times what they use.
            "RLIMIT_AS": 8 * self.memory_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_CORE": 0,
        }

    def argv(self) -> list[str]:
        """The words before a program's that set them."""
        prlimit = _prlimit()
        if prlimit is None:
            return []
        options = self.of_a_process().items()
        return [
            prlimit,
            *(f"--{name.removeprefix('RLIMIT_').lower()}={value}" for name, value in options),
            "--",
        ]


@cache
def _prlimit() -> str | None:
    return shutil.which("prlimit", path="/usr/bin:/bin")
