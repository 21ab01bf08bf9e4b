"""The command line of the benchmark. Exit code 0 unless something broke; a missed goal is news,
not a failure."""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import tempfile
from pathlib import Path

from benchmarks import chat, page, storm
from benchmarks.bytecodes import measure_bytecodes
from benchmarks.calls import Cost, measure_calls
from benchmarks.chart import draw
from benchmarks.commands import measure_commands
from benchmarks.endpoint import endpoint
from benchmarks.files import measure_files
from benchmarks.goals import JUDGED, LED, TRACED, judge
from benchmarks.machine import this_machine
from benchmarks.mcp import McpCost, measure_mcp
from benchmarks.peers import interpreter, load_peers
from benchmarks.race import Contender, Heat, run_heat
from benchmarks.report import PICTURE, Report, markdown, plain, plain_calls
from benchmarks.resumption import Resumption, measure_resumption
from benchmarks.startup import Startup, measure_startup

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".bench"

_FULL = (100, JUDGED, 10_000)
# One lap of the floor takes up to a half more than another: of four series of five or seven laps
# the ratio was 1.9 to 2.8.
OFTENER = 4
_QUICK = (100, 300)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _children(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count(part) for part in text.split(",")}))


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="script/bench", description="What a child costs.")
    parser.add_argument("--quick", action="store_true", help="100 and 300 children, no peers")
    parser.add_argument(
        "--peers", action=argparse.BooleanOptionalAction, help="measure peers too (the default)"
    )
    parser.add_argument("--calls", action="store_true", help="only what a single call costs")
    parser.add_argument("--children", type=_children, metavar="N,…", help="default: 100,1000,10000")
    parser.add_argument("--concurrency", type=_count, default=100, metavar="N")
    parser.add_argument("--repeat", type=_count, default=5, metavar="N", help="laps of each")
    parser.add_argument(
        "--commands", action="store_true", help="what a sandbox costs a command, and nothing else"
    )
    parser.add_argument(
        "--files", action="store_true", help="what children's files cost, and nothing else"
    )
    parser.add_argument(
        "--storm", action="store_true", help="only time a fan-out against a server on a bad day"
    )
    parser.add_argument(
        "--chat", action="store_true", help="only what the chat costs while agents work"
    )
    parser.add_argument(
        "--page", action="store_true", help="only what the page of retinue web costs"
    )
    parser.add_argument(
        "--mcp", action="store_true", help="only what MCP costs a child, compared with rt.spawn"
    )
    parser.add_argument(
        "--bytecodes", action="store_true", help="only the bytecodes of a child, for busy machines"
    )
    parser.add_argument(
        "--resume", action="store_true", help="only how soon a run of 1,000 children goes on"
    )
    parser.add_argument(
        "--cluster", action="store_true", help="only what two Ray nodes and Postgres cost a run"
    )
    parser.add_argument("--write", action="store_true", help="write the page and its picture")
    parser.add_argument(
        "--docs", type=Path, default=ROOT / "docs", metavar="DIR", help="where --write writes"
    )
    given = parser.parse_args(argv)
    if given.calls and given.write:
        parser.error("--write needs the whole report; leave out --calls")
    return given


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _calls() -> int:
    with endpoint(ROOT) as server:
        calls = measure_calls(server.base_url, ROOT)
    goals = [goal for goal in judge({}, calls, None, None) if goal.measured is not None]
    print(plain_calls(this_machine(), calls, goals))
    return 0


def main(argv: list[str] | None = None) -> int:
    given = _arguments(argv)
    if given.calls:
        return _calls()
    if given.commands:
        print(measure_commands())
        return 0
    if given.files:
        print(measure_files())
        return 0
    if given.mcp:
        print(f"{this_machine()}\n{measure_mcp().line}")
        return 0
    if given.bytecodes:
        print(f"bytecodes of the event loop for a child\n{measure_bytecodes(ROOT)}")
        return 0
    if given.resume:
        print(f"{this_machine()}\n{measure_resumption().line}")
        return 0
    if given.cluster:
        # Here, as it needs programs that script/services installs.
        from benchmarks.cluster import measure_cluster

        for line in measure_cluster((given.children or (JUDGED,))[-1], given.repeat):
            print(line, flush=True)
        return 0
    if given.storm:
        return storm.main([])
    if given.chat:
        return chat.main(given.children or (5, 50, 500))
    if given.page:
        return page.main()
    floor = Contender(
        name="floor",
        version=f"aiohttp {_version('aiohttp')}, msgspec {_version('msgspec')}",
        python=Path(sys.executable),
        module="benchmarks.floor",
    )
    retinue = Contender(
        name="retinue",
        version=_version("retinue"),
        python=Path(sys.executable),
        module="benchmarks.contestants.retinue",
    )
    led = Contender(
        name=LED,
        version=_version("retinue"),
        python=Path(sys.executable),
        module="benchmarks.contestants.retinue_led",
    )
    traced = Contender(
        name=TRACED,
        version=_version("retinue"),
        python=Path(sys.executable),
        module="benchmarks.contestants.retinue_traced",
    )
    failures: list[str] = []
    # Peers join the heat of their size, so that they meet the same floor as retinue does.
    field: dict[int, list[Contender]] = {
        children: [retinue, led, *([traced] if children == JUDGED else [])]
        for children in given.children or (_QUICK if given.quick else _FULL)
    }
    if given.peers if given.peers is not None else not given.quick:
        for peer in load_peers():
            _say(f"preparing {peer.name} {peer.version}")
            try:
                python = interpreter(peer, CACHE)
            except RuntimeError as error:
                failures.append(str(error))
                continue
            field.setdefault(peer.children, [retinue]).append(
                Contender(name=peer.name, version=peer.version, python=python, module=peer.module)
            )

    heats: dict[int, Heat] = {}
    with endpoint(ROOT) as server, tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        for children, others in sorted(field.items()):
            _say(f"{children:,} children: floor, {', '.join(each.name for each in others)}")
            heats[children] = run_heat(
                floor,
                others,
                endpoint=server,
                children=children,
                concurrency=given.concurrency,
                repeat=given.repeat * (OFTENER if children == JUDGED else 1),
                root=ROOT,
                scratch=Path(scratch),
            )
            failures += heats[children].failures
        _say("single calls")
        calls: tuple[Cost, ...] = ()
        try:
            calls = measure_calls(server.base_url, ROOT)
        except RuntimeError as error:
            failures.append(str(error))

    startup: Startup | None = None
    _say("start-up")
    try:
        startup = measure_startup()
    except RuntimeError as error:
        failures.append(str(error))

    resumption: Resumption | None = None
    _say("resumption")
    try:
        resumption = measure_resumption()
    except RuntimeError as error:
        failures.append(str(error))

    mcp: McpCost | None = None
    _say("MCP")
    try:
        mcp = measure_mcp()
    except (RuntimeError, AssertionError, OSError) as error:
        failures.append(f"MCP: {error!r}")

    report = Report(
        machine=this_machine(),
        concurrency=given.concurrency,
        heats=tuple(heats.values()),
        calls=calls,
        startup=startup,
        resumption=resumption,
        mcp=mcp,
        goals=tuple(judge(heats, calls, startup, resumption)),
        failures=tuple(failures),
    )
    print(plain(report))
    if given.write:
        given.docs.mkdir(parents=True, exist_ok=True)
        (given.docs / "benchmarks.md").write_text(markdown(report))
        # The heat with the most contestants is the one worth a picture.
        widest = max(report.heats, key=lambda heat: len(heat.others))
        (given.docs / PICTURE).write_text(draw(widest))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
