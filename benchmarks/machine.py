"""The machine a run was made on: the facts without which its numbers say nothing."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path

import msgspec


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    cpu: str
    cores: int
    python: str
    system: str
    date: str

    def __str__(self) -> str:
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return f"{self.cpu}, {cores}, {self.python}, {self.system}, {self.date}"


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def this_machine() -> Machine:
    return Machine(
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        system=f"{platform.system()} {platform.release()}",
        date=datetime.date.today().isoformat(),
    )
