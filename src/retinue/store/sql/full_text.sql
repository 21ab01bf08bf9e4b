-- The full-text index over `memories`, for builds of SQLite that have FTS5. It can be run again.
--
-- The index is complete exactly as long as its triggers exist: a build without FTS5 drops them, for
-- it could not insert otherwise, and the next one that has it runs this script.

CREATE VIRTUAL TABLE IF NOT EXISTS memories_index USING fts5(
    text, content = 'memories', content_rowid = 'id', tokenize = "unicode61 remove_diacritics 2"
);

CREATE TRIGGER IF NOT EXISTS memories_index_insert AFTER INSERT ON memories
BEGIN
    INSERT INTO memories_index (rowid, text) VALUES (NEW.id, NEW.text);
END;

CREATE TRIGGER IF NOT EXISTS memories_index_delete AFTER DELETE ON memories
BEGIN
    INSERT INTO memories_index (memories_index, rowid, text) VALUES ('delete', OLD.id, OLD.text);
END;

CREATE TRIGGER IF NOT EXISTS memories_index_update AFTER UPDATE ON memories
BEGIN
    INSERT INTO memories_index (memories_index, rowid, text) VALUES ('delete', OLD.id, OLD.text);
    INSERT INTO memories_index (rowid, text) VALUES (NEW.id, NEW.text);
END;

INSERT INTO memories_index (memories_index) VALUES ('rebuild');
