from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.slash_commands import submit
from retinue.models.scripted.model import ScriptedModel, Step, call, say

Opened = Callable[..., AbstractAsyncContextManager[Chat]]
Said = Callable[..., str]
Wait = Callable[[Callable[[], Any]], Awaitable[None]]


def scripted(*steps: Step, **rules: list[Step]) -> ScriptedModel:
    return ScriptedModel({**rules, "": list(steps)}, strict=False)


def idle(chat: Chat) -> Callable[[], bool]:
    return lambda: not chat.host.busy


async def test_export(opened: Opened, project: Path, said: Said, wait: Wait) -> None:
    answer = "It is **empty**. <script>alert(1)</script>"
    async with opened(scripted(call("list_dir"), say(answer))) as chat:
        chat.conversation.entries.clear()
        submit(chat, "/export")
        assert "There is nothing to export yet." in said(chat)
        chat.conversation.entries.clear()
        submit(chat, "Look")
        await wait(idle(chat))
        chat.conversation.add_notice(f"It lies in {project}.")
        submit(chat, "/rename A look")
        await wait(idle(chat))
        submit(chat, "/export talk.md")
        submit(chat, "/export talk.html")
        submit(chat, "/export talk.md")
        submit(chat, "/export no/such/folder.md")
        (project / "away").symlink_to(project.parent)
        submit(chat, "/export away/talk.md")
    text, page = (project / "talk.md").read_text(), (project / "talk.html").read_text()
    assert text.startswith("# A look\n\n## You\n\nLook\n\n```text\n  · list_dir\n")
    assert f"\n\n{answer}\n\n" in text
    assert str(project) not in text + page
    assert "<title>A look</title>" in page
    assert "<strong>empty</strong>. &lt;script&gt;" in page
    assert (project / "talk.html").stat().st_mode & 0o777 == 0o600
    assert "talk.md' exists already; name another file." in said(chat, 300)
    assert "away is a symbolic link; remove it, or name another file." in said(chat, 300)
    assert not (project.parent / "talk.md").exists()
    assert "folder.md cannot be written (No such file or directory)." in said(chat, 300)
