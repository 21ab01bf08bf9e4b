"""The file with a conversation that a hook reads: where it is written, and that it goes again."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import retinue
from retinue.domain.hook import HookEvent
from retinue.domain.messages import UserMessage
from retinue.hooks.transcript_file import transcript_file
from retinue.models.scripted.model import ScriptedModel, call, calls, say
from retinue.ports.hooks import HookCall
from retinue.runtime.runtime import Runtime


def stop_call(project: Path) -> HookCall:
    path = project / ".retinue" / "transcripts" / "k3f9.jsonl"
    return HookCall(
        event=HookEvent.STOP,
        input={"transcript_path": str(path), "cwd": str(project)},
        session="k3f9",
        messages=(UserMessage("Go."),),
        record=lambda fact: None,
    )


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_an_empty_project_stays(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    async with transcript_file(stop_call(project)):
        (file,) = files_in(project)
        assert '"Go."' in file.read_text()
        assert file.stat().st_mode & 0o777 == 0o600
    assert project.is_dir()
    assert files_in(project) == []


@pytest.mark.parametrize("link", [".retinue", ".retinue/transcripts"])
async def test_a_link_that_a_project_put_in_the_way_is_not_followed(
    tmp_path: Path, link: str
) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside"
    outside.mkdir()
    (project / link).parent.mkdir(parents=True)
    (project / link).symlink_to(outside)
    async with transcript_file(stop_call(project)):
        assert files_in(outside) == []


class SlowInput(dict[str, Any]):
    """The input of a hook that is read slowly, as on a busy disk."""

    def __init__(self, input: Mapping[str, Any]) -> None:
        super().__init__(input)
        self.reached, self.may_continue = threading.Event(), threading.Event()

    def __getitem__(self, key: str) -> Any:
        if key == "cwd":
            self.reached.set()
            self.may_continue.wait()
        return super().__getitem__(key)


async def test_a_cancelled_hook_leaves_no_file(tmp_path: Path) -> None:
    call = stop_call(tmp_path)
    slow = SlowInput(call.input)

    async def read() -> None:
        async with transcript_file(msgspec.structs.replace(call, input=slow)):
            raise AssertionError("it was cancelled before")

    reading = asyncio.create_task(read())
    await asyncio.to_thread(slow.reached.wait)
    reading.cancel()
    await asyncio.sleep(0)
    slow.may_continue.set()
    await asyncio.wait([reading])
    assert reading.cancelled()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert files_in(tmp_path) == []


@retinue.tool(effect="read")
async def page(number: int) -> str:
    """A long page."""
    return f"{number} " * 2_000


async def test_children_that_are_summed_up_have_files_of_their_own(
    opened: Callable[..., AbstractAsyncContextManager[Runtime]],
    settings: Callable[[str], None],
    tmp_path: Path,
) -> None:
    hook = f"{{ type = 'command', command = 'cat >> {tmp_path}/told' }}"
    settings(f"[[hooks.PreCompact]]\nhooks = [{hook}]\n")
    script = [
        calls(*(call("page", number=n) for n in (1, 2)), text="x" * 4_000),
        calls(*(call("page", number=n) for n in (3, 4)), text="x" * 6_000),
        say("I read pages 1 to 4."),
        say("Read."),
    ]
    async with opened(model=ScriptedModel(script), tools=[page]) as rt:
        result = await rt.spawn("researcher", "Read.", tools=("page",), max_context_tokens=3_500)
    assert result.response == "Read."
    told = json.loads((tmp_path / "told").read_text())
    assert told["transcript_path"].endswith(
        f"{result.run_id}/subagents/agent-{told['agent_id']}.jsonl"
    )
