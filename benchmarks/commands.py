"""What a sandbox costs a command: the same one in it and without, by turns."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping

from retinue.domain.grant import Access
from retinue.domain.scope import scope
from retinue.ports.sandbox import Sandbox, ShellCommand
from retinue.sandbox.bubblewrap import REQUIRED_OPTION as NEEDED_OPTION
from retinue.sandbox.bubblewrap import Bubblewrap, supported_options
from retinue.sandbox.landlock import MIN_ABI, Landlock, abi_version
from retinue.sandbox.unconfined import Unconfined


def measure_commands(times: int = 100) -> str:
    """A line for each sandbox: medians in milliseconds, of `times` runs that took turns."""
    return asyncio.run(_measure(times))


async def _measure(times: int) -> str:
    kinds = _kinds()
    took: dict[str, list[float]] = {name: [] for name in kinds}
    used: dict[str, list[float]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "src"))
        os.mkdir(os.path.join(folder, ".git"))
        access = Access(root=folder, write_scope=scope("src/**"))
        command = ShellCommand("true", access, timeout_s=60, max_output_bytes=1000)
        for lap in range(times + 1):
            for name, sandbox in kinds.items():
                began, before = time.perf_counter(), _cpu_s()
                await sandbox.run(command)
                if lap:  # The first one fills caches.
                    took[name].append(1000 * (time.perf_counter() - began))
                    used[name].append(1000 * (_cpu_s() - before))
    plain = took["plain"]
    lines = []
    for name, each in took.items():
        over = [a - b for a, b in zip(each, plain, strict=True)]
        lines.append(
            f"{name:<12} {statistics.median(each):6.1f} ms"
            f"   {statistics.median(over):+6.1f} ms over plain"
            f"   best {min(each):6.1f} ms"
            f"   CPU {statistics.median(used[name]):5.1f} ms"
        )
    return "\n".join(lines)


def _cpu_s() -> float:
    """Of this process and of all that it has waited for."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def _kinds() -> Mapping[str, Sandbox]:
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    kinds: dict[str, Sandbox] = {"plain": Unconfined(environment)}
    bwrap = shutil.which("bwrap")
    if bwrap is not None and NEEDED_OPTION in supported_options(bwrap):
        kinds["bubblewrap"] = Bubblewrap(environment, bwrap=bwrap)
    if abi_version() >= MIN_ABI:
        kinds["landlock"] = Landlock(environment)
    return kinds
