"""`retinue clean`."""

from __future__ import annotations

import asyncio
import gzip
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.interfaces.cli.commands.clean import size_text
from retinue.project import trust_journals
from retinue.store.run_locks import FileRunLocks
from retinue.store.sqlite import SqliteStore
from retinue.testing.clock import FakeClock
from tests.store.journal_writer import JournalWriter

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script


WRITES = """
rules:
  - match: ""
    steps: [{call: write_file, args: {path: a.txt, content: "2"}}, {say: Done.}]
"""


def test_clean_reports_each_kind_and_removes_what_is_old(cli: Cli, script: Script) -> None:
    cli("spawn", "executor", "-m", script(WRITES), "--mode", "auto", "Write.")
    told = cli("clean", "--dry-run")
    assert told.code == 0, told.err
    journals, copies, changes, versions = told.out.splitlines()
    assert re.fullmatch(r"journals of runs +1, [0-9.]+ KB; would remove: 0", journals)
    assert copies.split("  ")[0] == "copies of trees"
    assert re.fullmatch(r"changes that can be undone  1; would remove: 0", changes)
    assert re.fullmatch(r"versions of files +\d+, \d+ B; would remove: 0", versions)
    assert re.search(r"undone  1; removed: 1$", cli("clean", "--older-than", "0").out, re.MULTILINE)
    assert cli("undo", cli("runs").out.split()[0]).err.startswith(
        "retinue: There is nothing to undo"
    )


def test_clean_without_any_run(cli: Cli) -> None:
    done = cli("clean")
    assert (done.code, "Nothing is kept in" in done.err) == (2, True)


def test_size_text() -> None:
    assert [size_text(n) for n in (0, 999, 1000, 34_100_000, 5 * 10**15)] == [
        "0 B",
        "999 B",
        "1.0 KB",
        "34.1 MB",
        "5000.0 TB",
    ]


DAY_S = 24 * 3600


async def _journals(path: Path) -> None:
    """Sessions of last year but for `new`, whose latest run is of today."""
    path.parent.mkdir()
    store, now = SqliteStore(path), time.time()
    for run_id, earlier, days, over in (
        ("old", (), 300, True),
        ("left", (), 300, False),
        ("new", (), 300, True),
        ("newer", ("new",), 0, True),
    ):
        writer = JournalWriter(store, run_id, clock=FakeClock(now - days * DAY_S))
        writer.begin(f"Do the {run_id} one.", earlier=earlier)
        writer.create_agent()
        for number in range(200):
            writer.note(f"{number} " * 100)
        if over:
            writer.run_agent("a0")
            writer.finish()
    await store.aclose()


@pytest.fixture
def database(project: Path) -> Path:
    path = project / ".retinue" / "retinue.db"
    asyncio.run(_journals(path))
    trust_journals(project)
    return path


def test_clean_keeps_the_outcome_of_old_runs(cli: Cli, database: Path) -> None:
    size = database.stat().st_size
    told = cli("clean", "--dry-run").out.splitlines()[0]
    told_as = r"journals of runs            4, [0-9.]+ KB; would remove: 1 \([0-9.]+ KB\);"
    kept = r" kept, since they can be resumed: 1 \(--unfinished\)"
    assert re.fullmatch(told_as + kept, told)
    assert "ok: 207 events and 1 contract" in cli("audit", "old").out

    line = cli("clean").out.splitlines()[0]
    assert re.fullmatch(told_as.replace("would remove", "removed") + kept, line)
    assert database.stat().st_size < 0.9 * size
    assert cli("audit", "old").out.startswith(
        "ok: the outcome of run old and the hashes of 1 contract are unchanged;"
        " 207 events were cleaned away (head "
    )
    shown = cli("show", "old").out
    assert shown.startswith("run old: completed\n  Do the old one.\n")
    assert "  207 events were cleaned away\n" in shown
    done = cli("show", "old", "a0")
    assert (done.code, done.err) == (
        2,
        "retinue: The events of run old were cleaned away; `retinue show old` shows what is left of"
        " its agents.\n",
    )
    for run_id in ("left", "new", "newer"):
        assert cli("audit", run_id).out.startswith("ok: 20")
    assert "4, " not in cli("clean").out.splitlines()[0]


def test_preview_leaves_an_older_journal_unchanged(cli: Cli, project: Path) -> None:
    """A preview only reads, so it must not migrate the file."""
    corpus = Path(__file__).parents[3] / "store" / "corpus" / "before_blobs.db.gz"
    path = project / ".retinue" / "retinue.db"
    path.parent.mkdir()
    path.write_bytes(gzip.decompress(corpus.read_bytes()))
    before = path.read_bytes()
    assert cli("clean", "--dry-run").code == 0
    assert path.read_bytes() == before


def test_unfinished_runs_are_pruned_on_request(cli: Cli, database: Path) -> None:
    assert "removed: 2 (" in cli("clean", "--unfinished").out.splitlines()[0]
    assert re.search(r"^left .*  cleaned away  .*Do the left one", cli("runs").out, re.MULTILINE)
    done = cli("resume", "left")
    assert (done.code, done.err) == (
        1,
        "retinue: The journal of run left was cleaned away; there is nothing left to resume.\n",
    )
    assert cli("resume").err == ("retinue: There is no run to resume.\n")


def test_running_run_is_never_pruned(cli: Cli, database: Path) -> None:
    run_lock = FileRunLocks(database.parent / "live").acquire("left")
    line = cli("clean", "--unfinished").out.splitlines()[0]
    assert "removed: 1" in line
    assert line.endswith("; the file shrinks when run left is over")
    done = cli("clean", "--older-than", "0", "--unfinished")
    assert (done.code, "Run left is running" in done.err) == (1, True)
    run_lock.release()
    assert "ok: 202 events" in cli("audit", "left").out


def test_journal_age_is_a_user_setting(
    cli: Cli, database: Path, project: Path, settings: Callable[[str], Path]
) -> None:
    (project / "retinue.toml").write_text("keep_journals_days = 0\n")
    assert "would remove: 1 " in cli("clean", "--dry-run").out
    settings("keep_journals_days = 1000\n")
    assert "would remove: 0" in cli("clean", "--dry-run").out.splitlines()[0]


def test_clean_keeps_and_names_an_altered_journal(cli: Cli, database: Path) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER events_append_only_update")
        connection.execute("UPDATE events SET summary = 'x' WHERE run_id = 'old' AND seq = 9")
    line = cli("clean").out.splitlines()[0]
    assert "removed: 0" in line
    assert line.endswith("; kept, since their journals were altered: old")
    assert cli("audit", "old").out.startswith("BROKEN at event 9")


def test_session_with_a_pruned_run_cannot_continue(
    cli: Cli, database: Path, script: Script
) -> None:
    cli("clean")
    done = cli("run", "-m", script(WRITES), "-r", "old", "Go on.")
    assert (done.code, done.err) == (
        1,
        "retinue: The session cannot be continued: the journal of run old was cleaned away.\n",
    )
