"""Telemetry in a separate process, which follows the journal and sends spans and metrics of it.

In the runtime's own process, spans and metrics took as long as half of the work of a child. So the
runtime only writes a line to the process for each run to follow, and waits for it at the end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from retinue.config.environment import Environment
from retinue.config.telemetry import TelemetrySettings, read_telemetry_settings
from retinue.domain.events import TYPES, Event, RunFinished, RunResumed, RunStarted
from retinue.domain.trace_context import span_of
from retinue.errors import StoreError
from retinue.model_registry import redaction_of
from retinue.ports.store import Store
from retinue.processes.child import OutputPipe, ProcessSpec, child_process, finish_within
from retinue.processes.function_process import MODULE_PROGRAM, python_command
from retinue.project import open_journal
from retinue.telemetry.journal_metrics import TokensLeft
from retinue.telemetry.spans import SpanFold

if TYPE_CHECKING:
    from retinue.telemetry.exporter import Exporter

END_S = 6.0
"""How long the end of a runtime waits, most of it for a collector that does not answer."""
POLL_S = 0.25
_BEGINNINGS = frozenset({TYPES[RunStarted], TYPES[RunResumed]})
_FINISHED = TYPES[RunFinished]

_log = logging.getLogger("retinue.telemetry")


class _Follow(msgspec.Struct, frozen=True):
    """Follow a run. Its events up to `after` were sent before."""

    run: str
    after: int


class _Report(msgspec.Struct, frozen=True):
    sent: int
    lost: int


class TelemetryProcess:
    """Tells the process about runs. A `ports.telemetry.Telemetry`."""

    def __init__(self, pipe: int, caller: str) -> None:
        self.caller = caller
        self._pipe = pipe
        self._traceparents: dict[str, str] = {}

    def on_event(self, event: Event) -> None:
        if event.type in _BEGINNINGS:
            line = msgspec.json.encode(_Follow(event.run_id, event.seq - 1)) + b"\n"
            # The pipe is full or broken only if the process hangs or has failed.
            with suppress(OSError):
                os.write(self._pipe, line)

    def resume(self, run_id: str, started: RunStarted) -> None:
        self._traceparents[run_id] = started.traceparent

    def traceparent(self, run_id: str, seq: int) -> str:
        begun_by = self._traceparents.get(run_id, self.caller)
        return str(span_of(run_id, str(seq), traceparent=begun_by))


@asynccontextmanager
async def telemetry_process(
    root: Path, environment: Environment, wanted: TelemetrySettings
) -> AsyncIterator[TelemetryProcess]:
    """Start the process. At the end, wait until it has sent what it can."""
    said = bytearray()
    pipe, write_end = os.pipe()
    try:
        os.set_blocking(write_end, False)
        spec = ProcessSpec(
            argv=python_command(MODULE_PROGRAM, (sys.path, __name__, str(root))),
            environment=environment.variables,
            directory="/",
            stdin=pipe,
        )
        on_console = "console" in (wanted.traces, wanted.metrics)
        with OutputPipe(said.extend) as output:
            async with child_process(
                spec, stdout=output.write_fd, stderr=2 if on_console else subprocess.DEVNULL
            ) as process:
                output.close_write_end()
                pipe = _closed(pipe)
                try:
                    yield TelemetryProcess(write_end, wanted.caller)
                finally:
                    write_end = _closed(write_end)
                    await finish_within(process.wait(), END_S)
                    await output.drained(0.1)
    finally:
        _closed(pipe)
        _closed(write_end)
    _warn(bytes(said))


def _closed(fd: int) -> int:
    if fd >= 0:
        os.close(fd)
    return -1


def _warn(said: bytes) -> None:
    try:
        report = msgspec.json.decode(said, type=_Report)
    except msgspec.DecodeError:
        _log.warning("telemetry: the process that sends it failed; some of it may be missing")
        return
    if report.lost:
        total = report.sent + report.lost
        _log.warning("telemetry: %d of %d spans were not sent", report.lost, total)


def main(root: str) -> None:
    """In the process: runs to follow on standard input, a report on standard output."""
    asyncio.run(_follow_all(Path(root), Environment.current()))


async def _follow_all(root: Path, environment: Environment) -> None:
    from retinue.telemetry.exporter import Exporter, metric_exporter, span_exporter

    wanted, redact = read_telemetry_settings(environment), redaction_of(root, environment).redact
    content = redact if wanted.content else None
    exporter = Exporter(
        traces=span_exporter(wanted.traces),
        metrics=metric_exporter(wanted.metrics),
        new_fold=partial(SpanFold, redact=content, redact_error=redact),
        queue=wanted.queue,
    )
    followed: dict[str, tuple[int, int]] = {}
    """The last event that was read, and the last that was sent before, of each run."""
    tokens_left = TokensLeft()
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    is_over = False
    while not is_over:
        try:
            async with asyncio.timeout(POLL_S):
                line = await lines.readline()
        except TimeoutError:
            line = None
        if line == b"":
            is_over = True
        elif line is not None:
            run = msgspec.json.decode(line, type=_Follow)
            followed[run.run] = (0, run.after)
            continue
        if followed:
            # The journal may be locked or gone; the next round tries again.
            with suppress(StoreError):
                async with open_journal(root, environment) as store:
                    await _read(store, followed, exporter)
                    left = {run_id: await tokens_left.of(store, run_id) for run_id in followed}
                    exporter.remaining = {k: v for k, v in left.items() if v is not None}
    exporter.close()
    sys.stdout.buffer.write(msgspec.json.encode(_Report(exporter.sent, exporter.lost)))


async def _read(store: Store, followed: dict[str, tuple[int, int]], exporter: Exporter) -> None:
    for run_id, (seq, sent_before) in list(followed.items()):
        while events := await store.events(run_id, after=seq):
            for event in events:
                exporter.on_event(event, send=event.seq > sent_before)
            seq = events[-1].seq
            followed[run_id] = seq, sent_before
            if events[-1].type == _FINISHED:
                del followed[run_id]
                break
