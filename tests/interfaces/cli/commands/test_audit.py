"""`retinue audit`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli


def test_unchanged_journal_passes(cli: Cli, run_id: str) -> None:
    done = cli("audit", run_id)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("ok: ")
    assert f" events and 3 contracts of run {run_id} are unchanged (head " in done.out
    found = json.loads(cli("audit", "--json", run_id).out)
    assert (found["ok"], found["run_id"], found["agents"]) == (True, run_id, 3)


def test_altered_journal_fails(cli: Cli, run_id: str, project: Path) -> None:
    with closing(sqlite3.connect(project / ".retinue" / "retinue.db")) as connection, connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in triggers.fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("UPDATE events SET summary = 'nothing' WHERE seq = 5")
    done = cli("audit", run_id)
    assert done.code == 1
    assert done.out.startswith("BROKEN at event 5: ")
    found = json.loads(cli("audit", "--json", run_id).out)
    assert (found["ok"], found["seq"]) == (False, 5)
