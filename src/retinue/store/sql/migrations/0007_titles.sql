-- Titles that people, or a model, have given to sessions. A session has the id of its first run. A title
-- is a label: it is no part of the journal, and can change at any time.

CREATE TABLE session_titles (
    session TEXT PRIMARY KEY,
    title   TEXT NOT NULL CHECK (typeof(title) = 'text' AND title <> '')
) WITHOUT ROWID;
