-- Every query of the SQLite store. A line `-- name: x` begins one; the comment below it says what for.

-- name: insert_run
-- A run begins, with an empty chain.
INSERT INTO runs (id, kind, task, started_at, epoch, head_hash) VALUES (?, ?, ?, ?, ?, ?)

-- name: insert_agents
-- New agents with their contracts. `{rows}` is as many rows as there are.
INSERT INTO sub_agents (run_id, id, parent_agent_id, step_idx, path, role, context_json)
VALUES {rows}

-- name: insert_events
-- A batch of events in one statement: see `Writer` for why it is not executemany.
INSERT INTO events (run_id, seq, agent_id, parent_agent_id, attempt, epoch, time, type, version,
                    summary, payload, hash)
VALUES {rows}

-- name: advance_head
-- Move the end of a chain. No row is changed if another owner has moved it: the batch is then undone.
UPDATE runs SET head_seq = ?, head_hash = ? WHERE id = ? AND epoch = ? AND head_seq = ?

-- name: events_after
-- The events of a run behind a cursor.
SELECT seq, run_id, agent_id, parent_agent_id, attempt, epoch, time, type, version, summary, payload,
       hash
FROM events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?

-- name: runs_latest
-- The latest runs, newest first.
SELECT id, kind, task, status, started_at, finished_at,
       (SELECT count(*) FROM sub_agents WHERE run_id = runs.id), head_seq, head_hash
FROM runs ORDER BY started_at DESC, id LIMIT ?

-- name: runs_like
-- Runs whose id begins so (two are enough to know that it is ambiguous); `{` sorts after every id.
SELECT id, kind, task, status, started_at, finished_at,
       (SELECT count(*) FROM sub_agents WHERE run_id = runs.id), head_seq, head_hash
FROM runs WHERE id >= ?1 AND id < ?1 || '{' ORDER BY id = ?1 DESC, id LIMIT 2

-- name: agents_of
-- The agents of a run with their contracts, in order of birth.
SELECT run_id, id, parent_agent_id, path, role, state, context_json
FROM sub_agents WHERE run_id = ? ORDER BY length(id), id
