-- What is remembered across runs.
--
-- The full-text index over it is not made here but in `full_text.sql`, since some builds of SQLite
-- have no FTS5.

CREATE TABLE memories (
    id       INTEGER PRIMARY KEY,
    kind     TEXT NOT NULL CHECK (length(kind) BETWEEN 1 AND 40 AND kind NOT GLOB '*[^a-z_]*'),
    text     TEXT NOT NULL CHECK (trim(text, char(9, 10, 11, 12, 13, 32)) <> ''),
    time     REAL NOT NULL,
    run_id   TEXT NOT NULL,
    agent_id TEXT NOT NULL
);
