"""The commands with `store = "postgresql://…"`, on a real server."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.errors import RunError, StoreError
from retinue.extras import EXTRAS, is_installed
from retinue.models.scripted.model import call, say
from retinue.testing.clock import EPOCH, FakeClock
from retinue.testing.server import Response, ResponseEnding, streamed
from tests.store.postgres_server import PostgresServer, postgres_server, programs

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Program, Script, Serve

Settings = Callable[[str], Path]
NEEDS_SERVER = pytest.mark.skipif(
    programs() is None or not is_installed("postgres"),
    reason="Postgres or asyncpg is not installed: script/services",
)
HANG = Response(ending=ResponseEnding.HANG)
SPAWN = call("spawn_agent", role="researcher", task="Wait for ever")
WRITES = """
rules:
  - match: ""
    steps: [{call: write_file, args: {path: a.txt, content: "2"}}, {say: Done.}]
"""
ADDRESS = "postgresql://ada:hunter2@db.example:5432/herons?password=hunter3"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as found:
        yield found


@pytest.fixture
def _store(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_STORE", server.url)


def run_id(cli: Cli) -> str:
    rows = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    return str(rows[0]["id"])


@pytest.mark.services
@NEEDS_SERVER
@pytest.mark.usefixtures("_store")
class TestCommands:
    def test_run_is_recorded_shown_undone_and_exported(
        self, cli: Cli, script: Script, project: Path
    ) -> None:
        done = cli("spawn", "executor", "-m", script(WRITES), "--mode", "auto", "Write.")
        assert done.code == 0, done.err
        assert not (project / ".retinue" / "retinue.db").exists()
        run = run_id(cli)
        assert run in cli("runs").out
        assert "write_file" in cli("show", run, "a1").out
        assert cli("watch", run).code == 0
        assert cli("audit", run).code == 0
        assert cli("metrics").out
        assert cli("export", run).code == 0
        assert cli("audit", f"{run}.retinue").code == 0
        assert cli("show", f"{run}.retinue").code == 0
        assert (project / "a.txt").exists()
        undone = cli("undo", run)
        assert undone.code == 0, undone.err
        assert not (project / "a.txt").exists()

    def test_sessions_have_titles_and_can_be_deleted(self, cli: Cli, script: Script) -> None:
        model = script("rules: [{match: '', steps: [{say: Done.}]}]")
        assert cli("run", "-q", "-m", model, "Count.").code == 0
        run = run_id(cli)
        assert cli("sessions", "rename", run, "Herons").code == 0
        assert "Herons" in cli("sessions").out
        deleted = cli("sessions", "delete", "--yes", run)
        assert deleted.code == 0, deleted.err
        assert "Herons" not in cli("sessions").out

    def test_clean_leaves_the_outcome(self, cli: Cli, script: Script) -> None:
        cli("spawn", "executor", "-m", script(WRITES), "--mode", "auto", "Write.")
        run = run_id(cli)
        assert "would remove: 1" in cli("clean", "--dry-run", "--older-than", "0").out
        cleaned = cli("clean", "--older-than", "0")
        assert cleaned.code == 0, cleaned.err
        assert cli("audit", run).code == 0
        assert cli("show", run).code == 0

    def test_nothing_recorded_yet(self, cli: Cli) -> None:
        done = cli("runs")
        assert done.code != 0
        assert "There is no journal in postgresql://127.0.0.1:" in done.err
        assert cli("metrics") == (0, "", "")

    def test_child_in_another_process_is_cancelled(
        self, cli: Cli, serve: Serve, program: Program
    ) -> None:
        server = serve(SPAWN, HANG, say("It was stopped."))
        process = program("run", "-q", "x", "-m", server.model)
        server.received(2)
        run = run_id(cli)
        assert "running" in cli("runs").out
        assert cli("cancel", run, "a1") == (0, "a1 (root/researcher.1) was cancelled.\n", "")
        out, err = process.communicate()
        assert (process.returncode, out, err) == (0, b"It was stopped.\n", b"")

    def test_run_of_a_killed_process_is_resumed(
        self, cli: Cli, serve: Serve, program: Program
    ) -> None:
        server = serve(HANG, say("Done after all."))
        process = program("run", "-q", "x", "-m", server.model)
        server.received(1)
        run = run_id(cli)
        refused = cli("resume", run)
        assert f"Another process works on run {run}; " in refused.err
        process.send_signal(signal.SIGKILL)
        process.communicate()
        resumed = cli("resume", "-q", run)
        assert (resumed.code, resumed.out) == (0, "Done after all.\n"), resumed.err
        assert cli("audit", run).code == 0

    @pytest.fixture
    def checkout(
        self,
        server: PostgresServer,
        project: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        request: pytest.FixtureRequest,
    ) -> str:
        """The project at another path, as on another machine, with the same journal."""
        schema = f"at_two_paths_{len(request.node.name)}"
        monkeypatch.setenv("RETINUE_STORE", f"{server.url}?schema={schema}")
        copied = tmp_path / "other" / "checkout"
        shutil.copytree(project, copied)
        return str(copied)

    def test_run_is_watched_and_cancelled_from_a_checkout_at_another_path(
        self, cli: Cli, serve: Serve, program: Program, checkout: str
    ) -> None:
        model = serve(SPAWN, HANG, say("It was stopped."))
        process = program("run", "-q", "x", "-m", model.model)
        model.received(2)
        run = run_id(cli)
        assert "running" in cli("runs", "-C", checkout).out
        assert f"Another process works on run {run}; " in cli("resume", run, "-C", checkout).err
        web = program("serve", "-C", checkout)
        assert web.stdout is not None
        address, token = (next(web.stdout).decode().split()[-1] for _ in range(2))
        asked = urllib.request.Request(
            f"{address.removesuffix('openapi.json')}runs/{run}/cancel",
            data=b'{"agent": "a1"}',
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked) as response:
            assert json.load(response)["done"] == "a1 is cancelled."
        assert cli("watch", run, "-C", checkout).code == 0
        out, err = process.communicate()
        assert (process.returncode, out, err) == (0, b"It was stopped.\n", b"")
        assert cli("show", run, "-C", checkout).code == 0
        web.send_signal(signal.SIGINT)
        web.communicate()

    def test_owner_that_was_frozen_writes_nothing_after_another_took_over(
        self, cli: Cli, serve: Serve, program: Program, checkout: str
    ) -> None:
        """By a server that waits, from a checkout at another path."""
        gate = asyncio.Event()
        late = Response(body=streamed(say("Too late.")).body, gate=gate)
        model = serve(late, say("Done after all."))
        frozen = program("run", "x", "-m", model.model)
        model.received(1)
        run = run_id(cli)
        frozen.send_signal(signal.SIGSTOP)
        assert f"Another process works on run {run}; " in cli("resume", run).err
        waiting = program("serve", "--resume", "-C", checkout)
        # After 20 s in which the frozen one has said nothing, Postgres ends its session.
        assert waiting.stdout is not None
        said = next(line for line in waiting.stdout if b"continues here" in line)
        assert said.decode() == f"Run {run} continues here: its process was gone.\n"
        assert cli("watch", run).code == 0
        model.open(gate)
        frozen.send_signal(signal.SIGCONT)
        _, err = frozen.communicate()
        assert frozen.returncode == 1
        told = f"Another process has taken over run {run}; this one must stop."
        assert err.decode().splitlines()[-1] == f"retinue: {told}"
        assert "resume" not in err.decode()
        shown = json.loads(cli("runs", "--json").out.splitlines()[0])
        assert (shown["id"], shown["status"]) == (run, "completed")
        assert cli("audit", run).code == 0
        waiting.send_signal(signal.SIGINT)
        assert waiting.communicate() == (b"", b"")
        assert waiting.returncode == 0

    def test_wrong_password(
        self, cli: Cli, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RETINUE_STORE", server.url.replace("secret", "wr0ng"))
        told = cli("runs").err
        assert "refuses the user name or the password" in told
        assert "wr0ng" not in told


@pytest.mark.services
@NEEDS_SERVER
class TestParts:
    async def test_memories_are_recalled(self, server: PostgresServer) -> None:
        from retinue.store.postgres.address import project_database
        from retinue.store.postgres.memory import PostgresMemoryStore

        memory_store = PostgresMemoryStore(project_database(server.url, "memories"), FakeClock())
        texts = ("Herons nest in March.", "100% of owls\0 hoot at 3:00.", "鷺は水辺に立つ。")
        for text in texts:
            await memory_store.remember(kind="note", text=text, run_id="k3f9", agent_id="a0")

        async def found(query: str) -> list[str]:
            return [memory.text for memory in await memory_store.recall(query)]

        assert await found("heron") == [texts[0]]
        assert await found("水辺") == [texts[2]]
        assert await found("100%") == [texts[1].replace("\0", "\ufffd")]
        assert await found("'; & ! (") == []
        assert len(await found("")) == 3
        assert (await memory_store.recall("", kind="other")) == []
        assert (await memory_store.recall("owls"))[0].time == EPOCH
        await memory_store.aclose()

    def test_lock_is_held_once_and_messages_arrive(self, server: PostgresServer) -> None:
        from retinue.store.postgres.address import project_database
        from retinue.store.postgres.run_locks import PostgresRunLocks

        database = project_database(server.url, "locks")
        mine, theirs = PostgresRunLocks(database), PostgresRunLocks(database)
        elsewhere = PostgresRunLocks(project_database(server.url, "others"))
        assert not theirs.is_held("k3f9")
        assert not theirs.send("k3f9", "to nobody")
        lock = mine.acquire("k3f9")
        assert mine.is_held("k3f9")
        assert theirs.is_held("k3f9")
        assert not elsewhere.is_held("k3f9")
        for locks in (mine, theirs):
            with pytest.raises(RunError):
                locks.acquire("k3f9")
        assert theirs.send("k3f9", "cancel \0 a1")
        assert theirs.send("k3f9", "x" * 20_000)
        received: list[str] = []
        while len(received) < 2:
            received += lock.received()
        assert received == ["cancel \0 a1", "x" * 20_000]
        lock.release()
        assert not theirs.is_held("k3f9")
        theirs.acquire("k3f9").release()

    def test_of_owners_that_race_one_gets_the_lock(self, server: PostgresServer) -> None:
        from retinue.store.postgres.address import project_database
        from retinue.store.postgres.run_locks import PostgresRunLocks

        database = project_database(server.url, "race")
        owners = [PostgresRunLocks(database) for _ in range(8)]

        def acquired(locks: PostgresRunLocks) -> bool:
            try:
                locks.acquire("k3f9")
            except RunError:
                return False
            return True

        with ThreadPoolExecutor(len(owners)) as pool:
            assert sorted(pool.map(acquired, owners)) == [False] * 7 + [True]

    def test_lock_is_taken_again_after_a_restart_of_the_server(self) -> None:
        from retinue.store.postgres.address import project_database
        from retinue.store.postgres.run_locks import PostgresRunLocks

        with postgres_server() as server:
            database = project_database(server.url, "locks")
            mine, theirs = PostgresRunLocks(database), PostgresRunLocks(database)
            lock = mine.acquire("k3f9")
            server.stop()
            with pytest.raises(StoreError, match=r"cannot be reached|was lost"):
                theirs.is_held("k3f9")
            server.start()
            while not theirs.is_held("k3f9"):
                pass  # Until the owner has noticed that its connection is gone.
            assert theirs.send("k3f9", "cancel a1")
            received: list[str] = []
            while not received:
                received += lock.received()
            assert received == ["cancel a1"]
            lock.release()
            assert not theirs.is_held("k3f9")


def test_project_cannot_set_the_store(cli: Cli, project: Path) -> None:
    (project / "retinue.toml").write_text(f'store = "{ADDRESS}"\n')
    shown = cli("config")
    assert "which has no effect" in shown.out
    assert "hunter" not in shown.out
    assert "There is no journal" not in cli("runs").out


def test_config_hides_the_password(
    cli: Cli, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(f'store = "{ADDRESS}"\n')
    for shown in (cli("config"), cli("config", "--json"), cli("config", "get", "store")):
        assert "postgresql://***@db.example:5432/herons" in shown.out
        assert "hunter" not in shown.out
    assert "hunter" not in cli("config", "set", "store", ADDRESS).out
    monkeypatch.setenv("RETINUE_STORE", ADDRESS)
    assert "hunter" not in cli("config").out


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://ada:a#hunter2@db.example/herons",
        "postgresql://ada:a/hunter2@db.example/herons",
        "postgresql://hunter2?b@db.example/herons",
        "postgresql://ada:a@hunter2@db.example/herons",
        "postgresql://db.example/herons?password=a@hunter2",
        "host=db.example password=hunter2",
    ],
)
def test_config_hides_a_password_that_is_not_encoded(
    cli: Cli, settings: Settings, monkeypatch: pytest.MonkeyPatch, project: Path, address: str
) -> None:
    settings(f'store = "{address}"\n')
    (project / "retinue.toml").write_text(f'store = "{address}"\n')
    assert "hunter2" not in cli("config").out
    assert "hunter2" not in cli("config", "--json").out
    settings("")
    assert "hunter2" not in cli("config").out
    monkeypatch.setenv("RETINUE_STORE", address)
    assert "hunter2" not in cli("config").out
    done = cli("runs")
    assert done.code != 0
    assert "hunter2" not in done.out + done.err
    if address.startswith("postgresql:"):
        assert "must be percent-encoded in a user name, a password or an option" in done.err


def test_unknown_scheme_is_told(cli: Cli, settings: Settings) -> None:
    settings('store = "mysql://ada:hunter2@h/d"\n')
    done = cli("runs")
    assert "`store` must be a postgresql:// address" in done.err
    assert "hunter2" not in done.err


def test_missing_extra_is_told(
    cli: Cli, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(f'store = "{ADDRESS}"\n')
    monkeypatch.setitem(EXTRAS, "postgres", ("module_that_is_not_there",))
    assert "is not installed: pip install 'retinue[postgres]'." in cli("runs").err
