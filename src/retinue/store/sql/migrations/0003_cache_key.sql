-- What an agent was asked, as one key: who asks the same again can be given the same answer.

ALTER TABLE sub_agents ADD COLUMN cache_key TEXT CHECK (cache_key <> '');

-- Without the state: an index that has it would be changed by every move of every agent.
CREATE INDEX sub_agents_by_cache_key ON sub_agents (cache_key) WHERE cache_key IS NOT NULL;

CREATE TRIGGER sub_agents_cache_key BEFORE UPDATE OF cache_key ON sub_agents
BEGIN
    SELECT RAISE(ABORT, 'a cache key is given at birth and never changed');
END;
