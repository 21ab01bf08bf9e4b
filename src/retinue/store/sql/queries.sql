-- Every query of the SQLite store. A line `-- name: x` begins one; the comment below it says what for.

-- name: insert_run
-- A run begins, with an empty chain.
INSERT INTO runs (id, kind, task, started_at, epoch, head_hash) VALUES (?, ?, ?, ?, ?, ?)

-- name: insert_agents
-- New agents with their contracts. `{rows}` is as many rows as there are.
INSERT INTO sub_agents (run_id, id, parent_agent_id, step_idx, path, role, context_json, cache_key)
VALUES {rows}

-- name: insert_events
-- A batch of events in one statement: see `Writer` for why it is not executemany.
INSERT INTO events (run_id, seq, agent_id, parent_agent_id, attempt, epoch, time, type, version,
                    summary, payload, hash)
VALUES {rows}

-- name: insert_cut_events
-- A batch of events that have blobs.
INSERT INTO events (run_id, seq, agent_id, parent_agent_id, attempt, epoch, time, type, version,
                    summary, payload, hash, blobs)
VALUES {rows}

-- name: blobs_there
-- Which of a JSON array of hashes there is a blob of.
SELECT hash FROM blobs WHERE hash IN (SELECT value FROM json_each(?))

-- name: insert_blobs
-- New blobs. `{rows}` is as many rows as there are.
INSERT INTO blobs (hash, data) VALUES {rows}

-- name: blobs_of
-- The blobs of a JSON array of hashes.
SELECT hash, data FROM blobs WHERE hash IN (SELECT value FROM json_each(?))

-- name: move_agents
-- Move agents to their next states, one after the other. `{rows}` are (run id, agent id, state).
INSERT INTO moves (run_id, id, state) VALUES {rows}

-- name: finish_run
-- Write the outcome of a run.
UPDATE runs SET status = ?, finished_at = ? WHERE id = ?

-- name: advance_head
-- Move the end of a chain. No row is changed if another owner has moved it: the batch is then undone.
UPDATE runs SET head_seq = ?, head_hash = ? WHERE id = ? AND epoch = ? AND head_seq = ?

-- name: take_over
-- Go on with a run as its next owner: whoever still thinks to be one is refused. An outcome that was
-- written meanwhile has moved the end.
UPDATE runs SET epoch = ? WHERE id = ? AND epoch = ? AND head_seq = ?

-- name: prune_events
-- Delete what an event says was cleaned away.
DELETE FROM events WHERE run_id = ? AND seq < ?

-- name: prune_agents
-- Delete the agents of a run that was cleaned away.
DELETE FROM sub_agents WHERE run_id = ?

-- name: loose_blobs
-- Delete the blobs that no event needs.
DELETE FROM blobs WHERE hash NOT IN
    (SELECT json_extract(place.value, '$[1]') FROM events, json_each(events.blobs) AS place)

-- name: guard_of_blobs
-- The trigger that must be gone for a moment to delete them: it would look through all events for each.
SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = 'blobs_stay'

-- name: run_sizes
-- About how many bytes each journal takes: events, contracts, and all blobs that its events name.
SELECT run_id, sum(size) FROM (
    SELECT run_id, sum(length(CAST(payload AS BLOB)) + length(summary) + 200) AS size
    FROM events GROUP BY run_id
    UNION ALL
    SELECT run_id, sum(length(CAST(context_json AS BLOB)) + 100) FROM sub_agents GROUP BY run_id
    UNION ALL
    SELECT run_id, sum(length(data) + 200) FROM (
        SELECT DISTINCT run_id, json_extract(place.value, '$[1]') AS digest
        FROM events, json_each(events.blobs) AS place
    ) JOIN blobs ON hash = digest GROUP BY run_id
) GROUP BY run_id

-- name: events_after
-- The events of a run behind a cursor.
SELECT seq, run_id, agent_id, parent_agent_id, attempt, epoch, time, type, version, summary, payload,
       hash, blobs
FROM events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?

-- name: events_of_agent
-- The events of one agent. Scans its run, which is fine for what happens once per cached result.
SELECT seq, run_id, agent_id, parent_agent_id, attempt, epoch, time, type, version, summary, payload,
       hash, blobs
FROM events WHERE run_id = ? AND agent_id = ? ORDER BY seq

-- A run's session is in the first event of its journal. It is read from there, since a column would be
-- one more thing to agree with the journal, and files of earlier versions would not have it.

-- name: runs_latest
-- The latest runs, of one kind or of any, newest first.
SELECT id, kind, task, status, started_at, finished_at,
       coalesce(json_array_length(first.payload, '$.agents'),
                (SELECT count(*) FROM sub_agents WHERE run_id = runs.id)),
       head_seq, head_hash, runs.epoch, first.type IS 'run.pruned',
       CASE kind WHEN 'run' THEN coalesce(json_extract(first.payload, '$.earlier[0]'), id) END
FROM runs LEFT JOIN events AS first
     ON first.run_id = id AND json_valid(first.payload)
        AND first.seq = (SELECT min(seq) FROM events WHERE run_id = runs.id AND seq >= 1)
WHERE kind = coalesce(?, kind) ORDER BY started_at DESC, id LIMIT ?

-- name: runs_like
-- Runs whose id begins so (two are enough to know that it is ambiguous); `{` sorts after every id.
SELECT id, kind, task, status, started_at, finished_at,
       coalesce(json_array_length(first.payload, '$.agents'),
                (SELECT count(*) FROM sub_agents WHERE run_id = runs.id)),
       head_seq, head_hash, runs.epoch, first.type IS 'run.pruned',
       CASE kind WHEN 'run' THEN coalesce(json_extract(first.payload, '$.earlier[0]'), id) END
FROM runs LEFT JOIN events AS first
     ON first.run_id = id AND json_valid(first.payload)
        AND first.seq = (SELECT min(seq) FROM events WHERE run_id = runs.id AND seq >= 1)
WHERE id >= ?1 AND id < ?1 || '{' ORDER BY id = ?1 DESC, id LIMIT 2

-- name: runs_of_session
-- The runs of a session with the runs that each goes on from, the longest chain last.
SELECT id, kind, task, status, started_at, finished_at,
       coalesce(json_array_length(first.payload, '$.agents'),
                (SELECT count(*) FROM sub_agents WHERE run_id = runs.id)),
       head_seq, head_hash, runs.epoch, first.type IS 'run.pruned',
       CASE kind WHEN 'run' THEN coalesce(json_extract(first.payload, '$.earlier[0]'), id) END AS session,
       json_extract(first.payload, '$.earlier')
FROM runs LEFT JOIN events AS first
     ON first.run_id = id AND json_valid(first.payload)
        AND first.seq = (SELECT min(seq) FROM events WHERE run_id = runs.id AND seq >= 1)
WHERE session = ? ORDER BY json_array_length(first.payload, '$.earlier'), started_at, id

-- name: agents_of
-- The agents of a run with their contracts, in order of birth.
SELECT run_id, id, parent_agent_id, path, role, state, context_json
FROM sub_agents WHERE run_id = ? ORDER BY length(id), id

-- name: agents_cached
-- The closed agents of a cache key, the latest first.
SELECT run_id, id FROM sub_agents WHERE cache_key = ? AND state = 'closed'
ORDER BY rowid DESC LIMIT ?

-- name: cache_keys
-- Every cache key that there is.
SELECT DISTINCT cache_key FROM sub_agents WHERE cache_key IS NOT NULL

-- name: role_history
-- What the latest closed agents of a role used: tokens in and out, seconds, seconds of the model alone.
-- Those that asked no model (a cached result) are left out.
SELECT coalesce(sum(json_extract(e.payload, '$.usage.tokens_in')), 0) AS tokens_in,
       coalesce(sum(json_extract(e.payload, '$.usage.tokens_out')), 0),
       max(e.time) - min(e.time),
       coalesce(sum(json_extract(e.payload, '$.timing.generating_s')), 0.0)
FROM (SELECT run_id, id FROM sub_agents WHERE role = ? AND state = 'closed'
      ORDER BY rowid DESC LIMIT ?) AS agents
JOIN events AS e ON e.run_id = agents.run_id AND e.agent_id = agents.id
WHERE e.type IN ('agent.subagent_started', 'model.replied', 'agent.subagent_closed')
      AND json_valid(e.payload)
GROUP BY agents.run_id, agents.id HAVING tokens_in > 0

-- name: insert_memory
-- Keep something for later runs.
INSERT INTO memories (kind, text, time, run_id, agent_id) VALUES (?, ?, ?, ?, ?)

-- name: memories_latest
-- The latest memories, of one kind or of any.
SELECT id, kind, text, time, run_id, agent_id
FROM memories WHERE kind = coalesce(?, kind) ORDER BY id DESC LIMIT ?

-- name: memories_matching
-- The memories that fit a full-text expression, best first, then the latest.
SELECT id, kind, memories.text, time, run_id, agent_id
FROM memories_index JOIN memories ON memories.id = memories_index.rowid
WHERE memories_index MATCH ? AND kind = coalesce(?, kind) ORDER BY rank, id DESC LIMIT ?

-- name: memories_alike
-- The memories that any of a JSON array of LIKE patterns fits, most of them first, then the latest.
SELECT memories.id, kind, text, time, run_id, agent_id
FROM memories JOIN json_each(?) AS pattern ON text LIKE pattern.value ESCAPE '\'
WHERE kind = coalesce(?, kind)
GROUP BY memories.id ORDER BY count(*) DESC, memories.id DESC LIMIT ?

-- name: has_full_text
-- Whether this build of SQLite has FTS5.
SELECT count(*) FROM pragma_module_list WHERE name = 'fts5'

-- name: full_text_kept
-- Whether the full-text index is kept up to date.
SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND name = 'memories_index_insert'
