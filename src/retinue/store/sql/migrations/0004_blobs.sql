-- Large strings of payloads, each kept once, compressed, under the SHA-256 of what it holds.
--
-- A payload stays JSON: nothing is left between the quotes of a string that was taken out, and
-- `events.blobs` says where it goes back to, as [[offset in bytes, hash], …]. The chain covers the
-- payload as it was, so a blob that was changed breaks it.

CREATE TABLE blobs (
    hash TEXT PRIMARY KEY CHECK (length(hash) = 64),
    data BLOB NOT NULL
);

-- Of events that are there already nothing is taken out: they are never changed.
ALTER TABLE events ADD COLUMN blobs TEXT;

CREATE TRIGGER blobs_once BEFORE INSERT ON blobs
WHEN EXISTS (SELECT 1 FROM blobs WHERE hash = NEW.hash)
BEGIN
    SELECT RAISE(ABORT, 'a blob is kept once');
END;

CREATE TRIGGER blobs_unchanged BEFORE UPDATE ON blobs
BEGIN
    SELECT RAISE(ABORT, 'a blob is what its hash says');
END;

CREATE TRIGGER blobs_stay BEFORE DELETE ON blobs
BEGIN
    SELECT RAISE(ABORT, 'a blob goes when no event needs it, by retinue clean');
END;
