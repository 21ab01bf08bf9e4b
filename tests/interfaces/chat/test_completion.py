from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.completion import (
    MAX_COMPLETIONS,
    Completion,
    ProjectFiles,
    completions,
)
from retinue.interfaces.chat.slash_commands import submit
from retinue.models.scripted.model import ScriptedModel, call, hold, say

Opened = Callable[..., AbstractAsyncContextManager[Chat]]
Wait = Callable[[Callable[[], Any]], Awaitable[None]]


def proposed(chat: Chat, before: str, files: ProjectFiles | None = None) -> list[str]:
    return [p.text for p in completions(chat, files or ProjectFiles(chat.directory), before)]


async def test_complete_commands_and_arguments(opened: Opened, tmp_path: Path) -> None:
    settings = tmp_path / ".config" / "retinue" / "config.toml"
    settings.write_text('[models]\nfast = "openai:small@http://127.0.0.1:1/v1"\n')
    async with opened(ScriptedModel([])) as chat:
        assert proposed(chat, "/mo") == ["/model ", "/mode "]
        assert proposed(chat, "/new") == ["/clear "]
        assert len(proposed(chat, "/")) == MAX_COMPLETIONS
        assert proposed(chat, "/mode a") == ["auto "]
        assert proposed(chat, "/spawn re") == ["researcher ", "reviewer "]
        assert proposed(chat, "/budget max_t") == ["max_tool_calls ", "max_turns ", "max_tokens "]
        assert proposed(chat, "/model ") == ["fast "]
        assert proposed(chat, "/spawn researcher Lo") == []
        assert proposed(chat, "/nothing a") == []
        assert proposed(chat, "words") == []
        (completion,) = completions(chat, ProjectFiles(chat.directory), "/mode pl")
        assert completion == Completion("plan ", "agents only read", 6)


async def test_complete_agents_and_roles(opened: Opened, wait: Wait) -> None:
    never = asyncio.Event()
    spawn = call("spawn_agent", role="researcher", task="Dig")
    model = ScriptedModel({"Dig": [hold(never, say(""))], "": [spawn]}, strict=False)
    async with opened(model) as chat:
        submit(chat, "Go")
        await wait(lambda: chat.active_children())
        assert proposed(chat, "@")[:2] == ["a1 ", "executor "]
        assert proposed(chat, "@te") == ["tester "]
        assert proposed(chat, "/cancel ") == ["a1 "]
        assert proposed(chat, "tell @te") == []


async def test_complete_files(opened: Opened, project: Path) -> None:
    for name in ("src/auth.py", "src/deep/auth_test.py", "AUTHORS", "notes.txt"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
    async with opened(ScriptedModel([])) as chat:
        files = ProjectFiles(project)
        assert proposed(chat, "see @au", files) == []
        await files.load()
        assert proposed(chat, "see @au", files) == [
            "AUTHORS ",
            "src/auth.py ",
            "src/deep/auth_test.py ",
        ]
        assert proposed(chat, "see @deep/", files) == ["src/deep/auth_test.py "]
        assert proposed(chat, "@no", files) == ["notes.txt "]
        assert proposed(chat, "me@no", files) == []


async def test_completions_without_a_model(opened: Opened) -> None:
    async with opened(None) as chat:
        assert proposed(chat, "/mo") == ["/model ", "/mode "]
        assert proposed(chat, "/spawn re") == []
        assert proposed(chat, "@te") == []


async def test_missing_directory_has_no_files(tmp_path: Path) -> None:
    files = ProjectFiles(tmp_path / "gone")
    await files.load()
    assert files.matching("a", 5) == []


async def test_complete_and_run_commands_of_files(
    opened: Opened, project: Path, wait: Wait
) -> None:
    folder = project / ".claude/commands/team"
    folder.mkdir(parents=True)
    (folder / "greet.md").write_text("---\ndescription: Greets.\n---\nGreet $0 warmly.")
    (project / ".claude/commands/mode.md").write_text("Not this one.")
    model = ScriptedModel({"Greet Ada warmly.": [say("Hello, Ada.")]})
    async with opened(model, trust=True) as chat:
        assert completions(chat, ProjectFiles(chat.directory), "/te") == [
            Completion("/team:greet ", "Greets.", 0)
        ]
        submit(chat, "/mode")
        submit(chat, "/team:greet Ada")
        await wait(lambda: chat.session and not chat.host.busy)
    (request,) = model.requests
    assert str(request.messages[-1].content).startswith("Greet Ada warmly.\n")
