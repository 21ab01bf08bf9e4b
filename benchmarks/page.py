"""What the page of `retinue web` costs while many agents work, and how it scrolls ten thousand.

    script/bench --page

The runs are recorded first. Their events are then copied into the journal of another project at the
rate that is wanted, which costs next to nothing, so what is measured has the cores for itself. CPU
is that of the processes, as the kernel and Chromium count it, whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec

import retinue
from benchmarks.machine import this_machine
from retinue.config.environment import Environment
from retinue.models.scripted.model import ScriptedModel, call, say
from retinue.project import open_run_locks

LIVE, LARGE = 500, 10_000
EVENTS_PER_S = 200
FEED_S = 0.05
WATCHED_S = 30.0
SCROLLED_S = 5.0
LIMITS: retinue.LimitOptions = {"max_tool_calls": 1_000_000, "max_turns": 1_000_000}
PAGE_GOAL, SERVER_GOAL = 50.0, 10.0
ROWS_GOAL_S, FRAMES_GOAL, DOM_GOAL, LOAD_GOAL_KB = 2.0, 50.0, 100, 250
SIZE = {"width": 1280, "height": 800}
ROW = '[role="treeitem"]'
SCROLL = """
async (seconds) => {
  const tree = document.querySelector('[role="tree"]');
  const end = performance.now() + seconds * 1000, last = tree.scrollHeight - tree.clientHeight;
  let frames = 0, rows = 0, step = 400;
  while (performance.now() < end) {
    tree.scrollTop += step;
    if (tree.scrollTop <= 0 || tree.scrollTop >= last) step = -step;
    await new Promise(requestAnimationFrame);
    frames++;
    rows = Math.max(rows, document.querySelectorAll('[role="treeitem"]').length);
  }
  return [frames / seconds, rows, performance.memory.usedJSHeapSize / 2 ** 20];
}
"""
LOADED = """
() => performance.getEntries()
  .filter((one) => "encodedBodySize" in one && !one.name.includes("/api/"))
  .reduce((sum, one) => sum + one.encodedBodySize, 0)
"""


class Recorded(msgspec.Struct, frozen=True):
    """A run that has ended, and its journal."""

    run_id: str
    journal: Path
    events: int


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """Shares are CPU in percent of one core."""

    events_per_s: float
    page: float
    drawing: float
    """Of Chromium's process that draws all pages."""
    server: float
    feed: float


class Large(msgspec.Struct, frozen=True, kw_only=True):
    rows_s: float
    frames_per_s: float
    frame_cpu_ms: float
    rows: int
    heap_mib: float
    load_kb: float


async def record(folder: Path, children: int, turns: int) -> Recorded:
    """A fan-out whose children look into a folder, at the same time."""
    project = folder / f"recorded-{children}"
    project.mkdir()
    environment = Environment(variables={"HOME": str(folder), "PATH": "/usr/bin:/bin"})
    model = ScriptedModel({"": [call("list_dir")] * turns + [say("Nothing.")]}, strict=False)
    async with retinue.open(
        project, model=model, environment=environment, cache=False, limits=LIMITS
    ) as rt:
        tasks = [("researcher", f"Look at module {n}") for n in range(children)]
        results = await rt.fan_out(tasks, max_concurrent=min(LIVE, children))
    journal = project / ".retinue" / "retinue.db"
    with closing(sqlite3.connect(journal)) as connection:
        ((events,),) = connection.execute("SELECT count(*) FROM events")
    return Recorded(results[0].run_id, journal, events)


class Feed:
    """A project in which a recorded run happens again, event by event."""

    def __init__(self, recorded: Recorded, project: Path) -> None:
        journal = project / ".retinue" / "retinue.db"
        journal.parent.mkdir(parents=True)
        shutil.copy(recorded.journal, journal)
        self._db = sqlite3.connect(journal, isolation_level=None)
        for (name,) in self._db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            self._db.execute(f"DROP TRIGGER {name}")
        self._db.execute("DELETE FROM events")
        self._db.execute("UPDATE runs SET status = NULL, finished_at = NULL")
        self._db.execute("ATTACH ? AS recorded", (str(recorded.journal),))
        self.head = 0

    def write(self, events: int) -> None:
        """Add so many events; their times are now."""
        first, self.head = self.head, self.head + events
        with self._db:
            self._db.execute("BEGIN")
            self._db.execute(
                "INSERT INTO events SELECT * FROM recorded.events WHERE seq > ? AND seq <= ?",
                (first, self.head),
            )
            self._db.execute("UPDATE events SET time = ? WHERE seq > ?", (time.time(), first))
            self._db.execute(
                "UPDATE runs SET (head_seq, head_hash) ="
                " (SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1)"
            )

    async def flow(self, seconds: float) -> float:
        """Write events at the rate that is wanted; return how many there were each second."""
        began, before = time.monotonic(), self.head
        while (elapsed := time.monotonic() - began) < seconds:
            due = before + int(elapsed * EVENTS_PER_S) - self.head
            if due > 0:
                self.write(due)
            await asyncio.sleep(FEED_S)
        return (self.head - before) / (time.monotonic() - began)

    def close(self) -> None:
        self._db.close()


class Server:
    """`retinue web` in a process of its own."""

    def __init__(self, project: Path, home: Path) -> None:
        program = Path(sys.executable).parent / "retinue"
        self._process = subprocess.Popen(
            [program, "web", "--no-open"],
            cwd=project,
            env={"HOME": str(home), "PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().removeprefix("Open ").strip()

    def cpu_s(self) -> float:
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()


async def chromium_cpu_s(devtools: Any) -> dict[str, float]:
    """CPU by the types of Chromium's processes."""
    found = await devtools.send("SystemInfo.getProcessInfo")
    used: dict[str, float] = {}
    for process in found["processInfo"]:
        used[process["type"]] = used.get(process["type"], 0.0) + process["cpuTime"]
    return used


@asynccontextmanager
async def browsing() -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright

    if (program := shutil.which("chromium")) is None:
        raise SystemExit("script/bench: chromium is missing; script/services installs it")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-dev-shm-usage", "--enable-precise-memory-info"],
        )
        yield browser
        await browser.close()


async def until_shown(page: Any, events: int) -> None:
    """Wait until the page has folded so many events."""
    await page.wait_for_function(
        "(events) => Number(document.querySelector('.travel input').max) >= events", arg=events
    )


async def measure_live(browser: Any, recorded: Recorded, folder: Path) -> Live:
    project = folder / "live"
    feed = Feed(recorded, project)
    environment = Environment(variables={"HOME": str(folder)})
    lock = open_run_locks(project, environment).acquire(recorded.run_id)
    server = Server(project, folder)
    devtools = await browser.new_browser_cdp_session()
    page = await browser.new_page(viewport=SIZE)
    try:
        # Their creation and first turns, at once: all of them are at work.
        feed.write(recorded.events // 4)
        await page.goto(f"{server.url}#/run/{recorded.run_id}")
        await page.locator(ROW).nth(1).wait_for()
        await page.get_by_role("tree").get_by_text("× researcher").first.click()
        await until_shown(page, feed.head)
        await feed.flow(5.0)
        chromium, serving, feeding = (
            await chromium_cpu_s(devtools), server.cpu_s(), time.process_time()
        )  # fmt: skip
        began = time.monotonic()
        events_per_s = await feed.flow(WATCHED_S)
        await until_shown(page, feed.head)
        percent = 100 / (time.monotonic() - began)
        after = await chromium_cpu_s(devtools)
        return Live(
            events_per_s=events_per_s,
            page=percent * (after["renderer"] - chromium["renderer"]),
            drawing=percent * (after["GPU"] - chromium["GPU"]),
            server=percent * (server.cpu_s() - serving),
            feed=percent * (time.process_time() - feeding),
        )
    finally:
        await page.close()
        lock.release()
        server.close()
        feed.close()


async def measure_large(browser: Any, recorded: Recorded, folder: Path) -> Large:
    server = Server(recorded.journal.parents[1], folder)
    devtools = await browser.new_browser_cdp_session()
    try:
        page = await browser.new_page(viewport=SIZE)
        began = time.monotonic()
        await page.goto(f"{server.url}#/run/{recorded.run_id}")
        await page.locator(ROW).nth(1).wait_for()
        rows_s = time.monotonic() - began
        load_kb = await page.evaluate(LOADED) / 1000
        await until_shown(page, recorded.events)
        await page.get_by_role("tree").get_by_text("× researcher").first.click()
        await page.locator(ROW).nth(10).wait_for()
        before = await chromium_cpu_s(devtools)
        frames, rows, heap = await page.evaluate(SCROLL, SCROLLED_S)
        after = await chromium_cpu_s(devtools)
        await page.close()
    finally:
        server.close()
    return Large(
        rows_s=rows_s,
        frames_per_s=frames,
        frame_cpu_ms=1000 * (after["renderer"] - before["renderer"]) / (frames * SCROLLED_S),
        rows=rows,
        heap_mib=heap,
        load_kb=load_kb,
    )


async def measure() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        folder = Path(scratch)
        async with browsing() as browser:
            live = await measure_live(browser, await record(folder, LIVE, 20), folder)
            print(
                f"{LIVE} children at work, {live.events_per_s:.0f} events/s: page {live.page:.1f} %"
                f" of a core, drawing {live.drawing:.1f} %, server {live.server:.1f} %"
                f" (the generator {live.feed:.1f} %)",
                flush=True,
            )
            recorded = await record(folder, LARGE, 1)
            large = await measure_large(browser, recorded, folder)
            print(
                f"{LARGE:,} children, {recorded.events:,} events: first rows after"
                f" {large.rows_s:.2f} s, {large.frames_per_s:.0f} frames/s,"
                f" {large.frame_cpu_ms:.1f} ms of CPU each, {large.rows} rows,"
                f" {large.heap_mib:.0f} MiB of JavaScript heap; first load {large.load_kb:.0f} kB"
            )
    for name, value, goal, unit in (
        ("the page's share of a core", live.page, PAGE_GOAL, "%"),
        ("the server's", live.server, SERVER_GOAL, "%"),
        ("first rows", large.rows_s, ROWS_GOAL_S, "s"),
        ("rows in the DOM", large.rows, DOM_GOAL, "rows"),
        ("first load", large.load_kb, LOAD_GOAL_KB, "kB"),
    ):
        verdict = "met" if value <= goal else "missed"
        print(f"{name}: {value:.1f} {unit}, at most {goal:g} {unit}: {verdict}")
    verdict = "met" if large.frames_per_s >= FRAMES_GOAL else "missed"
    print(f"scrolling: {large.frames_per_s:.0f} frames/s, at least {FRAMES_GOAL:g}: {verdict}")


def main() -> int:
    print(this_machine())
    asyncio.run(measure())
    return 0
