-- Many state changes of agents in one statement, in order: an agent may change its state several times
-- in one transaction. An UPDATE from a list would take each row once.

CREATE TEMP VIEW moves AS SELECT run_id, id, state FROM main.sub_agents;

CREATE TEMP TRIGGER moves_are_made INSTEAD OF INSERT ON moves
BEGIN
    UPDATE sub_agents SET state = NEW.state WHERE run_id = NEW.run_id AND id = NEW.id;
END;
