"""What earlier versions have left stays usable: stores are read and audited, runs are resumed.

A file of `corpus/` is never changed; a version that changes what is written adds one. Of some
versions there is the database alone (`.db.gz`), of others the whole project and the home of its
user (`.tar.gz`), as `programs/make_corpus.py` has written them.
"""

from __future__ import annotations

import asyncio
import fcntl
import gzip
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import retinue
from retinue.domain.contract import decode_contract
from retinue.project import trust_journals
from retinue.runtime.history.audit import audit, read_all
from retinue.store.export import export_run
from retinue.store.sqlite import SqliteStore

FOLDER = Path(__file__).parent / "corpus"
CORPUS = sorted([*FOLDER.glob("*.db.gz"), *FOLDER.glob("*.tar.gz")])
# A journal names its project by the full path, and a run goes on nowhere else.
PLACE = Path("/tmp/retinue-corpus")
LINES = "one\ntwo\nthree\nfour\nfive\n"

at_its_place = pytest.mark.skipif(
    PLACE.parent.resolve() != PLACE.parent, reason="/tmp is a link, and journals have real paths"
)


@pytest.fixture(params=CORPUS, ids=lambda path: path.name.split(".")[0])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A database of an earlier version; after a kill, its last events are in a log beside it."""
    path = tmp_path / "retinue.db"
    if request.param.name.endswith(".db.gz"):
        path.write_bytes(gzip.decompress(request.param.read_bytes()))
    else:
        with tarfile.open(request.param) as tar:
            for member in tar:
                file = tar.extractfile(member) if "retinue.db" in member.name else None
                if file is not None:
                    (tmp_path / Path(member.name).name).write_bytes(file.read())
    return path


@pytest.mark.parametrize("write", [False, True])
async def test_every_run_is_read_and_audited(old: Path, write: bool) -> None:
    store = SqliteStore(old, write=write)
    rows = await store.runs()
    assert rows
    for row in rows:
        audited = await audit(store, row.id)
        assert audited.pruned + audited.events == row.head_seq
        view = retinue.fold(await read_all(store, row.id))
        assert (view.status, view.task) == (row.status, row.task)
        over = {agent.state == "closed" for agent in view.agents.values()}
        assert over == {True} if row.status else False in over
    await store.aclose()


async def test_stored_names_never_change(old: Path) -> None:
    """Whatever is read is written again as it was: a field by another name would be lost."""
    store = SqliteStore(old, write=False)
    for row in await store.runs():
        for event in await read_all(store, row.id):
            assert msgspec.json.encode(event.fact) == bytes(event.payload)
            for task in getattr(event.fact, "tasks", ()):
                read = msgspec.json.decode(task, type=retinue.Task)
                assert msgspec.json.encode(read) == bytes(task)
        for agent in await store.agents(row.id):
            assert (
                decode_contract(agent.context_json).encode().canonical
                == agent.context_json.encode()
            )
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
    assert len([path for path in CORPUS if path.name.endswith(".db.gz")]) >= 2
    assert {path.name for path in CORPUS} >= {f"{name}.tar.gz" for name in (*LEFT, *FINISHED)}


# Going on


class Project:
    """A project with runs of an earlier version. The user of this process is who began them."""

    def __init__(self, place: Path) -> None:
        self.directory = place / "project"
        self.copies = place / "home" / ".cache" / "retinue" / "worktrees"
        case = json.loads((place / "home" / "case.json").read_text())
        self.runs: list[str] = case["runs"]
        self.rules: list[dict[str, Any]] = case["script"]["rules"]

    def model(self, *more: dict[str, Any]) -> retinue.ScriptedModel:
        """The model of the runs, which answers at once now; what it is given `more` comes first."""
        rules = [*more, *self.rules]
        for step in (step for rule in rules for step in rule["steps"]):
            step.pop("delay_s", None)
        return retinue.ScriptedModel.from_text(json.dumps({"rules": rules}))

    def open(self, model: retinue.ScriptedModel) -> AbstractAsyncContextManager[retinue.Runtime]:
        return retinue.open(
            self.directory, model=model, mode="auto", tools=[look_out], unsafe_no_sandbox=True
        )

    async def view(self, rt: retinue.Runtime, run_id: str) -> Any:
        return retinue.fold([event async for event in rt.events(run_id)])

    @property
    def written(self) -> dict[str, str]:
        """What agents have made."""
        ours = (".git", ".retinue", "notes.txt", "shared.txt")
        files = (path for path in self.directory.rglob("*") if path.is_file())
        names = {path.relative_to(self.directory): path for path in files}
        return {str(n): path.read_text() for n, path in names.items() if n.parts[0] not in ours}

    def audited(self) -> None:
        for run_id in self.runs:
            command = [sys.executable, "-m", "retinue", "audit", run_id, "-C", str(self.directory)]
            subprocess.run(command, check=True, capture_output=True)


@retinue.tool(effect="read")
async def look_out() -> str:
    """Look out."""
    return "Nobody is there."


def left_just_now(info: tarfile.TarInfo, _: str) -> tarfile.TarInfo:
    """Of what is old, the copies that children work in would be cleaned away."""
    return info.replace(mtime=time.time(), deep=False)


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Project]]:
    """Unpack a project where it was. Another process that does the same has to wait."""
    with ExitStack() as stack:

        def opened(name: str) -> Project:
            PLACE.mkdir(exist_ok=True)
            place = PLACE / name
            lock = stack.enter_context(open(f"{place}.lock", "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            shutil.rmtree(place, ignore_errors=True)
            stack.callback(shutil.rmtree, place)
            with tarfile.open(FOLDER / f"{name}.tar.gz") as tar:
                tar.extractall(place, filter=left_just_now)
            for variable in os.environ:
                if variable.startswith(("RETINUE_", "XDG_")):
                    monkeypatch.delenv(variable)
            monkeypatch.setenv("HOME", str(place / "home"))
            old = Project(place)
            # What `retinue trust --journal` does: seals of earlier versions are in exports too.
            assert trust_journals(old.directory) == len(old.runs)
            return old

        yield opened


class Left(NamedTuple):
    """A run that was left: the states of its agents, and what comes of them."""

    states: tuple[str, ...]
    agents: int
    """How many it has at its end; all of them do what they were asked for."""
    asked: int
    """How often a model is asked; who was done is not asked again."""
    response: str = ""
    results: tuple[str, ...] = ()
    written: tuple[str, ...] = ()


AT_WORK, CLOSED = "running", "closed"
LEFT = {
    "led": Left(
        states=(AT_WORK, AT_WORK, CLOSED, CLOSED),
        agents=4,
        asked=3,
        response="All done.",
        written=("out/child.txt", "root.txt"),
    ),
    "killed": Left(
        states=(AT_WORK, AT_WORK, CLOSED, AT_WORK),
        agents=4,
        asked=4,
        response="All done.",
        written=("out/child.txt",),
    ),
    "fan_out": Left(
        states=(AT_WORK, CLOSED, CLOSED, AT_WORK, AT_WORK),
        agents=7,
        asked=5,
        results=("Done 0.", "Done 1.", "Done 2.", "Done 3.", '{"n": 4}', "Done 5."),
        written=("out/1.txt", "out/3.txt", "out/5.txt"),
    ),
    "plan": Left(
        states=(AT_WORK, CLOSED, CLOSED, AT_WORK),
        agents=6,
        asked=4,
        results=("Looked.", "Wrote the first.", "Slowly read.", "Wrote the second.", "Told."),
        written=("out/first.txt", "out/second.txt"),
    ),
    "planning": Left(states=(AT_WORK, AT_WORK), agents=2, asked=1, response="Know it"),
    "background": Left(
        states=(AT_WORK, CLOSED, AT_WORK, AT_WORK),
        agents=4,
        asked=2,
        results=("Done 0.", "Done 1.", "Done 2."),
        written=("out/0.txt", "out/2.txt"),
    ),
    "waiting": Left(
        states=(AT_WORK, AT_WORK, "waiting_for_merge"),
        agents=3,
        asked=1,
        results=("Done 0.", "Done 1."),
        written=("out/0.txt", "out/1.txt"),
    ),
}
FINISHED = ("conflict", "session", "facts")


@at_its_place
@pytest.mark.parametrize("name", LEFT)
async def test_a_run_that_was_left_goes_on(project: Callable[[str], Project], name: str) -> None:
    old, wanted = project(name), LEFT[name]
    (run_id,), model = old.runs, old.model()
    async with old.open(model) as rt:
        before = await old.view(rt, run_id)
        assert tuple(agent.state for agent in before.agents.values()) == wanted.states
        async with asyncio.timeout(60):
            done = await rt.resume(run_id)
        after = await old.view(rt, run_id)
    assert (done.status, done.error, len(model.requests)) == ("completed", None, wanted.asked)
    assert wanted.response in done.response
    results = done.results if done.plan is None else [step.result for step in done.plan.steps]
    assert tuple(result.response for result in results if result) == wanted.results
    assert [agent.status for agent in after.agents.values()] == ["completed"] * wanted.agents
    assert old.written == dict.fromkeys(wanted.written, "done\n")
    assert not (old.copies.exists() and list(old.copies.iterdir()))
    old.audited()


@at_its_place
async def test_what_a_conflict_has_kept_is_brought_in(project: Callable[[str], Project]) -> None:
    old = project("conflict")
    (run_id,), file = old.runs, old.directory / "shared.txt"
    async with old.open(old.model()) as rt:
        child = (await old.view(rt, run_id)).agents["a1"]
        assert (child.status, child.conflicts[0].path) == ("conflict", "shared.txt")
        assert file.read_text() == LINES.replace("three", "by the root")
        assert (await rt.redo(run_id, "a1")).refused
        assert not (await rt.undo(run_id)).refused
        assert file.read_text() == LINES
        assert not (await rt.redo(run_id, "a1")).refused
        assert file.read_text() == LINES.replace("three", "by the child")
    old.audited()


@at_its_place
async def test_a_session_goes_on(project: Callable[[str], Project]) -> None:
    old = project("session")
    recall = {"call": "recall", "args": {"query": "tea"}}
    old.rules[-1]["steps"].append({"say": "Three."})
    model = old.model({"match": "What do I like?", "steps": [recall, {"say": "Tea."}]})
    async with old.open(model) as rt:
        assert (await rt.run("What do I like?")).response == "Tea."
        assert "The user likes tea." in str(model.requests[-1].messages[-1])
        # The model's place in its script is told by what was said before.
        third = await rt.run("More.", session=old.runs[-1])
        assert (third.response, third.session) == ("Three.", old.runs[0])
    old.audited()
