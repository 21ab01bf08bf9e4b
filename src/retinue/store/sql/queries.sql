-- Every query of the SQLite store. A line `-- name: x` starts a query; the comment below says what it does.
-- `own_runs` has the ids of the runs with a valid seal; `store/seals.py` defines it for a connection.

-- name: insert_run
-- Start a run, with an empty chain.
INSERT INTO runs (id, kind, task, started_at, epoch, head_hash) VALUES (?, ?, ?, ?, ?, ?)

-- name: insert_seal
-- Seal a run, or a run whose memories alone are left.
INSERT OR REPLACE INTO seals (run_id, seal) VALUES (?, ?)

-- name: unsealed_runs
-- The runs in the file, and those with memories, that lack a valid seal.
SELECT id FROM runs UNION SELECT run_id FROM memories EXCEPT SELECT run_id FROM own_runs

-- name: own_runs
-- Define the runs with a valid seal.
CREATE TEMP VIEW own_runs AS SELECT run_id FROM main.seals WHERE is_sealed(run_id, seal)

-- name: no_own_runs
-- The same for a file of an earlier version that may not be migrated: it has no seals.
CREATE TEMP VIEW own_runs AS SELECT NULL AS run_id WHERE 0

-- name: insert_agents
-- Add agents with their contracts. `{rows}` stands for the placeholders of all rows.
INSERT INTO sub_agents (run_id, id, parent_agent_id, step_idx, path, role, context_json, cache_key)
VALUES {rows}

-- name: insert_events
-- Add a batch of events in one statement: `Writer` explains why it is not executemany.
INSERT INTO events (seq, run_id, agent_id, parent_agent_id, attempt, epoch, time, type, summary,
                    payload, hash, version)
VALUES {rows}

-- name: insert_events_with_blobs
-- Add a batch of events whose large strings are in `blobs`.
INSERT INTO events (seq, run_id, agent_id, parent_agent_id, attempt, epoch, time, type, summary,
                    payload, hash, version, blobs)
VALUES {rows}

-- name: existing_blobs
-- The hashes of a JSON array that exist in `blobs`.
SELECT hash FROM blobs WHERE hash IN (SELECT value FROM json_each(?))

-- name: insert_blobs
-- Add blobs.
INSERT INTO blobs (hash, data) VALUES {rows}

-- name: blobs_of
-- The blobs of a JSON array of hashes.
SELECT hash, data FROM blobs WHERE hash IN (SELECT value FROM json_each(?))

-- name: move_agents
-- Move agents to their next states, in order. A row is (run id, agent id, state).
INSERT INTO moves (run_id, id, state) VALUES {rows}

-- name: finish_run
-- Write the outcome of a run.
UPDATE runs SET status = ?, finished_at = ? WHERE id = ?

-- name: advance_head
-- Move the end of a chain. If another owner has moved it, no row changes and the batch is rolled back.
UPDATE runs SET head_seq = ?, head_hash = ? WHERE id = ? AND epoch = ? AND head_seq = ?

-- name: take_over
-- Become the next owner of a run; writes of the previous owner are refused from then on. No row changes
-- if the run has ended or was claimed meanwhile.
UPDATE runs SET epoch = ? WHERE id = ? AND epoch = ? AND head_seq = ?

-- name: move_agent
-- Move an agent to its next state, where no batch needs `move_agents`.
UPDATE sub_agents SET state = ? WHERE run_id = ? AND id = ?

-- name: owners
-- Who has written these runs last. The parameter is a JSON array of ids.
SELECT id, epoch, head_seq FROM runs WHERE id IN (SELECT value FROM json_each(?))

-- name: prune_events
-- Delete the events that a `run.pruned` event replaces.
DELETE FROM events WHERE run_id = ? AND seq < ?

-- name: prune_agents
-- Delete the agents of a run that is pruned or deleted.
DELETE FROM sub_agents WHERE run_id = ?

-- name: delete_unused_blobs
-- Delete the blobs that no event refers to.
DELETE FROM blobs WHERE hash NOT IN
    (SELECT json_extract(place.value, '$[1]') FROM events, json_each(events.blobs) AS place)

-- name: trigger_sql
-- The definition of a trigger that a deletion must drop for a moment.
SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = ?

-- name: delete_events
-- Delete the journal of a run.
DELETE FROM events WHERE run_id = ?

-- name: delete_run
-- Delete a run without events and agents.
DELETE FROM runs WHERE id = ?

-- name: delete_seal
-- Delete the seal of a run that has left no memories.
DELETE FROM seals WHERE run_id = ?1 AND NOT EXISTS (SELECT 1 FROM memories WHERE run_id = ?1)

-- name: set_title
-- Set the title of a session.
INSERT OR REPLACE INTO session_titles (session, title) VALUES (?, ?)

-- name: set_missing_title
-- Set the title of a session that has none.
INSERT OR IGNORE INTO session_titles (session, title) VALUES (?, ?)

-- name: delete_title
-- Delete the title of a session.
DELETE FROM session_titles WHERE session = ?

-- name: no_titles
-- An empty table for a file of an earlier version that may not be migrated: it has no titles.
CREATE TEMP TABLE session_titles (session TEXT PRIMARY KEY, title TEXT)

-- name: run_sizes
-- The approximate size of each journal in bytes: events, contracts, and all blobs its events refer to.
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
-- The events of a run after a sequence number.
SELECT seq, run_id, agent_id, parent_agent_id, attempt, epoch, time, type, summary, payload, hash,
       version, blobs
FROM events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?

-- name: events_of_agent
-- The events of one agent. Scans its run, which is acceptable once per cached result.
SELECT seq, run_id, agent_id, parent_agent_id, attempt, epoch, time, type, summary, payload, hash,
       version, blobs
FROM events WHERE run_id = ? AND agent_id = ? ORDER BY seq

-- name: runs
-- Runs, each with the earlier runs of its session: the part that the queries with `{runs}` share. The first
-- event of a run names the earlier ones. There is no column for it: a column could disagree with the
-- journal, and older files do not have one.
SELECT id, kind, task, status, started_at, finished_at,
       coalesce(json_array_length(first.payload, '$.agents'),
                (SELECT count(*) FROM sub_agents WHERE run_id = runs.id)),
       head_seq, head_hash, runs.epoch,
       CASE kind WHEN 'run' THEN coalesce(json_extract(first.payload, '$.earlier[0]'), id) END AS session,
       first.type IS 'run.pruned',
       EXISTS (SELECT 1 FROM own_runs WHERE run_id = runs.id) AS sealed,
       (SELECT coalesce(max(CAST(substr(id, 2) AS INTEGER)), 0) FROM sub_agents WHERE run_id = runs.id),
       coalesce((SELECT title FROM session_titles
                 WHERE session = coalesce(json_extract(first.payload, '$.earlier[0]'), id)), ''),
       json_extract(first.payload, '$.earlier')
FROM runs LEFT JOIN events AS first
     ON first.run_id = id AND json_valid(first.payload)
        AND first.seq = (SELECT min(seq) FROM events WHERE run_id = runs.id AND seq >= 1)

-- name: runs_latest
-- The latest runs, newest first.
{runs}
ORDER BY started_at DESC, id LIMIT ?

-- name: latest_session
-- The latest run of a session: of those with a valid seal, and if there are none, of all.
{runs}
WHERE kind = 'run' ORDER BY sealed DESC, started_at DESC, id LIMIT 1

-- name: runs_like
-- Runs whose id has a prefix (two are enough to see that it is ambiguous); `{` sorts after every id.
{runs}
WHERE id >= ?1 AND id < ?1 || '{' ORDER BY id = ?1 DESC, id LIMIT 2

-- name: runs_of_session
-- The runs of a session, each with the runs it continues: sealed ones last, of these the longest chain.
{runs}
WHERE session = ? ORDER BY sealed, json_array_length(first.payload, '$.earlier'), started_at, id

-- name: agents_of
-- The agents of a run with their contracts, in the order of creation.
SELECT run_id, id, parent_agent_id, path, role, state, context_json
FROM sub_agents WHERE run_id = ? ORDER BY length(id), id

-- name: agents_cached
-- The closed agents with a cache key, of runs with a valid seal, latest first.
SELECT run_id, id FROM sub_agents WHERE cache_key = ? AND state = 'closed'
       AND EXISTS (SELECT 1 FROM own_runs WHERE run_id = sub_agents.run_id)
ORDER BY rowid DESC LIMIT ?

-- name: cache_keys
-- Every cache key.
SELECT DISTINCT cache_key FROM sub_agents WHERE cache_key IS NOT NULL

-- name: role_history
-- Usage of the latest closed agents of a role: tokens in and out, seconds, seconds of the model alone.
-- Agents that called no model (cached results), or whose runs have no valid seal, are left out.
SELECT coalesce(sum(json_extract(e.payload, '$.usage.tokens_in')), 0) AS tokens_in,
       coalesce(sum(json_extract(e.payload, '$.usage.tokens_repeated')), 0) AS tokens_repeated,
       coalesce(sum(json_extract(e.payload, '$.usage.tokens_out')), 0),
       max(e.time) - min(e.time),
       coalesce(sum(json_extract(e.payload, '$.timing.generating_s')), 0.0)
FROM (SELECT run_id, id FROM sub_agents WHERE role = ? AND state = 'closed'
      AND EXISTS (SELECT 1 FROM own_runs WHERE run_id = sub_agents.run_id)
      ORDER BY rowid DESC LIMIT ?) AS agents
JOIN events AS e ON e.run_id = agents.run_id AND e.agent_id = agents.id
WHERE e.type IN ('agent.subagent_started', 'model.replied', 'agent.subagent_closed')
      AND json_valid(e.payload)
GROUP BY agents.run_id, agents.id HAVING tokens_in > 0

-- name: run_usage
-- Tokens and cost of a run; of a run that was cleaned away, from its one event.
SELECT coalesce(sum(json_extract(payload, '$.usage.tokens_in')), 0),
       coalesce(sum(json_extract(payload, '$.usage.tokens_repeated')), 0),
       coalesce(sum(json_extract(payload, '$.usage.tokens_out')), 0),
       coalesce(sum(json_extract(payload, '$.usage.cost_microusd')), 0)
FROM events
WHERE run_id = ? AND type IN ('model.replied', 'model.failed', 'run.pruned') AND json_valid(payload)

-- name: insert_memory
-- Store a memory.
INSERT INTO memories (kind, text, time, run_id, agent_id) VALUES (?, ?, ?, ?, ?)

-- name: memories_latest
-- The latest memories, of one kind or of any. Memories of runs without a valid seal are never found.
SELECT id, kind, text, time, run_id, agent_id
FROM memories WHERE kind = coalesce(?, kind)
     AND EXISTS (SELECT 1 FROM own_runs WHERE run_id = memories.run_id)
ORDER BY id DESC LIMIT ?

-- name: memories_matching
-- The memories that match a full-text expression, best first, then latest.
SELECT id, kind, memories.text, time, run_id, agent_id
FROM memories_index JOIN memories ON memories.id = memories_index.rowid
WHERE memories_index MATCH ? AND kind = coalesce(?, kind)
      AND EXISTS (SELECT 1 FROM own_runs WHERE run_id = memories.run_id)
ORDER BY rank, id DESC LIMIT ?

-- name: memories_alike
-- The memories that match any of a JSON array of LIKE patterns, most matches first, then latest.
SELECT memories.id, kind, text, time, run_id, agent_id
FROM memories JOIN json_each(?) AS pattern ON text LIKE pattern.value ESCAPE '\'
WHERE kind = coalesce(?, kind)
      AND EXISTS (SELECT 1 FROM own_runs WHERE run_id = memories.run_id)
GROUP BY memories.id ORDER BY count(*) DESC, memories.id DESC LIMIT ?

-- name: has_full_text
-- Whether this build of SQLite has FTS5.
SELECT count(*) FROM pragma_module_list WHERE name = 'fts5'

-- name: full_text_kept
-- Whether the triggers that maintain the full-text index exist.
SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND name = 'memories_index_insert'

-- name: run_row
-- The row of a run, for a copy in another store.
SELECT id, kind, task, status, started_at, finished_at, epoch, head_seq, head_hash
FROM runs WHERE id = ?

-- name: agent_rows
-- The agents of a run with their columns, in the order of creation.
SELECT run_id, id, parent_agent_id, step_idx, path, role, context_json, cache_key, state
FROM sub_agents WHERE run_id = ? ORDER BY rowid

-- name: agent_states
-- Where the agents of a run are.
SELECT id, state FROM sub_agents WHERE run_id = ?

-- name: event_rows
-- The events of a run after a sequence number, with their columns as they are stored.
SELECT seq, run_id, agent_id, parent_agent_id, attempt, epoch, time, type, summary, payload, hash,
       version, blobs
FROM events WHERE run_id = ? AND seq > ? ORDER BY seq

-- name: blob_rows
-- The blobs that the events of a run refer to.
SELECT hash, data FROM blobs WHERE hash IN
    (SELECT json_extract(place.value, '$[1]')
     FROM events, json_each(events.blobs) AS place WHERE run_id = ? AND seq > ?)

-- name: memory_rows
-- All memories of runs with a valid seal, oldest first.
SELECT kind, text, time, run_id, agent_id FROM memories
WHERE EXISTS (SELECT 1 FROM own_runs WHERE run_id = memories.run_id) ORDER BY id

-- name: title_rows
-- All titles of sessions.
SELECT session, title FROM session_titles

-- name: store_facts
-- The version of the database and of its tables, and the number of runs.
SELECT sqlite_version(), user_version, (SELECT count(*) FROM runs) FROM pragma_user_version
