-- The full-text index over `memories`, for builds of SQLite that have FTS5. The script can be repeated.
--
-- The index is complete as long as its triggers exist. A build without FTS5 drops them, because it
-- could not insert otherwise; the next build with FTS5 runs this script again.

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
