"""The events of one transaction, as the values that its SQL statements take."""

from __future__ import annotations

import msgspec

from retinue.domain.events import STATE_AFTER, Event
from retinue.ports.store import NewAgent
from retinue.store.blobs import Extracted, encode_refs

# Events that a process may write to a run that another process started: it owns the run from then.
_CLAIMING = frozenset({"run.resumed", "run.pruned", "run.steps_undone", "run.steps_redone"})
# Plain strings: for any other type, sqlite3 first looks for an adapter.
_STATE_AFTER = {kind: str(state) for kind, state in STATE_AFTER.items()}
_PAYLOAD = Event.__struct_fields__.index("payload") - len(Event.__struct_fields__)


class Batch:
    """Filled by the event loop, then written by the thread; never both at once.

    An event is split into columns when it is added: it is in the processor's caches then, and is
    freed afterwards. The thread would have to load it again.
    """

    def __init__(self) -> None:
        self.count = 0
        self.heads: dict[str, Event] = {}
        """The last event of each run."""
        self.claims: list[Event] = []
        """Events with which a process starts a run or takes it over."""
        self.agents: list[object] = []
        self.events: list[object] = []
        """The columns of all events in one list, without the column `blobs`."""
        self.events_with_blobs: list[object] = []
        """Kept apart so that the others need no None: sqlite3 would look for an adapter for each,
        which takes as long as two columns.
        """
        self.strings: dict[str, bytes] = {}
        """Large strings of the payloads, by hash."""
        self.compressed: dict[str, bytes] = {}
        """The strings that may be new to the database, compressed."""
        self.moves: list[object] = []
        """State changes of agents.

        A trigger on `events` could make them, and would cost every event 2 µs.
        """

    def add(self, event: Event, new_agent: NewAgent | None, extracted: Extracted | None) -> None:
        # First: a payload that is not UTF-8 is refused.
        payload = str(event.payload if extracted is None else extracted.payload, "utf-8")
        run_id, kind = event.run_id, event.type
        self.count += 1
        self.heads[run_id] = event
        columns = self.events if extracted is None else self.events_with_blobs
        columns += msgspec.structs.astuple(event)
        columns[_PAYLOAD] = payload
        if extracted is not None:
            columns.append(encode_refs(extracted.refs))
            self.strings |= extracted.strings
        if new_agent is not None:
            self.agents += msgspec.structs.astuple(new_agent)
        if kind in _STATE_AFTER:
            self.moves += (run_id, event.agent_id, _STATE_AFTER[kind])
        if event.seq == 1 or kind in _CLAIMING:
            self.claims.append(event)
