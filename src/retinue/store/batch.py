"""What goes into one transaction, as the values that its statements take."""

from __future__ import annotations

from retinue.domain.events import STATE_AFTER, Event
from retinue.ports.store import NewAgent
from retinue.store.blobs import Cut, write_places

# What somebody may write who has not begun the run: they own it from there on.
_OF_ANYBODY = frozenset({"run.resumed", "run.pruned", "run.steps_undone", "run.steps_redone"})
# As plain texts: whatever else sqlite3 gets it first looks for an adapter of.
_STATE_AFTER = {kind: str(state) for kind, state in STATE_AFTER.items()}


class Batch:
    """Filled by the event loop, and then written by the thread: never both.

    An event is taken apart when it is added. It is in the caches of the processor then, and goes
    with its end; the thread would have to fetch it again.
    """

    def __init__(self) -> None:
        self.count = 0
        self.heads: dict[str, Event] = {}
        """The last event of each run."""
        self.owned: list[Event] = []
        """Those by which somebody begins a run, or may take it over."""
        self.agents: list[object] = []
        self.events: list[object] = []
        """The columns of one after the other, without `blobs`."""
        self.cut_events: list[object] = []
        """Those that have blobs. None is no value for the others: sqlite3 would look for an adapter
        of each, which takes it as long as two columns.
        """
        self.strings: dict[str, bytes] = {}
        """What was cut out of them, by its hash."""
        self.packed: dict[str, bytes] = {}
        """Those of the strings that may be new."""
        self.moves: list[object] = []
        """Those of agents to another state.

        A trigger on `events` would do without this, and cost every event 2 µs.
        """

    def add(self, event: Event, new_agent: NewAgent | None, cut: Cut | None) -> None:
        run_id, kind = event.run_id, event.type
        columns = (
            run_id,
            event.seq,
            event.agent_id,
            event.parent_agent_id,
            event.attempt,
            event.epoch,
            event.time,
            kind,
            event.version,
            event.summary,
            str(event.payload if cut is None else cut.payload, "utf-8"),
            event.hash,
        )
        # Only now, since a payload that is no text is refused: it is no part of the batch then.
        self.count += 1
        self.heads[run_id] = event
        if cut is None:
            self.events += columns
        else:
            self.cut_events += (*columns, write_places(cut.places))
            self.strings |= cut.strings
        if new_agent is not None:
            self.agents += (
                new_agent.run_id,
                new_agent.agent_id,
                new_agent.parent_agent_id,
                new_agent.step_idx,
                new_agent.path,
                new_agent.role,
                new_agent.context_json,
                new_agent.cache_key,
            )
        if kind in _STATE_AFTER:
            self.moves += (run_id, event.agent_id, _STATE_AFTER[kind])
        if event.seq == 1 or kind in _OF_ANYBODY:
            self.owned.append(event)
