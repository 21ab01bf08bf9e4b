"""Progress as log records on standard error: one line per event, with a level."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from enum import IntEnum

import msgspec

from retinue.domain import events as ev
from retinue.domain.hook import HookOutcome
from retinue.domain.result import Status
from retinue.domain.trace_context import span_of
from retinue.interfaces.cli.terminal.output import printable_text
from retinue.interfaces.cli.terminal.progress import Progress


class Level(IntEnum):
    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class LogRecord(msgspec.Struct, frozen=True, kw_only=True):
    time: str
    level: str
    event: str
    run: str
    agent: str
    seq: int
    message: str
    trace_id: str


class LogLines(Progress):
    """Writes each event of at least `level`, as text or as one JSON object."""

    def __init__(self, *, as_json: bool, level: Level) -> None:
        self._as_json = as_json
        self._level = level
        self._traces: dict[str, str] = {}

    def on_past_event(self, event: ev.Event) -> None:
        self._trace_of(event)

    def on_event(self, event: ev.Event) -> None:
        trace_id = self._trace_of(event)
        level = level_of(event)
        if level < self._level:
            return
        record = LogRecord(
            time=datetime.fromtimestamp(event.time, UTC).isoformat(timespec="milliseconds"),
            level=level.name.lower(),
            event=event.type,
            run=event.run_id,
            agent=event.agent_id,
            seq=event.seq,
            message=event.summary,
            trace_id=trace_id,
        )
        if self._as_json:
            self._write(msgspec.json.encode(record).decode())
        else:
            head = f"{record.time} {record.level.upper():7} {record.run} {record.agent}"
            self._write(f"{head} {record.event}: {record.message}")

    def on_wait(self, reason: str) -> None:
        pass  # Nothing has happened yet.

    def _trace_of(self, event: ev.Event) -> str:
        if event.run_id not in self._traces:
            fact = event.fact
            caller = fact.traceparent if isinstance(fact, ev.RunStarted) else ""
            self._traces[event.run_id] = span_of(event.run_id, traceparent=caller).trace_id
        return self._traces[event.run_id]

    def _write(self, line: str) -> None:
        sys.stderr.write(f"{printable_text(line, sys.stderr)}\n")
        sys.stderr.flush()


_LEVELS: dict[type[ev.Fact], Level] = {
    ev.TurnStarted: Level.DEBUG,
    ev.ModelReplied: Level.DEBUG,
    ev.ToolStarted: Level.DEBUG,
    ev.ToolFinished: Level.DEBUG,
    ev.ContextCompacted: Level.DEBUG,
    ev.WorktreeCreated: Level.DEBUG,
    ev.MessageReceived: Level.DEBUG,
    ev.ModelFailed: Level.WARNING,
    ev.ToolDenied: Level.WARNING,
    ev.LimitReached: Level.WARNING,
    ev.CircuitBreakerTripped: Level.WARNING,
    ev.SilenceDetected: Level.WARNING,
    ev.ClockGapDetected: Level.WARNING,
    ev.RunSuspended: Level.WARNING,
    ev.AgentFailed: Level.ERROR,
}


def level_of(event: ev.Event) -> Level:
    """The level of an event in the log."""
    match event.fact:
        case ev.RunFinished(status=status) if status is not Status.COMPLETED:
            return Level.ERROR
        case ev.HookFinished(outcome=outcome):
            return Level.WARNING if outcome == HookOutcome.FAILED else Level.DEBUG
        case ev.CheckFinished(check=check) if not check.ok:
            return Level.WARNING
        case fact:
            return _LEVELS.get(type(fact), Level.INFO)
