-- What a file of an earlier version lacks, for a connection that may not bring it up to date.

CREATE TEMP TABLE blobs (hash TEXT PRIMARY KEY, data BLOB NOT NULL);

CREATE TEMP VIEW events AS SELECT *, NULL AS blobs FROM main.events;
