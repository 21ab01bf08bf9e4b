-- What is left of a run whose journal was cleaned away: its row, and the one event that says so.
--
-- `run.pruned` follows in the chain on the events that go. Behind it nothing else is deleted.

DROP TRIGGER events_append_only_delete;

CREATE TRIGGER events_append_only_delete BEFORE DELETE ON events
WHEN OLD.type = 'run.pruned' OR NOT EXISTS (
    SELECT 1 FROM runs JOIN events AS last ON last.run_id = runs.id AND last.seq = runs.head_seq
    WHERE runs.id = OLD.run_id AND last.type = 'run.pruned'
)
BEGIN
    SELECT RAISE(ABORT, 'the journal is append-only: events are never deleted');
END;

DROP TRIGGER sub_agents_stay;

CREATE TRIGGER sub_agents_stay BEFORE DELETE ON sub_agents
WHEN NOT EXISTS (
    SELECT 1 FROM runs JOIN events AS last ON last.run_id = runs.id AND last.seq = runs.head_seq
    WHERE runs.id = OLD.run_id AND last.type = 'run.pruned'
)
BEGIN
    SELECT RAISE(ABORT, 'agents are closed, never deleted');
END;
