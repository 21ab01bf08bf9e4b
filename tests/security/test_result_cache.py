"""A cached result is used only if a new child would read exactly the same."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.domain.events import AgentCreated, CachedResultUsed, Event
from retinue.domain.result import Result
from retinue.models.scripted.model import (
    ScriptedModel,
    ScriptedReply,
    call,
    calls,
    hold,
    raw_call,
    say,
)
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

LOOKS = {
    "read_file": call("read_file", path="a.txt"),
    "a range": call("read_file", path="a.txt", start=1, end=1),
    "list_dir": call("list_dir", path="."),
    "find_files": call("find_files", pattern="*.txt"),
    "search_files": call("search_files", pattern="needle"),
    "a folder": call("search_files", pattern="needle", path="sub"),
    "recall": call("recall", query="needle"),
}


@pytest.fixture
def project(project: Path) -> Path:
    (project / "a.txt").write_text("first\nneedle\nlast\n")
    (project / "sub").mkdir()
    (project / "sub" / "b.txt").write_text("a needle here\n")
    (project / "other.md").write_text("nothing\n")
    return project


class Asked:
    """Asks the same of a child in runtimes opened one after the other."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self.count = 0

    async def __call__(
        self, look: ScriptedReply, role: str = "researcher", settings: Any = None, **terms: Any
    ) -> Result:
        self.count += 1
        settings = settings or {}
        self.model = ScriptedModel(
            {"": [look, say(f"Answer {self.count}.")]},
            strict=False,
            name=settings.get("model_name", "scripted"),
        )
        self.events: list[Event] = []
        settings = {"cache": True} | {k: v for k, v in settings.items() if k != "model_name"}
        async with self._opened(model=self.model, on_event=self.events.append, **settings) as rt:
            return await rt.spawn(role, "Look.", **terms)

    @property
    def cached(self) -> bool:
        return any(isinstance(event.fact, CachedResultUsed) for event in self.events)


@pytest.fixture
def asked(opened: Opened) -> Asked:
    return Asked(opened)


@pytest.mark.parametrize("name", LOOKS)
async def test_equal_task_over_equal_files_is_cached(asked: Asked, name: str) -> None:
    first = await asked(LOOKS[name])
    assert (first.response, first.cached, asked.cached) == ("Answer 1.", False, False)
    for _ in range(2):
        again = await asked(LOOKS[name])
        assert (again.response, again.cached, asked.cached) == ("Answer 1.", True, True)
        assert asked.model.requests == []
        assert again.usage.tokens == 0
        assert again.files_read == first.files_read


def in_place(path: Path, text: str) -> None:
    """Change a file, and nothing that can be set of what the system tells about it."""
    before = path.stat()
    path.write_text(text)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced_by_a_link(project: Path) -> None:
    (project / "a.txt").rename(project / "x.txt")
    (project / "a.txt").symlink_to("sub/b.txt")


CHANGES: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "the file is changed": (
        lambda p: (p / "a.txt").write_text("first\nneedle\nlast\nmore\n"),
        {"read_file", "a range", "list_dir", "find_files", "search_files"},
    ),
    "outside of what was read, in place": (
        lambda p: in_place(p / "a.txt", "first\nneedle\nLAST\n"),
        {"read_file", "a range", "find_files", "search_files"},
    ),
    "a hit is changed, in place": (
        lambda p: in_place(p / "sub" / "b.txt", "A NEEDLE HERE\n"),
        {"find_files", "search_files", "a folder"},
    ),
    "no hit becomes one, in place": (
        lambda p: in_place(p / "other.md", "needle!\n"),
        {"find_files", "search_files"},
    ),
    "a new file that matches": (
        lambda p: (p / "sub" / "c.txt").write_text("another needle\n"),
        {"find_files", "search_files", "a folder"},
    ),
    "a new file that does not match": (
        lambda p: (p / "sub" / "c.md").write_text("hay\n"),
        {"find_files", "search_files", "a folder"},
    ),
    "a new file beside": (
        lambda p: (p / "new.md").write_text("hay\n"),
        {"list_dir", "find_files", "search_files"},
    ),
    "a file is gone": (
        lambda p: (p / "other.md").unlink(),
        {"list_dir", "find_files", "search_files"},
    ),
    "the file is gone": (
        lambda p: (p / "a.txt").unlink(),
        {"read_file", "a range", "list_dir", "find_files", "search_files"},
    ),
    "a file has another name": (
        lambda p: (p / "sub" / "b.txt").rename(p / "sub" / "z.txt"),
        {"find_files", "search_files", "a folder"},
    ),
    "the file is a link now": (
        replaced_by_a_link,
        {"read_file", "a range", "list_dir", "find_files", "search_files"},
    ),
    "a folder is there too": (lambda p: (p / "empty").mkdir(), {"list_dir"}),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_any_change_of_what_was_read_invalidates(
    opened: Opened, project: Path, change: str
) -> None:
    act, noticed_by = CHANGES[change]
    looks = [name for name in LOOKS if name != "recall"]

    async def all_look(time: int) -> dict[str, Result]:
        steps = {f"Look: {name}.": [LOOKS[name], say(f"Answer {time}.")] for name in looks}
        async with opened(model=ScriptedModel(steps, strict=False), cache=True) as rt:
            return {name: await rt.spawn("researcher", f"Look: {name}.") for name in looks}

    assert not any(result.cached for result in (await all_look(1)).values())
    act(project)
    again = await all_look(2)
    assert {name for name, result in again.items() if not result.cached} == noticed_by
    for name, result in again.items():
        assert result.response == ("Answer 2." if name in noticed_by else "Answer 1."), name


@pytest.fixture
def repository(project: Path) -> Path:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    return project


async def test_ignored_files_count_for_searches(asked: Asked, repository: Path) -> None:
    project = repository
    (project / ".gitignore").write_text("*.log\n")
    (project / "x.log").write_text("needle\n")
    look = LOOKS["search_files"]
    await asked(look)
    assert (await asked(look)).cached
    (project / "x.log").write_text("needle, but ignored\n")
    assert (await asked(look)).cached, "nobody sees what is ignored"
    (project / ".gitignore").write_text("*.log2\n")
    assert not (await asked(look)).cached
    (project / ".git" / "info" / "exclude").write_text("other.md\n")
    assert not (await asked(look)).cached


async def test_new_memory_invalidates(asked: Asked, opened: Opened) -> None:
    look = LOOKS["recall"]
    await asked(look)
    model = ScriptedModel([call("remember", text="a needle"), say("Remembered.")])
    async with opened(model=model, cache=True) as rt:
        await rt.run("Remember.")
    assert not (await asked(look)).cached


async def test_new_file_invalidates_a_failed_read(asked: Asked, project: Path) -> None:
    look = call("read_file", path="missing.txt")
    await asked(look)
    assert (await asked(look)).cached
    (project / "missing.txt").write_text("here\n")
    assert not (await asked(look)).cached


OTHERWISE: dict[str, dict[str, Any]] = {
    "role": {"role": "planner"},
    "tools": {"tools": ("read_file",)},
    "tool calls": {"max_tool_calls": 3},
    "turns": {"max_turns": 9},
    "tokens": {"max_tokens": 30_000},
    "time": {"timeout_s": 77},
    "context": {"context": "By the way."},
    "context file": {"context_files": ("other.md",)},
    "prompt": {"system_prompt": "Be kind."},
    "criteria": {"success_criteria": ("It is true.",)},
    "scope": {"scope": ("sub",)},
    "mode": {"mode": "plan"},
    "directory": {"directory": "sub"},
    "schema": {"output": {"type": "string"}},
    "not wanted": {"cache": False},
    "switched off": {"settings": {"cache": False}},
    "model": {"settings": {"model_name": "another"}},
}


@pytest.mark.parametrize("what", OTHERWISE)
async def test_other_task_is_not_cached(asked: Asked, what: str) -> None:
    await asked(LOOKS["read_file"])
    result = await asked(LOOKS["read_file"], **OTHERWISE[what])
    assert not result.cached
    assert asked.model.requests != []
    assert (await asked(LOOKS["read_file"])).cached, "and the first is still known"


async def test_prompt_is_part_of_the_key(asked: Asked, project: Path) -> None:
    await asked(LOOKS["read_file"])
    (project / "AGENTS.md").write_text("Be brief.\n")
    assert not (await asked(LOOKS["read_file"])).cached


@pytest.mark.parametrize(
    "settings", ["cache = false\n", "[roles.researcher]\nspawns = ['reviewer']"]
)
async def test_settings_can_disable_the_cache(asked: Asked, project: Path, settings: str) -> None:
    """One outright; the other since who delegates sees more than its own receipts tell."""
    (project / "retinue.toml").write_text(settings)
    for _ in range(2):
        assert not (await asked(LOOKS["read_file"], settings={"trust": True})).cached


async def test_writing_child_is_never_cached(asked: Asked) -> None:
    for _ in range(2):
        result = await asked(LOOKS["read_file"], role="executor", settings={"mode": "auto"})
        assert (result.ok, result.cached) == (True, False)


async def test_custom_tool_prevents_caching(asked: Asked) -> None:
    @retinue.tool(effect="read")
    async def weather() -> str:
        """The weather."""
        return "rain"

    for _ in range(2):
        result = await asked(
            call("weather"), settings={"tools": [weather]}, tools=("weather", "read_file")
        )
        assert (result.ok, result.cached) == (True, False)


async def test_failures_are_not_cached(asked: Asked) -> None:
    """The same broken call three times over ends an attempt."""
    for _ in range(2):
        broken = raw_call("read_file", "[]")
        result = await asked(broken, max_turns=1)
        assert (result.ok, result.cached) == (False, False)


async def test_cancelled_child_is_not_cached(opened: Opened, asked: Asked) -> None:
    stop, never = asyncio.Event(), asyncio.Event()
    model = ScriptedModel({"": [LOOKS["read_file"], hold(never, say("Half an answer."))]})

    def listen(event: Event) -> None:
        if event.type == "tool.finished":
            stop.set()

    async with opened(model=model, cache=True, on_event=listen) as rt:
        job = await rt.start("researcher", "Look.")
        await stop.wait()
        job.cancel()
        assert (await job.result()).status == "cancelled"
    result = await asked(LOOKS["read_file"])
    assert not result.cached


async def test_siblings_of_a_fan_out_do_not_share_results(opened: Opened, asked: Asked) -> None:
    answers = iter(range(100))
    look = LOOKS["read_file"]
    model = ScriptedModel({"": [look, lambda request: say(f"Answer {next(answers)}.")]})
    async with opened(model=model, cache=True) as rt:
        results = await rt.fan_out([("researcher", "Look.")] * 5, max_concurrent=1)
    assert [result.cached for result in results] == [False] * 5
    assert len({result.response for result in results}) == 5
    # A fan-out of another day may use one of them, and only for one.
    async with opened(model=model, cache=True) as rt:
        results = await rt.fan_out([("researcher", "Look.")] * 3)
    assert sum(result.cached for result in results) <= 1


async def test_hit_returns_data_for_an_output_schema(asked: Asked, opened: Opened) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    for expected in (False, True):
        model = ScriptedModel({"": [LOOKS["a range"], say('{"n": 3}')]}, strict=False)
        async with opened(model=model, cache=True) as rt:
            result = await rt.spawn("researcher", "Count.", output=schema)
        assert (result.data, result.cached) == ({"n": 3}, expected)


async def test_children_of_a_model_are_cached(opened: Opened) -> None:
    look = calls(LOOKS["read_file"], LOOKS["search_files"])
    for expected in (False, True):
        model = ScriptedModel(
            {
                "Look": [look, say("Found it.")],
                "": [call("spawn_agent", task="Look.", role="researcher"), say("Thanks.")],
            },
            strict=False,
        )
        events: list[Event] = []
        async with opened(model=model, cache=True, on_event=events.append) as rt:
            await rt.run("Lead.")
        hits = [f for e in events if isinstance(f := e.fact, CachedResultUsed)]
        assert bool(hits) is expected
        assert len(model.requests) == (2 if expected else 4)
        told = [str(m) for m in model.requests[-1].messages]
        assert any("cached" in text for text in told) is expected
        assert any("Found it." in text for text in told)


async def test_root_is_never_cached(opened: Opened) -> None:
    for _ in range(2):
        model = ScriptedModel([LOOKS["read_file"], say("Done.")])
        async with opened(model=model, cache=True, mode="plan") as rt:
            assert not (await rt.run("Look.")).cached


async def test_concurrent_runtimes_share_the_cache(opened: Opened, asked: Asked) -> None:
    await asked(LOOKS["read_file"])

    async def once() -> list[Result]:
        model = ScriptedModel({"": [LOOKS["read_file"], say("Answer 1.")]}, strict=False)
        async with opened(model=model, cache=True) as rt:
            tasks = [("researcher", "Look."), ("planner", "Look."), ("reviewer", "Look.")]
            return await rt.fan_out(tasks)

    for results in await asyncio.gather(*(once() for _ in range(6))):
        assert {result.response for result in results} == {"Answer 1."}
        assert results[0].cached


async def test_change_during_the_child_invalidates(
    opened: Opened, asked: Asked, project: Path
) -> None:
    """What counts is what it saw, not what was there when it ended."""

    def change(request: object) -> ScriptedReply:
        (project / "a.txt").write_text("changed\n")
        return say("Answer 1.")

    model = ScriptedModel({"": [LOOKS["read_file"], change]})
    async with opened(model=model, cache=True) as rt:
        await rt.spawn("researcher", "Look.")
    assert not (await asked(LOOKS["read_file"])).cached
    (project / "a.txt").write_text("first\nneedle\nlast\n")
    assert (await asked(LOOKS["read_file"])).cached, "as it was when it was read"


async def test_hit_names_its_source(asked: Asked) -> None:
    first = await asked(LOOKS["read_file"])
    for _ in range(2):
        again = await asked(LOOKS["read_file"])
        (hit,) = [f for e in asked.events if isinstance(f := e.fact, CachedResultUsed)]
        assert (hit.run_id, hit.agent_id) == (first.run_id, first.agent_id)
        assert again.run_id != first.run_id
        assert any(isinstance(e.fact, AgentCreated) for e in asked.events)
