"""What the chat costs while agents work: its share of a core, and how soon a key is answered.

    script/bench --chat [--children 5,50,500]

The same run is made with the chat, in a terminal that nobody looks at, and without any display. The
difference in CPU is what the screen costs. The model is scripted: each child takes a second or two
for a turn, as a real one would, so the machine is not busy with anything else.

A key is measured twice: by the clock, which also counts how long the process waits for a core, and
by the CPU that the event loop uses until the key is on the screen, whatever else the machine does.
"""

from __future__ import annotations

import fcntl
import os
import pty
import random
import select
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.machine import this_machine

SHARE_GOAL = 25.0
KEY_GOAL_MS = 100.0
TURNS = 8
MOST_KEYS = 100
LAST_WORDS = "All of them are back."
TASK = "Survey everything"
# A letter that nothing on the screen has.
RARE = "Ж"
SETTINGS = """
max_concurrent = 500
cache = false
warn_at_calls = 100000
pause_at_calls = 100000
on_child_failure = "ignore"
[budget]
max_tool_calls = 1000
max_context_tokens = 200000
[sampling]
max_output_tokens = 1000000
"""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    children: int
    size: tuple[int, int]
    share: float
    """CPU of the screen, in percent of one core, while the run lasted."""
    idle_share: float
    key_ms: float
    slowest_key_ms: float
    slowest_key_cpu_ms: float

    def __str__(self) -> str:
        width, height = self.size
        return (
            f"{self.children:>4} children at {width}×{height}: screen {self.share:5.1f} % of a core"
            f" (idle {self.idle_share:.1f} %), a key {self.key_ms:.0f} ms"
            f" (slowest {self.slowest_key_ms:.0f} ms; of CPU, {self.slowest_key_cpu_ms:.0f} ms)"
        )


def script(children: int) -> dict[str, object]:
    """A lead that sends everybody out at once; every 25th child breaks."""
    chance = random.Random(1)
    look = {"call": "list_dir", "args": {"path": "."}}
    rules: list[dict[str, object]] = [
        {
            "match": "Break",
            "steps": [{**look, "delay_s": 1.0}, {"fail": "refused", "message": "403 Forbidden."}],
        }
    ]
    for kind in range(7):
        turns: list[dict[str, object]] = [
            {**look, "delay_s": round(chance.uniform(0.8, 2.2), 2)} for _ in range(TURNS - 1)
        ]
        last = {"say": "Looked at it. Nothing strange.", "delay_s": 1.0}
        rules.append({"match": f"Survey kind {kind}", "steps": [*turns, last]})
    calls = [
        {
            "call": "spawn_agent",
            "args": {
                "role": "researcher",
                "task": f"{'Break: ' if n % 25 == 7 else ''}Survey kind {n % 7}: module {n}",
            },
        }
        for n in range(children)
    ]
    lead = [{"say": "I send them.", "calls": calls}, {"say": LAST_WORDS}]
    return {"rules": [*rules, {"match": "", "steps": lead}]}


class Terminal:
    """A program in a terminal of its own, whose screen is read and thrown away."""

    def __init__(self, argv: list[str], *, home: Path, size: tuple[int, int]) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"HOME": str(home), "TERM": "xterm-256color"})
            os.chdir(home / "project")
            os.execv(argv[0], argv)
        width, height = size
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        os.kill(self.pid, signal.SIGWINCH)
        self._seen = b""
        self.ended_at: float | None = None

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def read(self, seconds: float) -> None:
        """Read whatever is written meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._read(left)

    def until(self, text: str, *, seconds: float = 120.0) -> float:
        """Wait until `text` is written; answers how long that took."""
        start = time.monotonic()
        self._seen = b""
        while text.encode() not in self._seen:
            if time.monotonic() - start > seconds:
                raise RuntimeError(f"{text!r} was not shown within {seconds:g} s")
            self._read(0.5)
        return time.monotonic() - start

    def _read(self, seconds: float) -> None:
        ready, _, _ = select.select([self._fd], [], [], seconds)
        if ready:
            self._seen = (self._seen + os.read(self._fd, 65536))[-200_000:]
            if self.ended_at is None and LAST_WORDS.encode() in self._seen:
                self.ended_at = time.monotonic()

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def main_thread_cpu_s(self) -> float:
        """CPU of the thread that has the event loop."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._fd)


def without_screen(program: Path, home: Path, model: str) -> float:
    """CPU of the run alone: of the whole process, without what starting it costs."""

    def cpu(argv: list[str]) -> float:
        pid = os.fork()
        if pid == 0:
            os.environ["HOME"] = str(home)
            os.chdir(home / "project")
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            os.execv(argv[0], argv)
        _, status, used = os.wait4(pid, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            raise RuntimeError(f"{' '.join(argv)} failed")
        return used.ru_utime + used.ru_stime

    start = cpu([str(program), "run", "-q", "-m", "scripted:nothing.yaml", TASK])
    return cpu([str(program), "run", "-q", "-m", model, TASK]) - start


def measure(children: int, size: tuple[int, int]) -> Figures:
    program = Path(sys.executable).parent / "retinue"
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        settings = home / ".config" / "retinue" / "config.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text(SETTINGS)
        project = home / "project"
        project.mkdir()
        (project / "load.yaml").write_bytes(msgspec.json.encode(script(children)))
        (project / "nothing.yaml").write_bytes(msgspec.json.encode({"steps": [{"say": "ok"}]}))
        alone = without_screen(program, home, "scripted:load.yaml")
        terminal = Terminal([str(program), "-m", "scripted:load.yaml"], home=home, size=size)
        try:
            terminal.until("/help lists commands")
            terminal.read(1.0)
            before = terminal.cpu_s()
            terminal.read(3.0)
            idle = (terminal.cpu_s() - before) / 3.0
            terminal.press(TASK)
            terminal.read(0.5)
            before, start = terminal.cpu_s(), time.monotonic()
            terminal.press("\r")
            terminal.until("I send them.")
            keys, cpu = [], []
            for _ in range(MOST_KEYS):
                used = terminal.main_thread_cpu_s()
                terminal.press(RARE)
                keys.append(1000 * terminal.until(RARE, seconds=20))
                cpu.append(1000 * (terminal.main_thread_cpu_s() - used))
                terminal.read(0.12)
                if terminal.ended_at is not None:
                    break
            while terminal.ended_at is None:
                terminal.read(0.2)
            wall = terminal.ended_at - start
            used = terminal.cpu_s() - before
        finally:
            terminal.close()
    return Figures(
        children=children,
        size=size,
        share=100 * max(0.0, used - alone) / wall,
        idle_share=100 * idle,
        key_ms=statistics.median(keys),
        slowest_key_ms=max(keys),
        slowest_key_cpu_ms=max(cpu),
    )


def main(children: Sequence[int]) -> int:
    print(this_machine())
    found = []
    for count in children:
        for size in ((80, 24), (120, 40), (200, 60)):
            found.append(measure(count, size))
            print(found[-1], flush=True)
    for name, value, goal, unit in (
        ("the screen's share of a core", max(f.share for f in found), SHARE_GOAL, "%"),
        ("the slowest key", max(f.slowest_key_ms for f in found), KEY_GOAL_MS, "ms"),
        ("its CPU", max(f.slowest_key_cpu_ms for f in found), KEY_GOAL_MS, "ms"),
    ):
        verdict = "met" if value <= goal else "missed"
        print(f"{name}: {value:.1f} {unit}, at most {goal:g} {unit}: {verdict}")
    return 0
