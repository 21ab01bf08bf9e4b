"""The stored index: what each file contains, by the digest of its bytes, and which files there are.

Working copies of agents share the parsed files with the project: only the list of paths is theirs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sqlite3
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress

import msgspec

from retinue.domain.paths import is_below
from retinue.rollback_journal import would_delete_a_file
from retinue.workspace.code_index.languages import LANGUAGES, language_of
from retinue.workspace.code_index.parser import has_grammars, parse
from retinue.workspace.code_index.symbols import Definition, ParsedFile

MAX_FILE_BYTES = 1_000_000
LOCK_LIMIT_S = 30.0
_BATCH = 200
_LOCK_RETRY_S = 0.05
_SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE parsed (
    id INTEGER PRIMARY KEY, digest BLOB UNIQUE, definitions BLOB, names BLOB
);
CREATE TABLE defined (
    name TEXT, parsed INTEGER, PRIMARY KEY (name, parsed)
) WITHOUT ROWID;
CREATE INDEX defined_by_parsed ON defined (parsed);
CREATE TABLE files (
    tree TEXT, path TEXT, state BLOB, parsed INTEGER, PRIMARY KEY (tree, path)
) WITHOUT ROWID;
CREATE INDEX files_by_parsed ON files (parsed);
"""

ReadFile = Callable[[str], tuple[bytes, os.stat_result] | None]
_definitions = msgspec.msgpack.Decoder(list[Definition])


class Progress(msgspec.Struct, frozen=True):
    """Counts of an update. It had no time for `missing` files; the next update parses them."""

    files: int
    parsed: int
    missing: int


class Index:
    """The index of one tree of files, in a database that other trees may share."""

    def __init__(self, path: str, tree: str, *, seal: str) -> None:
        """`tree` names the tree. A database without our `seal` is not ours and is removed."""
        self._path = path
        self._tree = tree
        self._connection = self._open(path, seal)

    def close(self) -> None:
        self._connection.close()

    def _open(self, path: str, seal: str) -> sqlite3.Connection:
        # Grammars find more than patterns do, and a new version may find more than this one.
        version = f"4 {has_grammars()} {len(LANGUAGES)} {seal}"
        for attempt in (1, 2):
            # SQLite follows a link, and recovers a database before the seal can be checked.
            if os.path.islink(path) or would_delete_a_file(path):
                _remove(path)
            try:
                connection = sqlite3.connect(path, timeout=LOCK_LIMIT_S, isolation_level=None)
                _use_wal(connection)
                connection.execute("PRAGMA synchronous=NORMAL")
                # Lock now: another process may be creating the tables.
                connection.execute("BEGIN IMMEDIATE")
                if not (found := _schema(connection)):
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        connection.execute(statement)
                    connection.execute("INSERT INTO about VALUES ('version', ?)", [version])
                elif found != _our_schema() or _version(connection) != version:
                    connection.close()
                    raise sqlite3.DatabaseError("made by another version, or elsewhere")
                connection.execute("COMMIT")
                return connection
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:
                if attempt == 2:
                    raise
                _remove(path)
        raise AssertionError

    def update(
        self, paths: Iterable[str], state_of: Callable[[str], bytes | None], read: ReadFile,
        deadline: float,
    ) -> Progress:  # fmt: skip
        """Bring the index up to date with `paths`. Stops at `deadline` (monotonic time)."""
        wanted = [path for path in paths if language_of(path) is not None]
        with self._lock(deadline) as locked:
            known = dict(self._select("SELECT path, state FROM files WHERE tree = ?", self._tree))
            todo = []
            for path in wanted:
                state = state_of(path)
                if state is None:
                    continue
                if known.pop(path, None) != state:
                    todo.append(path)
            # The paths left in `known` are gone, or may not be read any more.
            if not locked:
                return Progress(len(wanted), 0, len(todo))
            with self._transaction():
                self._connection.executemany(
                    "DELETE FROM files WHERE tree = ? AND path = ?",
                    [(self._tree, path) for path in known],
                )
            done = self._parse(todo, read, deadline)
            if known or done:
                self._forget_unused()
        return Progress(len(wanted), done, len(todo) - done)

    def _parse(self, todo: list[str], read: ReadFile, deadline: float) -> int:
        done = 0
        for start in range(0, len(todo), _BATCH):
            with self._transaction():
                for path in todo[start : start + _BATCH]:
                    if time.monotonic() > deadline:
                        return done
                    self._add(path, read)
                    done += 1
        return done

    def _add(self, path: str, read: ReadFile) -> None:
        found = read(path)
        language = language_of(path)
        if found is None or language is None:
            return
        data, about = found
        digest = hashlib.blake2b(data + language.name.encode(), digest_size=16).digest()
        row = self._connection.execute(
            "SELECT id FROM parsed WHERE digest = ?", [digest]
        ).fetchone()
        if row is None:
            try:
                parsed = parse(language, data)
            except (ValueError, RecursionError):
                parsed = ParsedFile([], {})
            names = "\n".join(f"{name} {count}" for name, count in parsed.names.items())
            row = self._connection.execute(
                "INSERT INTO parsed (digest, definitions, names) VALUES (?, ?, ?) RETURNING id",
                [digest, zlib.compress(msgspec.msgpack.encode(parsed.definitions), 1),
                 zlib.compress(f"\n{names}\n".encode("utf-8", "replace"), 1)],
            ).fetchone()  # fmt: skip
            self._connection.executemany(
                "INSERT OR IGNORE INTO defined VALUES (?, ?)",
                [(d.name, row[0]) for d in parsed.definitions],
            )
        self._connection.execute(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)",
            [self._tree, path, file_state(about), row[0]],
        )

    def _forget_unused(self) -> None:
        with self._transaction():
            unused = "SELECT id FROM parsed WHERE id NOT IN (SELECT parsed FROM files)"
            self._connection.execute(f"DELETE FROM defined WHERE parsed IN ({unused})")
            self._connection.execute(f"DELETE FROM parsed WHERE id IN ({unused})")

    def forget_trees(self, alive: Callable[[str], bool]) -> None:
        """Remove the lists of trees that no longer exist."""
        for (tree,) in self._select("SELECT DISTINCT tree FROM files"):
            if not alive(tree):
                self._connection.execute("DELETE FROM files WHERE tree = ?", [tree])

    # Questions

    def definitions_of(self, name: str) -> Iterator[tuple[str, Definition]]:
        """Definitions of a name, with their files."""
        rows = self._select(
            "SELECT path, definitions FROM defined JOIN parsed ON parsed.id = defined.parsed"
            " JOIN files ON files.parsed = parsed.id WHERE name = ? AND tree = ? ORDER BY path",
            name, self._tree,
        )  # fmt: skip
        for path, packed in rows:
            yield from ((path, d) for d in _unpack(packed) if d.name == name)

    def similar_names(self, name: str, limit: int) -> list[str]:
        """Defined names that contain `name`, whatever the case; the shortest first."""
        rows = self._select(
            "SELECT DISTINCT name FROM defined JOIN files USING (parsed) WHERE tree = ? AND"
            " instr(lower(name), lower(?)) ORDER BY length(name), name LIMIT ?",
            self._tree, name, limit,
        )  # fmt: skip
        return [found for (found,) in rows]

    def files(self, under: str = ".") -> Iterator[tuple[str, list[Definition], dict[str, int]]]:
        """Each file below `under`: its path, definitions and names, in the order of the paths."""
        rows = self._select(
            "SELECT path, definitions, names FROM files JOIN parsed ON parsed.id = files.parsed"
            " WHERE tree = ? ORDER BY path",
            self._tree,
        )
        for path, packed, names in rows:
            if is_under(path, under):
                yield path, _unpack(packed), _names(names)

    def paths_using(self, name: str, under: str) -> list[tuple[int, str]]:
        """How often files below `under` use a name, the most uses first."""
        found = []
        word = f"\n{name} ".encode()
        rows = self._select(
            "SELECT path, names FROM files JOIN parsed ON parsed.id = files.parsed WHERE tree = ?",
            self._tree,
        )
        for path, packed in rows:
            if is_under(path, under):
                names = zlib.decompress(packed)
                at = names.find(word)
                if at >= 0:
                    count = names[at + len(word) : names.index(b"\n", at + 1)]
                    found.append((int(count), path))
        return sorted(found, key=lambda one: (-one[0], one[1]))

    def _select(self, query: str, *values: object) -> Iterator[tuple]:  # type: ignore[type-arg]
        with closing(self._connection.execute(query, values)) as rows:
            yield from rows

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            # Whole files are added, so an interrupted batch is valid too.
            self._connection.execute("COMMIT")

    @contextmanager
    def _lock(self, deadline: float) -> Iterator[bool]:
        """Whether this process may update. Waits until `deadline` while another one updates."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(f"{self._path}.lock", flags, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        yield False
                        return
                    time.sleep(_LOCK_RETRY_S)
                else:
                    yield True
                    return
        finally:
            os.close(fd)


def is_under(path: str, under: str) -> bool:
    """Whether `path` is in the part of the tree that a question is about; "." is all of it."""
    return under == "." or is_below(path, under)


def _remove(path: str) -> None:
    for end in ("", "-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{end}")


def _schema(connection: sqlite3.Connection) -> set[tuple[str, str, str | None]]:
    return set(connection.execute("SELECT type, name, sql FROM sqlite_master"))


def _our_schema() -> set[tuple[str, str, str | None]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        return _schema(connection)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not wait here if another process does the same."""
    end = time.monotonic() + LOCK_LIMIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def _version(connection: sqlite3.Connection) -> str | None:
    row = connection.execute("SELECT value FROM about WHERE name='version'").fetchone()
    return None if row is None else row[0]


def file_state(found: os.stat_result) -> bytes:
    """Size and times, which show a change. ctime too: unlike mtime, it cannot be set back."""
    return b"%d %d %d" % (found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def is_indexable(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and 0 < found.st_size <= MAX_FILE_BYTES


def _unpack(packed: bytes) -> list[Definition]:
    return _definitions.decode(zlib.decompress(packed))


def _names(packed: bytes) -> dict[str, int]:
    lines = zlib.decompress(packed).decode("utf-8", "replace").split("\n")
    return {name: int(count) for name, _, count in (line.partition(" ") for line in lines) if count}
