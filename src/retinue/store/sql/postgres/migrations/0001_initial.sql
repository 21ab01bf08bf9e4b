-- The tables and guards of `sql/migrations` (SQLite), for Postgres. A schema belongs to one project, so
-- there are no seals: whoever may write the database may use its runs.
--
-- Ids are compared byte by byte (COLLATE "C"). Texts that may have NUL bytes are escaped by
-- `store/postgres/texts.py`. Payloads are `json`: `jsonb` would refuse \u0000 and change the bytes.

CREATE TABLE version (number integer NOT NULL);

CREATE TABLE runs (
    id          text COLLATE "C" PRIMARY KEY,
    kind        text NOT NULL,
    task        text NOT NULL,
    status      text CHECK (status IN ('completed', 'budget_exceeded', 'timeout', 'error',
                                       'cancelled', 'conflict', 'rejected')),
    started_at  double precision NOT NULL,
    finished_at double precision,
    epoch       bigint NOT NULL CHECK (epoch >= 1),
    head_seq    bigint NOT NULL DEFAULT 0 CHECK (head_seq >= 0),
    head_hash   text NOT NULL CHECK (length(head_hash) = 64),
    CHECK ((status IS NULL) = (finished_at IS NULL))
);

CREATE INDEX runs_by_start ON runs (started_at);

CREATE TABLE sub_agents (
    run_id          text COLLATE "C" NOT NULL REFERENCES runs (id),
    id              text COLLATE "C" NOT NULL,
    parent_agent_id text,
    step_idx        bigint NOT NULL CHECK (step_idx >= 0),
    path            text NOT NULL,
    role            text NOT NULL,
    state           text NOT NULL DEFAULT 'created'
                    CHECK (state IN ('created', 'running', 'waiting_for_merge', 'completed', 'failed',
                                     'closed')),
    context_json    json NOT NULL,
    cache_key       text CHECK (cache_key <> ''),
    number          bigserial,
    PRIMARY KEY (run_id, id)
);

CREATE INDEX sub_agents_by_cache_key ON sub_agents (cache_key) WHERE cache_key IS NOT NULL;

CREATE TABLE events (
    run_id          text COLLATE "C" NOT NULL REFERENCES runs (id),
    seq             bigint NOT NULL CHECK (seq >= 1),
    agent_id        text COLLATE "C" NOT NULL,
    parent_agent_id text,
    attempt         bigint NOT NULL CHECK (attempt >= 0),
    epoch           bigint NOT NULL CHECK (epoch >= 1),
    time            double precision NOT NULL,
    type            text NOT NULL,
    version         bigint NOT NULL,
    summary         text NOT NULL,
    payload         json NOT NULL,
    hash            text NOT NULL CHECK (length(hash) = 64),
    blobs           text,
    PRIMARY KEY (run_id, seq)
);

CREATE TABLE blobs (
    hash text COLLATE "C" PRIMARY KEY CHECK (length(hash) = 64),
    data bytea NOT NULL
);

CREATE TABLE session_titles (
    session text COLLATE "C" PRIMARY KEY,
    title   text NOT NULL CHECK (title <> '')
);

CREATE TABLE memories (
    id       bigserial PRIMARY KEY,
    kind     text NOT NULL CHECK (kind ~ '^[a-z_]{1,40}$'),
    text     text NOT NULL CHECK (text ~ '\S'),
    time     double precision NOT NULL,
    run_id   text NOT NULL,
    agent_id text NOT NULL,
    words    tsvector GENERATED ALWAYS AS (to_tsvector('simple', left(text, 200000))) STORED
);

CREATE INDEX memories_by_words ON memories USING gin (words);

-- Commands to the process that works on a run, which reads and deletes them.
CREATE TABLE messages (
    number bigserial PRIMARY KEY,
    run_id text COLLATE "C" NOT NULL,
    text   text NOT NULL
);

-- A payload from which ids and numbers can be read: reading any value of JSON with \u0000 fails.
CREATE FUNCTION readable(payload json) RETURNS json LANGUAGE sql IMMUTABLE STRICT AS
$$ SELECT replace(replace(payload::text, '\\', '//'), '\u0000', '')::json $$;

-- Every guard fails with its argument.
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION '%', TG_ARGV[0]; END $$;

-- Append-only. One check for each statement: a batch is one COPY.

CREATE FUNCTION refuse_written_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM added JOIN runs ON runs.id = added.run_id WHERE added.seq <= head_seq) THEN
        RAISE EXCEPTION 'the journal is append-only: that event is already written';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER events_append_only_insert AFTER INSERT ON events
REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION refuse_written_events();

CREATE TRIGGER events_append_only_update BEFORE UPDATE ON events
FOR EACH STATEMENT EXECUTE FUNCTION refuse('the journal is append-only: events are never changed');

-- `run.pruned` follows in the chain on the events that go. Behind it nothing else is deleted.
CREATE FUNCTION is_pruned(run text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM runs JOIN events AS last ON last.run_id = runs.id
                   AND last.seq = runs.head_seq WHERE runs.id = run AND last.type = 'run.pruned')
$$;

CREATE FUNCTION refuse_unpruned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF is_pruned(OLD.run_id) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '%', TG_ARGV[0];
END $$;

CREATE TRIGGER events_append_only_delete BEFORE DELETE ON events
FOR EACH ROW WHEN (OLD.type <> 'run.pruned')
EXECUTE FUNCTION refuse_unpruned('the journal is append-only: events are never deleted');

CREATE TRIGGER events_pruned_stay BEFORE DELETE ON events
FOR EACH ROW WHEN (OLD.type = 'run.pruned')
EXECUTE FUNCTION refuse('the journal is append-only: events are never deleted');

CREATE TRIGGER events_truncate BEFORE TRUNCATE ON events
FOR EACH STATEMENT EXECUTE FUNCTION refuse('the journal is append-only: events are never deleted');

-- The lifecycle of an agent: domain/lifecycle.py in SQL.

CREATE TRIGGER sub_agents_birth BEFORE INSERT ON sub_agents
FOR EACH ROW WHEN (NEW.state <> 'created')
EXECUTE FUNCTION refuse('an agent is born once, as created');

CREATE TRIGGER sub_agents_move BEFORE UPDATE OF state ON sub_agents
FOR EACH ROW WHEN (NOT (
       (OLD.state = 'created'           AND NEW.state IN ('running', 'failed'))
    OR (OLD.state = 'running'           AND NEW.state IN ('waiting_for_merge', 'failed'))
    OR (OLD.state = 'waiting_for_merge' AND NEW.state IN ('completed', 'failed'))
    OR (OLD.state IN ('completed', 'failed') AND NEW.state = 'closed')
))
EXECUTE FUNCTION refuse('illegal move of an agent');

CREATE TRIGGER sub_agents_contract BEFORE UPDATE OF
    run_id, id, parent_agent_id, step_idx, path, role, context_json, cache_key, number ON sub_agents
FOR EACH STATEMENT EXECUTE FUNCTION refuse('a contract is never changed');

CREATE TRIGGER sub_agents_stay BEFORE DELETE ON sub_agents
FOR EACH ROW EXECUTE FUNCTION refuse_unpruned('agents are closed, never deleted');

CREATE TRIGGER sub_agents_truncate BEFORE TRUNCATE ON sub_agents
FOR EACH STATEMENT EXECUTE FUNCTION refuse('agents are closed, never deleted');

-- Move agents to their next states, in order: an agent may move several times in one batch.
CREATE FUNCTION move_agents(run_ids text[], ids text[], states text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. cardinality(ids) LOOP
        UPDATE sub_agents SET state = states[i] WHERE run_id = run_ids[i] AND id = ids[i];
    END LOOP;
END $$;

-- With the end of a journal back at its start, the guard on events would let events be replaced.

CREATE TRIGGER runs_head BEFORE UPDATE OF epoch, head_seq, head_hash ON runs
FOR EACH ROW WHEN (NEW.epoch < OLD.epoch OR NEW.head_seq < OLD.head_seq
    OR (NEW.head_seq = OLD.head_seq AND NEW.head_hash <> OLD.head_hash))
EXECUTE FUNCTION refuse('the end of a journal only moves on');

CREATE TRIGGER runs_outcome BEFORE UPDATE OF status, finished_at ON runs
FOR EACH ROW WHEN (OLD.status IS NOT NULL)
EXECUTE FUNCTION refuse('the outcome of a run is written once');

CREATE TRIGGER runs_identity BEFORE UPDATE OF id, kind, task, started_at ON runs
FOR EACH STATEMENT EXECUTE FUNCTION refuse('a run keeps its identity');

CREATE TRIGGER runs_stay BEFORE DELETE ON runs
FOR EACH STATEMENT EXECUTE FUNCTION refuse('runs are finished, never deleted');

CREATE TRIGGER runs_truncate BEFORE TRUNCATE ON runs
FOR EACH STATEMENT EXECUTE FUNCTION refuse('runs are finished, never deleted');

CREATE TRIGGER blobs_unchanged BEFORE UPDATE ON blobs
FOR EACH STATEMENT EXECUTE FUNCTION refuse('a blob is what its hash says');

CREATE TRIGGER blobs_stay BEFORE DELETE OR TRUNCATE ON blobs
FOR EACH STATEMENT EXECUTE FUNCTION refuse('a blob goes when no event needs it, by retinue clean');
