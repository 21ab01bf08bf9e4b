"""Agents on a host that does not see the files: more of them than the host has threads."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from retinue.config.environment import Environment
from retinue.domain.events import Event, ToolFinished
from retinue.models.scripted.model import ScriptedReply, call, say
from retinue.runtime.runtime import Runtime
from retinue.testing.server import ModelServer, Received

AGENTS = min(32, (os.cpu_count() or 1) + 4) + 2
"""More than the threads that asyncio has for blocking work."""


def commit_all(project: Path) -> None:
    who = ("-c", "user.name=user", "-c", "user.email=user@example.org")
    for arguments in (("add", "-A"), ("commit", "-q", "-m", "the first")):
        subprocess.run(["git", *who, *arguments], cwd=project, check=True)


@pytest.mark.parametrize("role", ["researcher", "executor"])
async def test_all_get_their_files_and_the_history_at_once(
    role: str,
    new_project: Any,
    environment: Environment,
    open_project: Callable[..., AbstractAsyncContextManager[Runtime]],
    other_disk: Callable[[], None],
) -> None:
    other_disk()
    environment.user_settings_file.write_text('[roles.executor]\ntools = ["git_read"]\n')
    project = new_project("many")
    commit_all(project)

    def answer(request: Received) -> ScriptedReply:
        read = any(message["role"] == "tool" for message in request.json["messages"])
        return say("Read.") if read else call("git_read", what="log")

    events: list[Event] = []
    async with (
        ModelServer(answer) as server,
        open_project(
            project,
            model=f"openai:any@{server.base_url}",
            environment=environment,
            mode="auto",
            cluster="local:1",
            unsafe_no_sandbox=True,
            cache=False,
            on_event=events.append,
        ) as rt,
    ):
        tasks = [(role, f"Read the history: {number}.") for number in range(AGENTS)]
        results = await rt.fan_out(tasks, max_concurrent=AGENTS)
    assert [result.error for result in results if not result.ok] == []
    read = [fact.content for event in events if isinstance(fact := event.fact, ToolFinished)]
    assert ["the first" in content for content in read] == [True] * AGENTS
