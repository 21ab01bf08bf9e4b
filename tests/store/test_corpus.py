"""Stores that earlier versions have written stay readable, and their chains whole.

A file of `corpus/` is never changed; a version that changes what is written adds one.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import retinue
from retinue.runtime.history.audit import audit, read_all
from retinue.store.export import export_run
from retinue.store.sqlite import SqliteStore

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.db.gz"))


@pytest.fixture(params=CORPUS, ids=lambda path: path.name.removesuffix(".db.gz"))
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "retinue.db"
    path.write_bytes(gzip.decompress(request.param.read_bytes()))
    return path


@pytest.mark.parametrize("write", [False, True])
async def test_every_run_is_read_and_audited(old: Path, write: bool) -> None:
    store = SqliteStore(old, write=write)
    rows = await store.runs()
    assert len(rows) >= 3
    for row in rows:
        assert (await audit(store, row.id)).events == row.head_seq
        view = retinue.fold(await read_all(store, row.id))
        assert (view.status, view.task) == (row.status, row.task)
        assert {agent.state for agent in view.agents.values()} == {"closed"}
    await store.aclose()


async def test_every_run_can_be_exported(old: Path, tmp_path: Path) -> None:
    store = SqliteStore(old)
    rows = await store.runs()
    await store.aclose()
    for row in rows:
        target = tmp_path / f"{row.id}.retinue"
        export_run(old, row.id, target)
        alone = SqliteStore(target, write=False)
        assert [one.id for one in await alone.runs()] == [row.id]
        assert (await audit(alone, row.id)).head_hash == row.head_hash
        await alone.aclose()


def test_there_are_some() -> None:
    assert CORPUS
