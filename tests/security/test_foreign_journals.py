"""A journal that came with a project is shown, and has no influence."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import struct
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

import msgspec
import pytest

from retinue.config.environment import Environment
from retinue.config.user_key import UserKey
from retinue.domain.result import Status
from retinue.errors import RecoveryError, StoreError
from retinue.models.scripted.model import ScriptedModel, call, hold, say
from retinue.project import export_journal, open_journal, open_run, open_run_undo, trust_journals
from retinue.runtime.history.audit import audit
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

PLAN = {"goal": "Look", "steps": [{"name": "look", "task": "Look.", "role": "researcher"}]}


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """The user of this process and of the runtimes."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_STATE_HOME", "RETINUE_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    return Environment.current()


@pytest.fixture
def stranger(tmp_path: Path) -> Environment:
    return Environment(variables={"HOME": str(tmp_path / "theirs"), "PATH": "/usr/bin:/bin"})


@pytest.fixture
def opened(opened: Opened, user: Environment) -> Opened:
    def open(**settings: object) -> AbstractAsyncContextManager[Runtime]:
        return opened(**{"environment": user, "mode": "auto", "cache": True} | settings)

    return open


class Left:
    """Runs of all kinds in one journal."""

    session: str
    suspended: str
    plan: str


async def leave_runs(opened: Opened, environment: Environment) -> Left:
    """Write a journal with everything in it that can have an influence."""
    left = Left()
    model = ScriptedModel(
        [
            call("write_file", path="made.txt", content="theirs\n"),
            call("remember", text="The password is heron."),
            say("First."),
        ]
    )
    async with opened(model=model, environment=environment) as rt:
        left.session = (await rt.run("One.")).id
    async with opened(
        model=ScriptedModel({"": [say("Their answer.")]}, strict=False), environment=environment
    ) as rt:
        await rt.spawn("researcher", "What is it?")
    started: asyncio.Queue[str] = asyncio.Queue()

    def listen(event: object) -> None:
        if getattr(event, "type", "") == "turn.started":
            started.put_nowait(event.run_id)  # type: ignore[attr-defined]

    for kind in ("run", "plan"):
        model = ScriptedModel({"": [hold(asyncio.Event(), say("never"))]}, strict=False)
        async with opened(model=model, environment=environment, on_event=listen) as rt:
            work: Awaitable[object] = rt.run("Wait.") if kind == "run" else rt.execute(PLAN)
            task = asyncio.ensure_future(work)
            async with asyncio.timeout(20):
                run_id = await started.get()
            rt.suspend("Enough.")
            task.cancel()
            await asyncio.wait([task])
        setattr(left, "suspended" if kind == "run" else "plan", run_id)
    return left


async def assert_without_influence(opened: Opened, project: Path, left: Left) -> None:
    model = ScriptedModel({"": [call("recall", query="password"), say("Mine.")]}, strict=False)
    async with opened(model=model) as rt:
        for run_id in (left.suspended, left.plan):
            with pytest.raises(RecoveryError, match="retinue trust --journal"):
                await rt.resume(run_id)
        for name in (left.session, "last"):
            with pytest.raises(RecoveryError, match=r"not started by you.*shown and nothing else"):
                await rt.run("Go on.", session=name)
        for change in (rt.undo, rt.redo, rt.fork):
            with pytest.raises(RecoveryError):
                await change(left.session)
        assert (project / "made.txt").exists()
        forecast = await rt.forecast([("researcher", "What is it?")])
        assert len(forecast.guessed) == 1
        mine = await rt.spawn("researcher", "What is it?")
        assert mine.response == "Mine."
        assert all("heron" not in str(request.messages) for request in model.requests)
        # The user's own runs beside them work as always.
        own = await rt.run("Hello.")
        assert (await rt.run("Go on.", session="last")).session == own.id
    with pytest.raises(RecoveryError):
        async with open_run_undo(project, left.session):
            pass


async def assert_shown(project: Path, left: Left) -> None:
    async with open_journal(project) as store:
        rows = {row.id: row for row in await store.runs()}
        assert not rows[left.session].sealed
        assert (await audit(store, left.session)).events > 0
    file = await export_journal(project, left.session, project / "out.retinue")
    async with open_run(project, str(file)) as (store, run_id):
        assert run_id == left.session
    file.unlink()


async def test_the_journal_of_a_stranger(
    opened: Opened, project: Path, stranger: Environment
) -> None:
    left = await leave_runs(opened, stranger)
    await assert_shown(project, left)
    await assert_without_influence(opened, project, left)
    await assert_shown(project, left)


async def test_the_user_accepts_a_journal(
    opened: Opened, project: Path, stranger: Environment
) -> None:
    left = await leave_runs(opened, stranger)
    assert trust_journals(project) == 4
    assert trust_journals(project) == 0
    model = ScriptedModel({"": [call("recall", query="password"), say("Mine.")]}, strict=False)
    async with opened(model=model) as rt:
        assert not (await rt.forecast([("researcher", "What is it?")])).guessed
        assert (await rt.resume(left.suspended)).status is Status.COMPLETED
        assert (await rt.spawn("researcher", "What is it?")).response == "Their answer."
        await rt.run("Go on.", session=left.session)
        assert "First." in str(model.requests[-1].messages)
        assert any("heron" in str(request.messages) for request in model.requests)


async def test_a_moved_project_is_the_same(
    opened: Opened, open_project: Opened, project: Path, user: Environment
) -> None:
    left = await leave_runs(opened, user)
    moved = project.with_name("moved")
    os.rename(project, moved)
    async with open_journal(moved) as store:  # Reading alone recognises it too.
        assert (await store.run(left.session)).sealed
    settings = {"environment": user, "mode": "auto", "shell": False}
    for _ in range(2):
        async with open_project(moved, model=ScriptedModel([say("On.")]), **settings) as rt:
            assert (await rt.run("Go on.", session=left.session)).session == left.session
    # A new project at the old path is another one.
    shutil.copytree(moved / ".retinue", project / ".retinue")
    async with open_journal(project) as store:
        assert not (await store.run(left.session)).sealed


async def test_a_copy_of_a_project_is_another_one(
    opened: Opened, open_project: Opened, project: Path, user: Environment
) -> None:
    left = await leave_runs(opened, user)
    copied = project.with_name("copied")
    shutil.copytree(project, copied)
    settings = {"environment": user, "mode": "auto", "shell": False, "cache": True}

    def opened_copy(**more: object) -> AbstractAsyncContextManager[Runtime]:
        return open_project(copied, **settings | more)

    await assert_without_influence(opened_copy, copied, left)
    async with open_journal(project) as store:
        assert (await store.run(left.session)).sealed


async def test_an_export_has_no_seal(opened: Opened, project: Path, user: Environment) -> None:
    """A stranger who was given an export cannot use it as a journal of ours."""
    left = await leave_runs(opened, user)
    file = await export_journal(project, left.session, project.with_name("x.retinue"))
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT * FROM seals").fetchall() == []
        started = connection.execute("SELECT payload FROM events WHERE seq = 1").fetchone()[0]
    assert "seal" not in msgspec.json.decode(started)
    # Not even in the project that it comes from.
    os.replace(file, project / ".retinue" / "retinue.db")
    (project / ".retinue" / "retinue.db-wal").unlink(missing_ok=True)
    async with open_journal(project) as store:
        assert not (await store.run(left.session)).sealed


async def test_a_seal_fits_its_run_only(opened: Opened, project: Path, user: Environment) -> None:
    """Neither that of another run nor that of an earlier version, which exports have had."""
    left = await leave_runs(opened, user)
    old = UserKey(user.key_file).sign(left.session)
    with closing(sqlite3.connect(project / ".retinue" / "retinue.db")) as connection:
        find = "SELECT seal FROM seals WHERE run_id = ?"
        (other,) = connection.execute(find, (left.plan,)).fetchone()
        for seal in (other, old, "", "ä", b"\xff"):
            change = "UPDATE seals SET seal = ? WHERE run_id = ?"
            connection.execute(change, (seal, left.session))
            connection.commit()
            async with open_journal(project) as store:
                assert not (await store.run(left.session)).sealed
                assert (await store.run(left.plan)).sealed


async def test_users_of_one_journal_share_a_key_file(tmp_path: Path, user: Environment) -> None:
    key = tmp_path / "team" / "key"
    shared = msgspec.structs.replace(
        user, variables={**user.variables, "RETINUE_KEY_FILE": str(key)}
    )
    assert shared.key_file == key
    assert UserKey(shared.key_file).sign("x") == UserKey(key).sign("x") != ""


async def test_a_key_in_the_project_is_refused(
    opened: Opened, project: Path, user: Environment
) -> None:
    inside = {**user.variables, "RETINUE_KEY_FILE": str(project / "key")}
    with pytest.raises(Exception, match="RETINUE_KEY_FILE to a file outside"):
        async with opened(model=ScriptedModel([]), environment=Environment(variables=inside)):
            pass


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE TRIGGER evil AFTER INSERT ON seals BEGIN INSERT INTO memories"
        " (kind, text, time, run_id, agent_id) VALUES ('note', 'evil', 0, NEW.run_id, 'a0'); END",
        "CREATE VIEW evil AS SELECT 1",
    ],
)
async def test_a_file_with_a_trigger_of_a_stranger_is_not_written(
    opened: Opened, project: Path, stranger: Environment, planted: str
) -> None:
    left = await leave_runs(opened, stranger)
    with closing(sqlite3.connect(project / ".retinue" / "retinue.db")) as connection:
        connection.execute(planted)
    with pytest.raises(StoreError, match=r"'evil' in .* was not made by retinue; move the file"):
        async with opened(model=ScriptedModel([])):
            pass
    async with open_journal(project) as store:
        assert len(await store.runs()) == 4
        assert (await audit(store, left.session)).events > 0


def rollback_journal_that_deletes(victim: str, database: Path) -> bytes:
    """A journal of SQLite's own; after its recovery SQLite deletes the file that it names."""
    page_size, magic = 8_192, bytes.fromhex("d9d505f920a163d7")
    pages = database.stat().st_size // page_size
    header = magic + struct.pack(">5I", 0, 1, pages, 512, page_size)
    name = victim.encode()
    named = struct.pack(">I", 0x4000_0000 // page_size + 1) + name
    return header.ljust(512, b"\0") + named + struct.pack(">2I", len(name), sum(name)) + magic


async def test_no_file_is_deleted_by_a_rollback_journal(
    opened: Opened, project: Path, tmp_path: Path, stranger: Environment
) -> None:
    await leave_runs(opened, stranger)
    victim = tmp_path / "precious"
    victim.write_text("x")
    database = project / ".retinue" / "retinue.db"
    planted = database.with_name("retinue.db-journal")
    planted.write_bytes(rollback_journal_that_deletes(str(victim), database))
    with pytest.raises(StoreError, match=r"retinue\.db-journal.*move it away"):
        async with opened(model=ScriptedModel([say("Mine.")])) as rt:
            await rt.run("Hello.")
    with pytest.raises(StoreError, match="move it away"):
        trust_journals(project)
    assert victim.exists()
    planted.unlink()
    async with opened(model=ScriptedModel([say("Mine.")])) as rt:
        await rt.run("Hello.")
