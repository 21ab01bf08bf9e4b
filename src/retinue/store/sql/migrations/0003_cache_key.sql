-- What an agent was asked, as one key: who asks the same again can be given the same answer.

ALTER TABLE sub_agents ADD COLUMN cache_key TEXT CHECK (cache_key <> '');

-- With the state in it, the keys of closed agents can be read from the index alone.
CREATE INDEX sub_agents_by_cache_key ON sub_agents (cache_key, state) WHERE cache_key IS NOT NULL;

-- A closed agent had completed if the journal says so; otherwise it had failed.
CREATE INDEX events_of_completion ON events (run_id, agent_id)
WHERE type = 'agent.subagent_completed';

CREATE TRIGGER sub_agents_cache_key BEFORE UPDATE OF cache_key ON sub_agents
BEGIN
    SELECT RAISE(ABORT, 'a cache key is given at birth and never changed');
END;
