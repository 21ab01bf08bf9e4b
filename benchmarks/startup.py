"""What starting costs: `retinue --help` and `import retinue`, over a bare interpreter."""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

import msgspec

_RUNS = 15


class Startup(msgspec.Struct, frozen=True, kw_only=True):
    """CPU in milliseconds, medians; the two differences are over `bare_ms`."""

    bare_ms: float
    help_over_bare_ms: float
    import_over_bare_ms: float
    runs: int


def _cpu_ms(argv: list[str]) -> float:
    """User and system time of one process, and of what it waited for."""
    # Without a bytecode cache every start would compile the package, which no user's start does.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    silence = [
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawn(argv[0], argv, environment, file_actions=silence)
    _, status, used = os.wait4(pid, 0)
    if (code := os.waitstatus_to_exitcode(status)) != 0:
        raise RuntimeError(f"{' '.join(argv[1:])!r} ended with code {code}")
    return 1000 * (used.ru_utime + used.ru_stime)


def _help_command() -> list[str]:
    script = Path(sys.executable).parent / "retinue"
    if script.exists():
        return [str(script), "--help"]
    return [sys.executable, "-m", "retinue", "--help"]


def measure_startup(runs: int = _RUNS) -> Startup:
    commands = {
        "bare": [sys.executable, "-c", "pass"],
        "help": _help_command(),
        "import": [sys.executable, "-c", "import retinue"],
    }
    for command in commands.values():
        _cpu_ms(command)  # fills the caches of the disk and of bytecode
    readings: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            readings[name].append(_cpu_ms(command))
    bare, help_, import_ = (statistics.median(each) for each in readings.values())
    return Startup(
        bare_ms=bare, help_over_bare_ms=help_ - bare, import_over_bare_ms=import_ - bare, runs=runs
    )
