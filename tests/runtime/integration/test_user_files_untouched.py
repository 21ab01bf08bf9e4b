"""What is the user's own stays theirs, whatever children do: over random trees and edits."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import Event, WorktreeMerged
from retinue.errors import RunError
from retinue.models.scripted.model import ScriptedModel, Step, call, say
from retinue.runtime.delegation.task import Task

if TYPE_CHECKING:
    from tests.conftest import Repo

paths = st.sampled_from(["a", "b c", "d/e", "d/f/g", "h.txt", "ünï", "-x", "d/.hidden"])
LINES = ["1\n", "2\n", "3\n", "\n", "x"]  # Few, so that edits meet each other.


class World(NamedTuple):
    """What is committed, what went into the index since, what is in the tree, what is ignored."""

    committed: dict[str, str]
    staged: dict[str, str]
    tree: dict[str, str]
    ignored: dict[str, str]
    edits: list[tuple[str, str]]
    """What each child writes."""
    crlf: bool


def worlds(children: int) -> st.SearchStrategy[World]:
    # Where git is told to mend the ends of lines, it mends those of children as well.
    return st.one_of(_worlds(children, [*LINES, "3\r\n"], crlf=False), _worlds(children, LINES))


def _worlds(children: int, lines: list[str], *, crlf: bool = True) -> st.SearchStrategy[World]:
    texts = st.lists(st.sampled_from(lines), max_size=6).map("".join)
    files = st.dictionaries(paths, texts, max_size=6)
    return st.builds(
        World,
        committed=files,
        staged=files,
        tree=files,
        ignored=st.dictionaries(st.sampled_from(["ig", "node_modules/x", "d/ig"]), texts),
        edits=st.lists(st.tuples(paths, texts), min_size=children, max_size=children),
        crlf=st.just(crlf),
    )


def populate(repo: Repo, world: World) -> None:
    repo.init()
    repo.git("config", "core.autocrlf", "input" if world.crlf else "false")
    repo.commit({**world.committed, ".gitignore": "ig\nnode_modules\n", "stashed": "1\n"})
    repo.write("stashed", "2\n")
    repo.git("stash", "-q")
    hooks = repo.root / ".git" / "hooks"
    for name in ("pre-commit", "post-checkout", "post-index-change", "reference-transaction"):
        hook = hooks / name
        hook.write_text(f"#!/bin/sh\ntouch {repo.home}/ran\n")
    for path, text in world.staged.items():
        repo.write(path, text)
    repo.git("add", "-A")
    for path, text in (world.tree | world.ignored).items():
        repo.write(path, text)
    for hook in hooks.iterdir():
        hook.chmod(0o755)


async def live_through(repo: Repo, world: World) -> None:
    """Children, merges, applying, undoing; and nothing but what they wrote has changed."""
    populate(repo, world)
    git_dir, before = repo.git_dir(), repo.files()
    script = {
        f"Edit {number}.": [call("write_file", path=path, content=text), say("Done.")]
        for number, (path, text) in enumerate(world.edits)
    }
    open_here = partial(
        retinue.open,
        repo.root,
        mode="auto",
        environment=Environment(variables={"HOME": str(repo.home)}),
        shell=False,
    )
    tasks = [
        Task(role="executor", task=task, write=(path,))
        for task, (path, _) in zip(script, world.edits, strict=True)
    ]
    async with open_here(model=ScriptedModel(script)) as rt:
        results = await rt.fan_out(tasks, max_concurrent=4)
    assert all(result.ok for result in results), [result.error for result in results]
    assert repo.git_dir() == git_dir
    after = repo.files()
    written = dict(world.edits)
    untouched = {path: data for path, data in before.items() if path not in written}
    assert {path: data for path, data in after.items() if path not in written} == untouched
    assert {path: after[path].partition(" ")[2] for path in written} == written
    async with open_here(model=ScriptedModel([])) as rt:
        try:
            undone = await rt.undo(results[0].run_id)
        except RunError:  # What they wrote was there already.
            undone = None
        assert undone is None or undone.ok
        assert repo.files() == before
        if undone is not None:
            assert (await rt.redo(results[0].run_id)).ok
            assert repo.files() == after
    assert repo.git_dir() == git_dir
    assert not (repo.home / "ran").exists()


usual = settings(
    max_examples=4,
    # An example takes a second: making a failing one smaller would take minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@usual
@given(world=worlds(5))
async def test_user_files_stay_as_they_were(repos: Callable[[], Repo], world: World) -> None:
    await live_through(repos(), world)


@pytest.mark.slow
@settings(usual, max_examples=5)
@example(
    world=World(
        committed={},
        staged={},
        tree={"a": ""},
        ignored={},
        edits=[("a", "3\n3\r\n1\n"), ("a", "x2\n"), ("a", ""), ("a", "2\n3\r\n"), ("a", "")],
        crlf=False,
    )
)
@given(world=worlds(20))
async def test_user_files_stay_with_twenty_children(
    repos: Callable[[], Repo], world: World
) -> None:
    await live_through(repos(), world)


class User(threading.Thread):
    """Somebody who edits files while others work on them: a line more each time."""

    def __init__(self, root: Path, names: Sequence[str], chance: random.Random) -> None:
        super().__init__()
        self._root = root
        self._names = names
        self._chance = chance
        self._over = threading.Event()
        self.lines: list[str] = []

    def run(self) -> None:
        while not self._over.wait(self._chance.random() / 100):
            file = self._root / self._chance.choice(self._names)
            line = f"mine {len(self.lines)}\n"
            if self._chance.random() < 0.5:
                with file.open("a") as opened:
                    opened.write(line)
            else:
                # As editors do it that never leave half of a file behind.
                try:
                    text = file.read_text()
                except FileNotFoundError:
                    continue
                # What was written to it meanwhile is lost by this editor, not by us.
                known = [one for one in self.lines if one not in text]
                beside = file.with_suffix(".swp")
                beside.write_text("".join([text, *known, line]))
                beside.rename(file)
            self.lines.append(line)

    def stop(self) -> None:
        self._over.set()
        self.join()


@pytest.mark.slow
@settings(usual, max_examples=8)
@given(seed=st.integers(0, 2**32))
async def test_a_user_who_edits_the_same_files_loses_nothing(
    repos: Callable[[], Repo], seed: int
) -> None:
    repo, chance = repos(), random.Random(seed)
    names = ["a", "b", "c"]
    lines = "".join(f"line {number}\n" for number in range(60))
    repo.init().commit({**dict.fromkeys(names, lines), ".gitignore": "*.swp\n"})
    before = repo.git_dir()
    script: dict[str, list[Step]] = {
        f"Edit {i}.": [
            *(
                call("edit_file", path=name, old_text=f"line {i}\n", new_text=f"child {i}\n").after(
                    chance.random() / 20
                )
                for name in chance.sample(names, 2)
            ),
            say("Done."),
        ]
        for i in range(0, 60, 10)
    }
    user = User(repo.root, names, chance)
    async with retinue.open(
        repo.root,
        model=ScriptedModel(script, strict=False),
        mode="auto",
        environment=Environment(variables={"HOME": str(repo.home)}),
        shell=False,
    ) as rt:
        user.start()
        try:
            results = await rt.fan_out([("executor", task) for task in script])
        finally:
            user.stop()
    assert repo.git_dir() == before
    there = "".join((repo.root / name).read_text() for name in names)
    rescued = "".join(
        file.read_text() for file in (repo.root / ".retinue").glob("rescued/**/*") if file.is_file()
    )
    assert [line for line in user.lines if line not in there + rescued] == []
    for result, number in zip(results, range(0, 60, 10), strict=True):
        if not result.ok:
            # All of it or nothing; and they are told what to do.
            assert f"child {number}\n" not in there
            assert result.kept
            assert "retinue redo" in (result.error or "") or "conflict in" in (result.error or "")
    assert not list((repo.root / ".retinue" / "git" / "tmp").glob("apply-*"))


@pytest.mark.slow
@settings(usual, max_examples=6)
@given(world=worlds(8), seeds=st.tuples(st.integers(), st.integers()))
async def test_the_same_plan_makes_the_same_commits(
    repos: Callable[[], Repo], world: World, seeds: tuple[int, int]
) -> None:
    """Chance decides how long each reply takes, and how many there are at a time."""
    merges = []
    for seed in seeds:
        chance, repo = random.Random(seed), repos()
        populate(repo, world)
        script: dict[str, list[Step]] = {
            f"Edit {number}.": [
                call("write_file", path=path, content=text).after(chance.random() / 20),
                say("Done.").after(chance.random() / 20),
            ]
            for number, (path, text) in enumerate(world.edits)
        }
        tasks = [
            Task(role="executor", task=task, write=(path,))
            for task, (path, _) in zip(script, world.edits, strict=True)
        ]
        found: list[str] = []

        def listen(event: Event, found: list[str] = found) -> None:
            if isinstance(fact := event.fact, WorktreeMerged):
                found.append(fact.commit)

        async with retinue.open(
            repo.root,
            model=ScriptedModel(script),
            mode="auto",
            environment=Environment(variables={"HOME": str(repo.home)}),
            shell=False,
            listeners=retinue.Listeners(on_event=listen),
        ) as rt:
            results = await rt.fan_out(tasks, max_concurrent=chance.randint(1, 8))
        assert all(result.ok for result in results), [result.error for result in results]
        merges.append(found)
    assert merges[0] == merges[1]
