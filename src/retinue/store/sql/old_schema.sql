-- Stand-ins for tables that an older schema lacks, for a connection that may not migrate the file.

CREATE TEMP TABLE blobs (hash TEXT PRIMARY KEY, data BLOB NOT NULL);

CREATE TEMP VIEW events AS SELECT *, NULL AS blobs FROM main.events;
