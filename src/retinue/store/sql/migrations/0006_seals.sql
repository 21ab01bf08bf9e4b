-- Which runs the user of this file has started, in this project: a run without a valid seal is shown,
-- and has no influence. Exports do not contain seals.

CREATE TABLE seals (
    run_id TEXT PRIMARY KEY,
    seal   TEXT NOT NULL
) WITHOUT ROWID;
