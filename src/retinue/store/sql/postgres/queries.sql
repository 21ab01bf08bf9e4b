-- Every query of the Postgres store, as in `sql/queries.sql`.

-- name: insert_run
-- Start a run, with an empty chain.
INSERT INTO runs (id, kind, task, started_at, epoch, head_hash) VALUES ($1, $2, $3, $4, $5, $6)

-- name: existing_blobs
-- Which of these hashes exist in `blobs`.
SELECT hash FROM blobs WHERE hash = ANY ($1::text[])

-- name: insert_blobs
-- Add blobs. Another process may add one of them at the same time.
INSERT INTO blobs (hash, data) SELECT * FROM unnest($1::text[], $2::bytea[]) ON CONFLICT DO NOTHING

-- name: blobs_of
-- The blobs with these hashes.
SELECT hash, data FROM blobs WHERE hash = ANY ($1::text[])

-- name: move_agents
-- Move agents to their next states, in order.
SELECT move_agents($1, $2, $3)

-- name: finish_run
-- Write the outcome of a run.
UPDATE runs SET status = $1, finished_at = $2 WHERE id = $3

-- name: advance_head
-- Move the end of a chain. If another owner has moved it, no row changes and the batch is rolled back.
UPDATE runs SET head_seq = $1, head_hash = $2 WHERE id = $3 AND epoch = $4 AND head_seq = $5

-- name: take_over
-- Become the next owner of a run; writes of the previous owner are refused from then on.
UPDATE runs SET epoch = $1 WHERE id = $2 AND epoch = $3 AND head_seq = $4

-- name: owners
-- Who has written these runs last.
SELECT id, epoch, head_seq FROM runs WHERE id = ANY ($1)

-- name: prune_events
-- Delete the events that a `run.pruned` event replaces.
DELETE FROM events WHERE run_id = $1 AND seq < $2

-- name: prune_agents
-- Delete the agents of a run that is pruned.
DELETE FROM sub_agents WHERE run_id = $1

-- name: events_after
-- The events of a run after a sequence number.
SELECT seq, run_id, agent_id, parent_agent_id, attempt, epoch, time, type, summary, payload, hash,
       version, blobs
FROM events WHERE run_id = $1 AND seq > $2 ORDER BY seq LIMIT $3

-- name: events_of_agent
-- The events of one agent. Scans its run, which is acceptable once per cached result.
SELECT seq, run_id, agent_id, parent_agent_id, attempt, epoch, time, type, summary, payload, hash,
       version, blobs
FROM events WHERE run_id = $1 AND agent_id = $2 ORDER BY seq

-- name: runs
-- Runs, each with the earlier runs of its session: the part that the queries with `{runs}` share.
SELECT * FROM (
    SELECT id, kind, task, status, started_at, finished_at,
           CASE json_typeof(start.payload -> 'agents') WHEN 'array'
                THEN json_array_length(start.payload -> 'agents')
                ELSE (SELECT count(*) FROM sub_agents WHERE run_id = runs.id) END,
           head_seq, head_hash, runs.epoch,
           CASE kind WHEN 'run' THEN coalesce(start.payload #>> '{earlier,0}', id) END AS session,
           coalesce(start.type = 'run.pruned', false),
           true,
           (SELECT coalesce(max(substr(a.id, 2)::bigint), 0) FROM sub_agents AS a
            WHERE a.run_id = runs.id AND a.id ~ '^.[0-9]{1,18}$'),
           coalesce((SELECT title FROM session_titles AS t
                     WHERE t.session = coalesce(start.payload #>> '{earlier,0}', runs.id)), ''),
           (start.payload -> 'earlier')::text AS earlier
    FROM runs LEFT JOIN LATERAL
         (SELECT type, readable(payload) AS payload FROM events WHERE run_id = runs.id
          ORDER BY seq LIMIT 1) AS start ON true
) AS found

-- name: runs_latest
-- The latest runs, newest first.
{runs}
ORDER BY started_at DESC, id LIMIT $1

-- name: latest_session
-- The latest run of a session.
{runs}
WHERE kind = 'run' ORDER BY started_at DESC, id LIMIT 1

-- name: runs_like
-- Runs whose id has a prefix (two are enough to see that it is ambiguous); `{` sorts after every id.
{runs}
WHERE id >= $1 AND id < $1 || '{' ORDER BY id = $1 DESC, id LIMIT 2

-- name: runs_of_session
-- The runs of a session, each with the runs it continues, the longest chain last.
{runs}
WHERE session = $1 ORDER BY json_array_length(coalesce(earlier, '[]')::json), started_at, id

-- name: agents_of
-- The agents of a run with their contracts, in the order of creation.
SELECT run_id, id, parent_agent_id, path, role, state, context_json
FROM sub_agents WHERE run_id = $1 ORDER BY length(id), id

-- name: agents_cached
-- The closed agents with a cache key, latest first.
SELECT run_id, id FROM sub_agents WHERE cache_key = $1 AND state = 'closed' ORDER BY number DESC LIMIT $2

-- name: cache_keys
-- Every cache key.
SELECT DISTINCT cache_key FROM sub_agents WHERE cache_key IS NOT NULL

-- name: role_history
-- Usage of the latest closed agents of a role: tokens in and out, seconds, seconds of the model alone.
-- Agents that called no model (cached results) are left out.
SELECT * FROM (
    SELECT coalesce(sum((payload #>> '{usage,tokens_in}')::numeric), 0) AS tokens_in,
           coalesce(sum((payload #>> '{usage,tokens_repeated}')::numeric), 0),
           coalesce(sum((payload #>> '{usage,tokens_out}')::numeric), 0),
           max(time) - min(time),
           coalesce(sum((payload #>> '{timing,generating_s}')::double precision), 0)
    FROM (SELECT e.run_id, e.agent_id, e.time, readable(e.payload) AS payload
          FROM (SELECT run_id, id FROM sub_agents WHERE role = $1 AND state = 'closed'
                ORDER BY number DESC LIMIT $2) AS agents
          JOIN events AS e ON e.run_id = agents.run_id AND e.agent_id = agents.id
          WHERE e.type IN ('agent.subagent_started', 'model.replied', 'agent.subagent_closed')) AS told
    GROUP BY run_id, agent_id
) AS used WHERE tokens_in > 0

-- name: run_usage
-- Tokens and cost of a run; of a run that was cleaned away, from its one event.
SELECT coalesce(sum((payload #>> '{usage,tokens_in}')::numeric), 0),
       coalesce(sum((payload #>> '{usage,tokens_repeated}')::numeric), 0),
       coalesce(sum((payload #>> '{usage,tokens_out}')::numeric), 0),
       coalesce(sum((payload #>> '{usage,cost_microusd}')::numeric), 0)
FROM (SELECT readable(payload) AS payload FROM events
      WHERE run_id = $1 AND type IN ('model.replied', 'model.failed', 'run.pruned')) AS told

-- name: insert_memory
-- Store a memory.
INSERT INTO memories (kind, text, time, run_id, agent_id) VALUES ($1, $2, $3, $4, $5) RETURNING id

-- name: memories_latest
-- The latest memories, of one kind or of any.
SELECT id, kind, text, time, run_id, agent_id
FROM memories WHERE kind = coalesce($1, kind) ORDER BY id DESC LIMIT $2

-- name: memories_matching
-- The memories that match any of the words, the last one as a prefix, best first, then latest.
SELECT id, kind, text, time, run_id, agent_id
FROM memories, to_tsquery('simple', $1) AS query
WHERE words @@ query AND kind = coalesce($2, kind)
ORDER BY ts_rank(words, query) DESC, id DESC LIMIT $3

-- name: memories_alike
-- The memories that match any of these LIKE patterns, most matches first, then latest.
SELECT memories.id, kind, text, time, run_id, agent_id
FROM memories JOIN unnest($1::text[]) AS pattern ON text ILIKE pattern
WHERE kind = coalesce($2, kind)
GROUP BY memories.id ORDER BY count(*) DESC, memories.id DESC LIMIT $3

-- name: lock_run
-- Lock a run for this session, which ends with its connection; false if another one has the lock.
SELECT pg_try_advisory_lock($1)

-- name: unlock_run
-- Release the lock on a run.
SELECT pg_advisory_unlock($1)

-- name: is_locked
-- Does any session have that lock? Trying to lock would shut out an owner for a moment.
SELECT EXISTS (SELECT 1 FROM pg_locks
               WHERE locktype = 'advisory' AND objsubid = 1 AND granted
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                 AND (classid::bigint << 32 | objid::bigint) = $1)

-- name: send_message
-- Store a message for the owner of a run, who is notified when it is committed.
WITH added AS (INSERT INTO messages (run_id, text) VALUES ($1, $2) RETURNING run_id)
SELECT pg_notify($3, run_id) FROM added

-- name: take_messages
-- Delete the messages to the owner of a run, and return them in order.
WITH taken AS (DELETE FROM messages WHERE run_id = $1 RETURNING number, text)
SELECT text FROM taken ORDER BY number

-- name: set_title
-- Set the title of a session.
INSERT INTO session_titles (session, title) VALUES ($1, $2)
ON CONFLICT (session) DO UPDATE SET title = excluded.title
RETURNING title

-- name: set_missing_title
-- Set the title of a session that has none.
INSERT INTO session_titles (session, title) VALUES ($1, $2)
ON CONFLICT (session) DO NOTHING
RETURNING title

-- name: delete_title
-- Delete the title of a session.
DELETE FROM session_titles WHERE session = $1

-- name: delete_events
-- Delete the journal of a run.
DELETE FROM events WHERE run_id = $1

-- name: delete_run
-- Delete a run without events and agents.
DELETE FROM runs WHERE id = $1

-- name: delete_unused_blobs
-- Delete the blobs that no event refers to.
DELETE FROM blobs WHERE hash NOT IN
    (SELECT place ->> 1 FROM events, json_array_elements(events.blobs::json) AS place)

-- name: database_size
-- Bytes of the tables and indexes of this schema.
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_class AS c WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'

-- name: run_sizes
-- The approximate size of each journal in bytes; blobs, which runs share, are left out.
SELECT run_id, sum(octet_length(payload::text) + length(summary) + 200)::bigint
FROM events GROUP BY run_id

-- name: run_row
-- The row of a run, as SQLite has it.
SELECT id, kind, task, status, started_at, finished_at, epoch, head_seq, head_hash
FROM runs WHERE id = $1

-- name: agent_rows
-- The agents of a run with their columns, in the order of creation.
SELECT run_id, id, parent_agent_id, step_idx, path, role, context_json, cache_key, state
FROM sub_agents WHERE run_id = $1 ORDER BY number

-- name: agent_states
-- Where the agents of a run are.
SELECT id, state FROM sub_agents WHERE run_id = $1

-- name: event_rows
-- The events of a run after a sequence number, with their columns as they are stored.
SELECT seq, run_id, agent_id, parent_agent_id, attempt, epoch, time, type, summary, payload, hash,
       version, blobs
FROM events WHERE run_id = $1 AND seq > $2 ORDER BY seq

-- name: blob_rows
-- The blobs that the events of a run refer to.
SELECT hash, data FROM blobs WHERE hash IN
    (SELECT place ->> 1 FROM events, json_array_elements(events.blobs::json) AS place
     WHERE run_id = $1 AND seq > $2)

-- name: memory_rows
-- All memories, oldest first.
SELECT kind, text, time, run_id, agent_id FROM memories ORDER BY id

-- name: title_rows
-- All titles of sessions.
SELECT session, title FROM session_titles

-- name: store_facts
-- The version of the database and of its tables, and the number of runs.
SELECT split_part(current_setting('server_version'), ' ', 1), (SELECT number FROM version),
       (SELECT count(*) FROM runs)
