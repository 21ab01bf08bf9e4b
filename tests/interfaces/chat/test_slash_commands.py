from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from retinue.errors import ProviderError
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.slash_commands import COMMANDS, COMMANDS_BY_NAME, help_tables, submit
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, say

Opened = Callable[..., AbstractAsyncContextManager[Chat]]
Said = Callable[..., str]
Wait = Callable[[Callable[[], Any]], Awaitable[None]]


def scripted(*steps: Step, **rules: list[Step]) -> ScriptedModel:
    return ScriptedModel({**rules, "": list(steps)}, strict=False)


def idle(chat: Chat) -> Callable[[], bool]:
    return lambda: not chat.host.busy


async def test_invalid_commands(opened: Opened, said: Said) -> None:
    mistakes = {
        "/modell": "Unknown command /modell. Did you mean /model?",
        "/init": "There is no /init here. In a shell, use: retinue init",
        "/qqq": "Unknown command /qqq. /help lists all commands.",
        "/mode fast": "Unknown mode 'fast'; use one of: plan, normal, auto, dangerous.",
        "/budget speed 3": "Unknown limit 'speed'; use one of: max_tool_calls, max_turns,",
        "/budget max_turns many": "max_turns must be a number, not 'many'.",
        "/budget max_turns 0": "max_turns must be positive, not 0.",
        "/spawn": "/spawn needs a task: /spawn [",
        "/spawn tester": "/spawn needs a task: /spawn [",
        "/help modle": "Unknown command /modle. /help lists all commands.",
    }
    async with opened(scripted()) as chat:
        for line, answer in mistakes.items():
            submit(chat, line)
            assert answer in said(chat)
        submit(chat, "   ")


async def test_every_command(opened: Opened, project: Path, said: Said, wait: Wait) -> None:
    quits: list[bool] = []
    model = scripted(
        calls(
            call("spawn_agent", role="researcher", task="Dig"),
            call("spawn_agent", role="reviewer", task="Break"),
        ),
        say("All done."),
        say("The reviewer failed."),
        say("It was short."),
        Dig=[say("Gold.")],
        Break=[fail(ProviderError("Refused."))],
    )
    async with opened(model, shell=False, on_quit=lambda: quits.append(True)) as chat:
        submit(chat, "Go")
        await wait(idle(chat))
        answers = {
            "tasks": [
                "a2 reviewer.1     error",
                "Break  (Refused.)",
                "a1 researcher.1   completed",
            ],
            "agents": ["researcher", "tester"],
            "model": [
                "The model is scripted. No other is configured, and no model server was found."
            ],
            "mode": ["Mode (now normal)", "plan  agents only read"],
            "theme": ["Theme", "terminal  the terminal's own colours"],
            "budget": ["This conversation has used ", "max_tool_calls 100", "max_cost_usd none"],
            "status": ["sandbox    none: shell commands are off", "agents     1 failed, 1 done"],
            "resume": [f"{chat.session}", "1 message"],
            "sessions": [f"{chat.session}", "1 message"],
            "rename": ["/rename needs a title: /rename TITLE"],
            "copy": ["There is no terminal to copy with."],
            "compact": ["❯ Sum up the conversation so far.", "9 messages became a summary"],
            "export": ["Exported to"],
            "diff": ["This conversation has changed no files."],
            "undo": ["There is nothing to undo in this conversation."],
            "redo": ["There is nothing to redo in this conversation."],
            "rewind": ["Undo the file changes since which message?", "Go"],
            "help": ["/spawn [ROLE] TASK", "@FILE", "ctrl+g"],
        }
        for name, expected in answers.items():
            shown = len(said(chat))
            submit(chat, f"/{name}")
            await wait(idle(chat))
            for text in expected:
                assert text in said(chat)[shown:], name
        submit(chat, "/clear")
        assert chat.conversation.entries == []
        assert chat.session is None
        submit(chat, "/tasks")
        assert "This conversation has no child agents yet." in said(chat)
        submit(chat, "/quit")
    assert quits == [True]
    tested_elsewhere = {"spawn", "plan", "fork", "cancel", "clear", "quit"}
    assert {c.name for c in COMMANDS} == answers.keys() | tested_elsewhere


async def test_help(opened: Opened, said: Said) -> None:
    async with opened(scripted()) as chat:
        submit(chat, "/help")
        for command in COMMANDS:
            assert f"  /{command.name}" in said(chat)
            assert " ".join(command.help.split()) in " ".join(said(chat).split())
        submit(chat, "/help mode")
        assert "/mode [MODE]\nShow or change what agents may do" in said(chat)
    for name in ("new", "stop", "exit", "permissions", "?"):
        assert name in COMMANDS_BY_NAME


def test_docs_page_has_the_help_tables() -> None:
    page = (Path(__file__).parents[3] / "docs" / "chat.md").read_text()
    for title, rows in help_tables().items():
        table = "".join(f"| `{name}` | {text} |\n" for name, text in rows)
        assert f"## {title}\n\n| | |\n|---|---|\n{table}" in page, "run script/pictures"


async def test_tasks_lists_a_limited_number(opened: Opened, said: Said, wait: Wait) -> None:
    spawn = calls(*(call("spawn_agent", role="researcher", task=f"Dig {n}") for n in range(45)))
    async with opened(scripted(spawn, say("ok"), Dig=[say("ok")])) as chat:
        submit(chat, "Go")
        await wait(idle(chat))
        submit(chat, "/tasks")
        assert "… and 5 more" in said(chat)


async def test_agents_are_numbered_once_in_a_chat(
    opened: Opened, project: Path, said: Said, wait: Wait
) -> None:
    """Also across a change of the mode, which opens another runtime, and a resumed session."""

    def make(name: str) -> list[Any]:
        return [call("write_file", path=f"{name}.txt", content=name), say("ok")]

    asks = call("spawn_agent", role="executor", task="Dig two")
    more = call("spawn_agent", role="executor", task="Dig four")
    model = scripted(
        asks,
        say("ok"),
        more,
        say("ok"),
        **{f"Dig {name}": make(name) for name in ("one", "two", "three", "four")},
    )
    async with opened(model, mode="auto") as chat:
        for line in ("/spawn executor Dig one", "Go", "/budget max_turns 40"):
            submit(chat, line)
            await wait(lambda: chat.host.ready and idle(chat)())
        submit(chat, "/spawn executor Dig three")
        await wait(idle(chat))
        submit(chat, "Go on")
        await wait(idle(chat))
        children = [agent.id for _, agent in chat.agents() if agent.parent_id]
        assert sorted(children) == ["a1", "a2", "a3", "a4"]
        for number, name in enumerate(("one", "two", "three", "four"), start=1):
            shown = len(said(chat))
            submit(chat, f"/undo a{number}")
            await wait(idle(chat))
            assert f"{name}.txt" in said(chat)[shown:]
            assert not (project / f"{name}.txt").exists()


async def test_diff_undo_redo(opened: Opened, project: Path, said: Said, wait: Wait) -> None:
    write = [call("write_file", path=f"{name}.txt", content=name) for name in ("one", "two")]
    model = scripted(write[0], say("ok"), write[1], say("ok"), Dig=[say("Nothing.")])

    async with opened(model, mode="auto") as chat:

        async def output_of(line: str) -> str:
            shown = len(said(chat))
            submit(chat, line)
            await wait(idle(chat))
            return said(chat)[shown:]

        assert "There is nothing to undo in this conversation." in await output_of("/undo")
        assert "There is nothing to redo in this conversation." in await output_of("/redo")
        assert "This conversation has changed no files." in await output_of("/diff")
        await output_of("One")
        await output_of("Two")
        assert "step 1, by a0 (root): write two.txt\n" in await output_of("/diff")
        assert "1 file undone:\n  two.txt (-1 line, removed)" in await output_of("/undo")
        assert [p.name for p in project.glob("*.txt")] == ["one.txt"]  # noqa: ASYNC240
        await output_of("/undo")
        assert "1 file redone:\n  one.txt (+1 line, new file)" in await output_of("/redo")
        assert "two.txt" in await output_of("/redo a0")
        (project / "two.txt").write_text("mine")
        refused = await output_of("/undo")
        assert "Nothing was undone: later changes conflict with it: two.txt." in refused
        await output_of("/spawn Dig")
        assert "a1 has changed no files." in await output_of("/diff a1")
        assert "There is nothing to undo of a1 in run" in await output_of("/undo a1")


async def test_rewind_undoes_all_changes_since_a_message(
    opened: Opened, project: Path, said: Said, wait: Wait
) -> None:
    write = [call("write_file", path="a.txt", content=text) for text in ("1", "12", "123")]
    model = scripted(*(step for one in write for step in (one, say("ok"))), say("Read."))
    drafts: list[str] = []
    async with opened(model, mode="auto") as chat:
        chat.on_draft = drafts.append
        submit(chat, "/rewind")
        assert "This conversation has no message yet." in said(chat)
        for text in ("One", "Two", "Three", "What is in it?"):
            submit(chat, text)
            await wait(idle(chat))
        first, second, *_ = chat.forest.trees
        submit(chat, "/rewind")
        assert f"{second}  Two (changed 1 file)" in said(chat)
        submit(chat, f"/rewind {second}")
        await wait(idle(chat))
        assert (project / "a.txt").read_text() == "1"
        assert said(chat).count("1 file undone:\n  a.txt (+1/-1 lines)") == 2
        assert drafts == ["Two"]
        submit(chat, "/redo")
        await wait(idle(chat))
        assert (project / "a.txt").read_text() == "12"
        (project / "a.txt").write_text("mine")
        submit(chat, f"/rewind {first}")
        await wait(idle(chat))
        assert "Nothing was undone: later changes conflict with it: a.txt." in said(chat)
        assert (project / "a.txt").read_text() == "mine"
        assert drafts == ["Two"]
        submit(chat, "/rewind nowhere")
        assert f"/rewind takes the run of a message: {first}, {second}," in said(chat)
