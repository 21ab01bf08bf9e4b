-- The journal of every run, and the rows that follow from it.
--
-- Events are the truth. The states in `sub_agents` and `runs` are moved in the same transaction that
-- writes the events they follow from, and an audit compares them.

CREATE TABLE runs (
    id          TEXT PRIMARY KEY,
    kind        TEXT NOT NULL,
    task        TEXT NOT NULL,
    status      TEXT CHECK (status IN ('completed', 'budget_exceeded', 'timeout', 'error',
                                       'cancelled', 'conflict', 'rejected')),
    started_at  REAL NOT NULL,
    finished_at REAL,
    epoch       INTEGER NOT NULL CHECK (epoch >= 1),
    head_seq    INTEGER NOT NULL DEFAULT 0 CHECK (head_seq >= 0),
    head_hash   TEXT NOT NULL CHECK (length(head_hash) = 64),
    CHECK ((status IS NULL) = (finished_at IS NULL))
) WITHOUT ROWID;

CREATE TABLE sub_agents (
    run_id          TEXT NOT NULL REFERENCES runs (id),
    id              TEXT NOT NULL,
    parent_agent_id TEXT,
    step_idx        INTEGER NOT NULL CHECK (step_idx >= 0),
    path            TEXT NOT NULL,
    role            TEXT NOT NULL,
    state           TEXT NOT NULL DEFAULT 'created'
                    CHECK (state IN ('created', 'running', 'waiting_for_merge', 'completed',
                                     'failed', 'closed')),
    context_json    TEXT NOT NULL CHECK (json_valid(context_json)),
    PRIMARY KEY (run_id, id)
);

CREATE TABLE events (
    run_id          TEXT NOT NULL REFERENCES runs (id),
    seq             INTEGER NOT NULL CHECK (seq >= 1),
    agent_id        TEXT NOT NULL,
    parent_agent_id TEXT,
    attempt         INTEGER NOT NULL CHECK (attempt >= 0),
    epoch           INTEGER NOT NULL CHECK (epoch >= 1),
    time            REAL NOT NULL,
    type            TEXT NOT NULL,
    version         INTEGER NOT NULL,
    summary         TEXT NOT NULL,
    payload         TEXT NOT NULL,
    hash            TEXT NOT NULL CHECK (length(hash) = 64),
    PRIMARY KEY (run_id, seq)
) WITHOUT ROWID;

CREATE INDEX runs_by_start ON runs (started_at);

-- Append-only. REPLACE does not fire delete triggers, hence the guard on insert as well.

CREATE TRIGGER events_append_only_insert BEFORE INSERT ON events
WHEN NEW.seq <= (SELECT head_seq FROM runs WHERE id = NEW.run_id)
BEGIN
    SELECT RAISE(ABORT, 'the journal is append-only: that event is already written');
END;

-- With the end of a journal back at its start, the guard above would let events be replaced.
CREATE TRIGGER runs_head BEFORE UPDATE OF epoch, head_seq, head_hash ON runs
WHEN NEW.epoch < OLD.epoch
  OR NEW.head_seq < OLD.head_seq
  OR (NEW.head_seq = OLD.head_seq AND NEW.head_hash <> OLD.head_hash)
BEGIN
    SELECT RAISE(ABORT, 'the end of a journal only moves on');
END;

CREATE TRIGGER events_append_only_update BEFORE UPDATE ON events
BEGIN
    SELECT RAISE(ABORT, 'the journal is append-only: events are never changed');
END;

CREATE TRIGGER events_append_only_delete BEFORE DELETE ON events
BEGIN
    SELECT RAISE(ABORT, 'the journal is append-only: events are never deleted');
END;

-- The lifecycle of an agent: domain/lifecycle.py in SQL.

CREATE TRIGGER sub_agents_birth BEFORE INSERT ON sub_agents
WHEN NEW.state <> 'created'
  OR EXISTS (SELECT 1 FROM sub_agents WHERE run_id = NEW.run_id AND id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'an agent is born once, as created');
END;

CREATE TRIGGER sub_agents_move BEFORE UPDATE OF state ON sub_agents
WHEN NOT (
       (OLD.state = 'created'           AND NEW.state IN ('running', 'failed'))
    OR (OLD.state = 'running'           AND NEW.state IN ('waiting_for_merge', 'failed'))
    OR (OLD.state = 'waiting_for_merge' AND NEW.state IN ('completed', 'failed'))
    OR (OLD.state IN ('completed', 'failed') AND NEW.state = 'closed')
)
BEGIN
    SELECT RAISE(ABORT, 'illegal move of an agent');
END;

CREATE TRIGGER sub_agents_contract
BEFORE UPDATE OF run_id, id, parent_agent_id, step_idx, path, role, context_json ON sub_agents
BEGIN
    SELECT RAISE(ABORT, 'a contract is never changed');
END;

CREATE TRIGGER sub_agents_stay BEFORE DELETE ON sub_agents
BEGIN
    SELECT RAISE(ABORT, 'agents are closed, never deleted');
END;

-- The outcome of a run is written once.

CREATE TRIGGER runs_outcome BEFORE UPDATE OF status, finished_at ON runs
WHEN OLD.status IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'the outcome of a run is written once');
END;

CREATE TRIGGER runs_identity BEFORE UPDATE OF id, kind, task, started_at ON runs
BEGIN
    SELECT RAISE(ABORT, 'a run keeps its identity');
END;

CREATE TRIGGER runs_birth BEFORE INSERT ON runs
WHEN EXISTS (SELECT 1 FROM runs WHERE id = NEW.id)
BEGIN
    SELECT RAISE(ABORT, 'a run is started once');
END;

CREATE TRIGGER runs_stay BEFORE DELETE ON runs
BEGIN
    SELECT RAISE(ABORT, 'runs are finished, never deleted');
END;
