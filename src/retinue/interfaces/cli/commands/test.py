"""`retinue test`: replays recorded runs, or repeats them on a real model."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from retinue.errors import UsageError
from retinue.interfaces.cli.event_loop import run_async
from retinue.interfaces.cli.options import completion, directory_option, json_objects_option
from retinue.interfaces.cli.recorded_test import (
    project_copy,
    read_test,
    repeat,
    replay,
    update,
)
from retinue.interfaces.cli.terminal.output import print_error, print_json, print_line, print_table
from retinue.interfaces.view.formatting import format_cost, format_duration
from retinue.models.replay.recording import Recording
from retinue.project import (
    has_journal,
    make_state_dir,
    open_journal,
    postgres_database,
    project_root,
    refuse_links,
)
from retinue.runtime.history.audit import read_all
from retinue.telemetry.statistics import Statistics

LIVE_RESULTS = "live-tests.json"
"""File in `.retinue/` with the results of the last --live run."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one recording; also the JSON that is printed."""

    file: str
    ok: bool
    updated: bool = False
    difference: str = ""
    diff: tuple[str, ...] = ()


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """How one recording's commands did on a real model; also the JSON that is printed."""

    file: str
    model: str
    ok: bool
    tokens: int
    cost_usd: float
    seconds: float
    error: str = ""
    """The last line that the command printed on standard error, if it failed."""


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@directory_option
@click.option("--update", "accept", is_flag=True, help="Rewrite recordings that differ.")
@click.option(
    "--trust-recordings",
    "trusted",
    is_flag=True,
    help="Give agents what the recorded options allow, such as --mode auto.",
)
@click.option("--live", is_flag=True, help="Repeat the commands on the model of -m instead.")
@click.option(
    "-m",
    "model",
    metavar="MODEL",
    shell_complete=completion("complete_model"),
    help="The model for --live.",
)
@json_objects_option
def test(
    files: tuple[Path, ...],
    directory: str,
    accept: bool,
    trusted: bool,
    live: bool,
    model: str | None,
    as_json: bool,
) -> int:
    """Replay the recorded runs in FILES, and show the first difference of each.

    `--record FILE` of run, spawn, fan-out and plan records a run with its command. Each is repeated
    in a fresh copy of the project with the recorded replies, so a changed prompt, role, setting or
    file shows as a difference. Exits with 1 if there is one.

    A recording may come from a stranger. One whose command lets agents do more, such as with
    --mode auto or --check, is repeated with --trust-recordings only.

    With --live the commands run on a real model, and pass if they and their checks succeed. The
    table compares each with the last --live run.

    Example: retinue test tests/runs/*.jsonl

    Example: retinue test --live -m local tests/runs/*.jsonl
    """
    if live != (model is not None):
        raise UsageError("--live and -m MODEL go together: a replay asks no model.")
    if live and accept:
        raise UsageError("--update is for replays; leave out --live.")
    root = project_root(directory)
    if postgres_database(root, None) is not None:
        raise UsageError(
            "`retinue test` keeps the journals of its copies beside them, and your store is in"
            " Postgres. Leave out RETINUE_STORE, or `store` in your settings."
        )
    recordings = {file: read_test(file, trusted=trusted) for file in files}
    left_out = {file.resolve() for file in files}
    if model is not None:
        return _test_live(root, recordings, left_out, model, as_json)
    outcomes = []
    for file, recording in recordings.items():
        outcome = _replayed(root, file, recording, left_out, accept)
        outcomes.append(outcome)
        if as_json:
            print_json(outcome)
        else:
            _print_replayed(outcome)
    failed = sum(not outcome.ok for outcome in outcomes)
    updated = sum(outcome.updated for outcome in outcomes)
    if not as_json:
        counts = [f"{len(outcomes) - failed} passed"]
        counts += [f"{updated} of them updated"] if updated else []
        counts += [f"{failed} failed"] if failed else []
        print_line(", ".join(counts))
    return 1 if failed else 0


def _replayed(
    root: Path, file: Path, recording: Recording, left_out: set[Path], accept: bool
) -> Replayed:
    with project_copy(root, left_out) as copy:
        found = replay(recording, copy)
    if found is None:
        return Replayed(file=str(file), ok=True)
    if accept:
        with project_copy(root, left_out) as copy:
            update(file, recording, copy)
    return Replayed(
        file=str(file), ok=accept, updated=accept, difference=found.reason, diff=found.diff
    )


def _print_replayed(outcome: Replayed) -> None:
    result = "updated" if outcome.updated else "passed" if outcome.ok else "failed"
    print_line(f"{result}  {outcome.file}")
    if outcome.difference:
        print_line(f"  {outcome.difference}")
    for line in outcome.diff:
        print_line(f"    {line}")


def _test_live(
    root: Path, recordings: dict[Path, Recording], left_out: set[Path], model: str, as_json: bool
) -> int:
    stored = make_state_dir(root) / LIVE_RESULTS
    refuse_links(root, stored)
    try:
        before = msgspec.json.decode(stored.read_bytes(), type=dict[str, Live])
    except (OSError, msgspec.DecodeError):
        before = {}
    results = {}
    for file, recording in recordings.items():
        with project_copy(root, left_out) as copy:
            started = time.monotonic()
            ended = [repeat(command, copy, model) for command in recording.commands]
            took_s = time.monotonic() - started
            tokens, cost_usd = run_async(_usage(copy))
        result = Live(
            file=str(file),
            model=model,
            ok=not any(code for code, _ in ended),
            tokens=tokens,
            cost_usd=cost_usd,
            seconds=round(took_s, 3),
            error=next((_last_line(errors) for code, errors in ended if code), ""),
        )
        results[str(file.resolve())] = result
        if as_json:
            print_json(result)
    stored.write_bytes(msgspec.json.encode(before | results))
    if not as_json:
        rows = [_cells(result, before.get(key)) for key, result in results.items()]
        earlier = [before[key] for key in results if key in before]
        rows.append(_total(list(results.values()), earlier))
        print_table(("RUN", "PASSED", "TOKENS", "COST", "TIME", "BEFORE"), rows)
        for result in results.values():
            if result.error:
                print_error(f"{result.file}: {result.error}")
    return 0 if all(result.ok for result in results.values()) else 1


def _last_line(errors: str) -> str:
    return errors.strip().rpartition("\n")[2].removeprefix("retinue: ")


async def _usage(directory: Path) -> tuple[int, float]:
    """Tokens and cost of all runs in a copy; none if its command ended before a run began."""
    found = Statistics("model")
    if not await has_journal(directory):
        return 0, 0.0
    async with open_journal(directory) as store:
        for row in await store.runs(limit=1_000):
            found.add_run(await read_all(store, row.id))
    tokens = sum(row.tokens_in + row.tokens_out for row in found.rows)
    return tokens, sum(row.cost_usd for row in found.rows)


def _cells(now: Live, before: Live | None) -> tuple[str, ...]:
    earlier = "-"
    if before is not None:
        earlier = f"{before.model}: {'yes' if before.ok else 'no'}, {', '.join(_figures([before]))}"
    return now.file, "yes" if now.ok else "no", *_figures([now]), earlier


def _total(now: list[Live], before: list[Live]) -> tuple[str, ...]:
    earlier = f"{_pass_rate(before)}, {', '.join(_figures(before))}" if before else "-"
    return "all", _pass_rate(now), *_figures(now), earlier


def _pass_rate(results: list[Live]) -> str:
    return f"{sum(result.ok for result in results) / len(results):.0%}"


def _figures(results: list[Live]) -> tuple[str, str, str]:
    cost_usd = sum(result.cost_usd for result in results)
    return (
        f"{sum(result.tokens for result in results):,}",
        format_cost(cost_usd) if cost_usd else "-",
        format_duration(sum(result.seconds for result in results)),
    )
