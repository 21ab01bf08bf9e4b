"""A fan-out against a server on a bad day, in wall-clock time: `python -m benchmarks.storm`.

The children do what they do in the other benchmarks: four model calls and three file tools. The
server gives 429 to everything above 8 at a time, drops 2 % of the connections, stalls 1 % of the
replies and breaks the JSON of 1 %. Nobody tells retinue how many the server takes. The time it
needs is compared with what 8 slots need for the same replies without any of that. The settings say
that a reply which is silent for five times of what a reply takes has stalled (`--stalled-after`):
one that stalls among the last few makes all of them wait for so long.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

import retinue
from benchmarks.workload import ANSWER, SCRIPTS, task, write_notes
from retinue.config.environment import Environment
from retinue.domain.events import Event
from retinue.models.scripted.model import ScriptedReply, call, say
from retinue.testing.server import ModelServer, Received, failing
from tests.endpoints.faulty_answers import FaultyAnswers

SLOTS = 8
LIMIT = 1.15


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    children: int
    work_s: float
    seed: int
    retry_after_s: float = 0.0
    """What the server says with each 429, if anything."""
    stalled_after: float = 5.0
    """So many times of what a reply takes are too long a silence."""


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """What the server saw."""

    requests: int
    refused: int
    given: int
    twice: int
    happened: dict[str, int]


def _answer(request: Received) -> ScriptedReply:
    calls = SCRIPTS["bench"]
    done = request.body.count(b'"role":"tool"')
    return call(calls[done].tool, path=calls[done].path) if done < len(calls) else say(ANSWER)


async def _serve(storm: Storm) -> None:
    faulty = FaultyAnswers(
        _answer, drops=0.02, stalls=0.01, breaks=0.01, work_s=storm.work_s, seed=storm.seed
    )
    headers = {"retry-after": f"{storm.retry_after_s:g}"} if storm.retry_after_s else {}
    refusal = failing(429, "All slots are taken.", headers=headers)
    async with ModelServer(faulty, slots=SLOTS, refusal=refusal) as server:
        print(server.base_url, flush=True)
        await asyncio.to_thread(sys.stdin.buffer.read)
    seen = Weather(
        requests=len(server.requests),
        refused=server.refused,
        given=len(faulty.given),
        twice=sum(count > 1 for count in faulty.given.values()),
        happened=dict(faulty.happened),
    )
    print(msgspec.json.encode(seen).decode(), flush=True)


def _prepared(folder: Path, base_url: str, stalled_after_s: float) -> tuple[Path, Environment]:
    home, project = folder / "home", folder / "project"
    write_notes(project)
    settings = home / ".config/retinue/config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        f'[servers."{base_url}"]\n'
        f"first_byte_timeout_s = {stalled_after_s}\n"
        f"idle_timeout_s = {stalled_after_s}\n"
    )
    return project, Environment(variables={"HOME": str(home)})


async def _fan_out(base_url: str, storm: Storm) -> tuple[float, Counter[str]]:
    events: Counter[str] = Counter()

    def listen(event: Event) -> None:
        events[event.type] += 1

    with tempfile.TemporaryDirectory() as folder:
        project, environment = _prepared(Path(folder), base_url, storm.stalled_after * storm.work_s)
        async with retinue.open(
            project,
            model=f"openai:m@{base_url}",
            environment=environment,
            listeners=retinue.Listeners(on_event=listen),
        ) as rt:
            began = time.perf_counter()
            results = await rt.fan_out(
                [("researcher", task(n)) for n in range(storm.children)],
                max_concurrent=storm.children,
            )
            took_s = time.perf_counter() - began
    failed = [result.error for result in results if not result.ok]
    if failed:
        raise SystemExit(f"{len(failed)} of {storm.children} children failed: {failed[0]}")
    return took_s, events


def weathered(storm: Storm) -> str:
    """One storm, in a line."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.storm", "--serve", msgspec.json.encode(storm)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        took_s, events = asyncio.run(_fan_out(process.stdout.readline().strip(), storm))
        process.stdin.close()
        seen = msgspec.json.decode(process.stdout.read(), type=Weather)
    ideal_s = events["model.replied"] * storm.work_s / SLOTS
    ratio = took_s / ideal_s
    verdict = "met" if ratio <= LIMIT else f"missed by {100 * (ratio / LIMIT - 1):.0f} %"
    return (
        f"{storm.children} children, {events['model.replied']} replies in {took_s:.1f} s;"
        f" {SLOTS} slots need {ideal_s:.1f} s: {ratio:.3f}× (at most {LIMIT}×: {verdict});"
        f" {seen.refused} refused, {', '.join(f'{n} {what}' for what, n in seen.happened.items())},"
        f" {events['model.failed']} failures on record, {seen.twice} answered twice"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.storm", description=__doc__)
    parser.add_argument("--children", type=int, default=300)
    parser.add_argument("--work-s", type=float, default=0.4, help="what a reply takes")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--retry-after", type=float, default=0.0, metavar="S", help="with a 429")
    parser.add_argument("--stalled-after", type=float, default=5.0, metavar="TIMES")
    parser.add_argument("--serve", metavar="STORM", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.serve:
        asyncio.run(_serve(msgspec.json.decode(given.serve, type=Storm)))
        return 0
    for seed in range(given.repeat):
        storm = Storm(
            children=given.children,
            work_s=given.work_s,
            seed=seed,
            retry_after_s=given.retry_after,
            stalled_after=given.stalled_after,
        )
        print(weathered(storm), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
