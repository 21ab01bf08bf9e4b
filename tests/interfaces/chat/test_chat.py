"""A chat without a screen: messages, agents, interruptions, questions, shell commands, sessions."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from retinue.config.environment import Environment
from retinue.domain.messages import Request, UserMessage
from retinue.domain.remote_commands import Command, Verb, encode_command
from retinue.errors import Unreachable
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.slash_commands import submit
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, hold, say
from retinue.project import open_run_locks
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.history.session import LAST
from retinue.testing.server import ModelServer, Response, ResponseEnding

Opened = Callable[..., AbstractAsyncContextManager[Chat]]
Said = Callable[..., str]
Wait = Callable[[Callable[[], Any]], Awaitable[None]]


def scripted(*steps: Step, **rules: list[Step]) -> ScriptedModel:
    return ScriptedModel({**rules, "": list(steps)}, strict=False)


def user_messages(request: Request) -> list[str]:
    """User messages of a request, without the context around the task."""
    return [
        m.content.split("\n\nDirectory")[0] for m in request.messages if isinstance(m, UserMessage)
    ]


def idle(chat: Chat) -> Callable[[], bool]:
    return lambda: not chat.host.busy


# Messages


async def test_each_message_continues_the_conversation(
    opened: Opened, said: Said, wait: Wait
) -> None:
    model = ScriptedModel([say("First answer."), say("Second answer.")])
    async with opened(model) as chat:
        submit(chat, "One?")
        await wait(idle(chat))
        submit(chat, "Two?")
        await wait(idle(chat))
        assert len(chat.forest.trees) == 2
        assert chat.session == next(iter(chat.forest.trees))
    assert user_messages(model.requests[1]) == ["One?", "Two?"]
    assert "❯ One?\n\nFirst answer.\n\n" in said(chat)
    assert "❯ Two?\n\nSecond answer.\n\n" in said(chat)


async def test_reply_is_shown_while_it_streams(opened: Opened, said: Said, wait: Wait) -> None:
    async with opened(scripted(say("One two three. " * 50).after(60.0))) as chat:
        submit(chat, "Go")
        await wait(lambda: "One two three." in said(chat))
        submit(chat, "/cancel")
        await wait(idle(chat))
    assert "■ cancelled: stopped by the user" in said(chat)


async def test_message_to_a_running_agent_is_read_before_its_next_turn(
    opened: Opened, said: Said, wait: Wait
) -> None:
    gate = asyncio.Event()
    model = scripted(hold(gate, call("list_dir")), say("Blue it is."))
    async with opened(model) as chat:
        submit(chat, "Paint it")
        await wait(lambda: len(model.requests) == 1)
        submit(chat, "in blue")
        assert chat.unread_messages == ["in blue"]
        gate.set()
        await wait(idle(chat))
        assert chat.unread_messages == []
    assert user_messages(model.requests[1])[-1] == "in blue"
    assert "❯ in blue\n\nBlue it is." in said(chat)


async def test_mentioned_files_are_attached(opened: Opened, project: Path, wait: Wait) -> None:
    (project / "a.txt").write_text("the text of a")
    model = scripted(say("ok"))
    async with opened(model) as chat:
        submit(chat, "Look at @a.txt, and @gone.txt")
        await wait(idle(chat))
    assert "the text of a" in model.requests[0].messages[1].content
    assert "gone.txt" in model.requests[0].messages[1].content


async def test_file_that_does_not_fit_is_reported(
    opened: Opened, project: Path, said: Said, wait: Wait
) -> None:
    (project / "big.txt").write_text("x" * 200_000)
    async with opened(scripted()) as chat:
        submit(chat, "Look at @big.txt")
        await wait(idle(chat))
        assert "big.txt: its 50,000 tokens do not fit" in said(chat)
        assert chat.current_run_id is None


# Agents


async def test_spawn_runs_in_the_background_and_reports_with_the_next_message(
    opened: Opened, said: Said, wait: Wait
) -> None:
    model = scripted(say("I know."), Dig=[say("Found gold.")])
    async with opened(model) as chat:
        submit(chat, "/spawn reviewer Dig here")
        await wait(idle(chat))
        submit(chat, "@researcher Dig there")
        await wait(idle(chat))
        submit(chat, "/spawn Dig anywhere")
        await wait(idle(chat))
        assert '[reviewer] Completed: "Dig here"' in said(chat)
        assert '[researcher] Completed: "Dig there"' in said(chat)
        assert '[researcher] Completed: "Dig anywhere"' in said(chat)
        submit(chat, "What did they find?")
        await wait(idle(chat))
    last = model.requests[-1].messages[-1].content
    assert last.count("Found gold.") == 3
    assert last.startswith("What did they find?")


async def test_message_to_one_agent(opened: Opened, said: Said, wait: Wait) -> None:
    gate = asyncio.Event()
    model = scripted(
        call("spawn_agent", role="researcher", task="Dig"),
        say("done"),
        Dig=[hold(gate, call("list_dir")), say("Deeper.")],
    )
    async with opened(model) as chat:
        submit(chat, "Go")
        await wait(lambda: len(model.requests) == 2)
        submit(chat, "@researcher.1 deeper")
        submit(chat, "@a1 and wider")
        gate.set()
        await wait(idle(chat))
    heard = next(r for r in model.requests if len(user_messages(r)) == 3)
    assert user_messages(heard) == ["Dig", "deeper", "and wider"]
    assert "» researcher.1: deeper" in said(chat)


async def test_cancel_one_agent_then_the_run(opened: Opened, said: Said, wait: Wait) -> None:
    never = asyncio.Event()
    spawn = calls(*(call("spawn_agent", role="researcher", task="Dig") for _ in range(2)))
    model = scripted(spawn, hold(never, say("never")), Dig=[hold(never, say("never"))])
    async with opened(model) as chat:
        submit(chat, "Go")
        await wait(lambda: len(model.requests) == 3)
        submit(chat, "/cancel a1")
        await wait(lambda: "stopped by the user" in said(chat))
        submit(chat, "/cancel researcher.9")
        assert "No agent 'researcher.9' in this conversation" in said(chat)
        assert "its children: researcher.1, researcher.2." in said(chat)
        submit(chat, "/cancel a1")
        assert "a1 (root/researcher.1) has already ended." in said(chat)
        submit(chat, "/cancel")
        await wait(idle(chat))
        submit(chat, "/cancel")
        assert "Nothing is running." in said(chat)
    assert [a.close_reason for _, a in chat.agents()] == ["stopped by the user"] * 3


async def test_cancel_a_background_agent(opened: Opened, wait: Wait) -> None:
    model = scripted(Dig=[hold(asyncio.Event(), say("never"))])
    async with opened(model) as chat:
        submit(chat, "/spawn Dig")
        await wait(lambda: len(model.requests) == 1)
        submit(chat, "/cancel")
        await wait(idle(chat))
        assert [a.close_reason for _, a in chat.active_children()] == []


async def test_closing_suspends_the_run_and_cancels_background_agents(
    opened: Opened, wait: Wait
) -> None:
    model = scripted(hold(asyncio.Event(), say("never")), Dig=[hold(asyncio.Event(), say("never"))])
    async with opened(model) as chat:
        submit(chat, "/spawn Dig")
        submit(chat, "Go")
        await wait(lambda: len(model.requests) == 2)
    ends = {tree.run.kind: (a.state, a.close_reason) for tree, a in chat.agents() if a.parent_id}
    assert ends == {"program": ("closed", "the chat was closed")}
    assert chat.interrupted_run
    assert chat.interrupted_run.suspend_reason == "the chat was closed"


# Interruptions


def spawning(gate: asyncio.Event) -> ScriptedModel:
    """A model with two children: one finishes at once, the other waits for the gate."""
    sent = calls(*(call("spawn_agent", role="researcher", task=t) for t in ("Look", "Wait")))
    return scripted(sent, say("Both."), Look=[say("ok")], Wait=[hold(gate, say("Late."))])


async def test_resume_interrupted_run(opened: Opened, said: Said, wait: Wait) -> None:
    gate = asyncio.Event()
    model = spawning(gate)
    async with opened(model) as chat:
        submit(chat, "Go")
        await wait(lambda: len(model.requests) == 3 and len(chat.active_children()) == 1)
        assert chat.interrupt()
        await wait(idle(chat))
        assert "■ interrupted by the user\n  /resume continues it" in said(chat)
        assert '[researcher] Paused: "Wait"' in said(chat)
        assert "model failed" not in said(chat)
        assert chat.active_children() == []
        assert not chat.interrupt()
        gate.set()
        submit(chat, "/resume")
        await wait(lambda: "Both." in said(chat))
        await wait(idle(chat))
        assert chat.interrupted_run is None
        assert [a.status for _, a in chat.agents()] == ["completed"] * 3
        # Only the unfinished child and its parent call the model again.
        assert len(model.requests) == 5


async def test_the_run_of_a_killed_process_is_shown_as_stopped_and_resumed(
    opened: Opened, said: Said, wait: Wait, project: Path, tmp_path: Path
) -> None:
    hanging = Response(ending=ResponseEnding.HANG)
    async with ModelServer([call("list_dir"), hanging, say("An empty project.")]) as server:
        model = f"openai:m@{server.base_url}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", "from retinue.interfaces.cli.main import main; main()"),
            *("run", "-q", "-m", model, "What is this?"),
            cwd=project,
            env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        )
        await server.received(2)
        while_it_runs = Chat(project, model=model, environment=user(tmp_path))
        await while_it_runs.load_session(LAST)
        assert "■ another process works on this run; `retinue watch " in said(while_it_runs)
        assert not any(tree.active for tree in while_it_runs.forest.trees.values())
        process.kill()
        await process.wait()
        options = {"clock": SystemClock(), "environment": user(tmp_path)}
        async with opened(model, session=LAST, **options) as chat:
            assert "■ retinue ended before this run was over\n  /resume continues" in said(chat)
            assert not any(tree.active for tree in chat.forest.trees.values())
            await wait(lambda: chat.host.ready)
            submit(chat, "/resume")
            await wait(lambda: "An empty project." in said(chat))
            await wait(idle(chat))
            assert "model failed" not in said(chat)
    assert len(server.requests) == 3


def user(home: Path) -> Environment:
    return Environment(variables={"HOME": str(home)})


async def test_run_is_interrupted_for_another_process(
    opened: Opened, said: Said, wait: Wait, tmp_path: Path
) -> None:
    model = scripted(hold(asyncio.Event(), say("ok")))
    # A command is signed with the user's key.
    async with opened(model, clock=SystemClock(), environment=user(tmp_path)) as chat:
        submit(chat, "Go")
        await wait(lambda: len(model.requests) == 1)
        command = encode_command(Command(verb=Verb.STOP, agent_id="a0", by="web"))
        locks = open_run_locks(chat.directory, user(tmp_path))
        assert locks.send(chat.current_run_id or "", command)
        await wait(idle(chat))
        assert "■ interrupted by the user" in said(chat)


async def test_message_after_an_interruption(opened: Opened, wait: Wait) -> None:
    gate = asyncio.Event()
    model = scripted(hold(gate, say("ok")))
    async with opened(model) as chat:
        submit(chat, "Go")
        await wait(lambda: len(model.requests) == 1)
        chat.interrupt()
        await wait(idle(chat))
        gate.set()
        submit(chat, "Stay")
        await wait(lambda: len(model.requests) == 2)
        await wait(idle(chat))
    note = "[This was ended before it was done: interrupted by the user]"
    assert user_messages(model.requests[1]) == ["Go", note, "Stay"]


async def test_resume_run_of_a_closed_chat(opened: Opened, said: Said, wait: Wait) -> None:
    gate = asyncio.Event()
    model = spawning(gate)
    async with opened(model) as chat:
        submit(chat, "Go")
        await wait(lambda: len(model.requests) == 3 and len(chat.active_children()) == 1)
    gate.set()
    async with opened(model, session="last") as chat:
        await wait(lambda: chat.host.ready)
        assert "■ the chat was closed" in said(chat)
        submit(chat, "/mode plan")
        await wait(lambda: chat.host.ready)
        submit(chat, "/resume")
        assert "The run was started with scripted in normal mode. Choose these" in said(chat)
        submit(chat, "/mode normal")
        await wait(lambda: chat.host.ready)
        submit(chat, "/resume")
        await wait(lambda: "Both." in said(chat))
        await wait(idle(chat))


async def test_resume_after_the_model_failed(opened: Opened, said: Said, wait: Wait) -> None:
    gone = fail(Unreachable("The server is gone."))
    model = scripted(call("list_dir", path="."), gone, say("Back."))
    async with opened(model) as chat:
        submit(chat, "Go")
        await wait(lambda: "■ The agent waits for scripted: The server is gone." in said(chat))
        await wait(idle(chat))
        submit(chat, "/resume")
        await wait(lambda: "Back." in said(chat))
        await wait(idle(chat))


async def test_spawns_that_end_without_a_child_are_shown(
    opened: Opened, said: Said, wait: Wait
) -> None:
    sent = calls(
        call("spawn_agent", role="executor", task="Write it"),
        call("spawn_agent", role="executor", task="Write more"),
        call("spawn_agent", role="rocket", task="Fly"),
        call("spawn_agent", role="researcher", task="Look"),
    )
    model = scripted(sent, say("Only one went."), Look=[say("Nothing here.")])
    async with opened(model) as chat:
        submit(chat, "Go")
        await wait(lambda: chat.questions.open)
        submit(chat, "no, only look")
        await wait(lambda: "Only one went." in said(chat))
        await wait(idle(chat))
        text = said(chat)
    for task in ("Write it", "Write more"):
        assert f"  ✗ spawn_agent {task}\n    you said no: only look" in text
    assert "  ✗ spawn_agent Fly\n    " in text
    assert "spawn_agent Look" not in text, "its child is shown"


async def test_interrupt_before_the_first_request(opened: Opened, said: Said, wait: Wait) -> None:
    model = scripted(say("never"))
    async with opened(model) as chat:
        submit(chat, "Go")
        assert chat.interrupt()
        await wait(idle(chat))
        assert "■ interrupted by the user" in said(chat)
        assert model.requests == []
        submit(chat, "/resume")
        await wait(lambda: "There is no earlier conversation to resume." in said(chat))


async def test_a_message_that_mentions_missing_files_is_sent_without(
    opened: Opened, said: Said, wait: Wait, project: Path
) -> None:
    (project / "a.py").write_text("A = 1\n")
    model = scripted(say("Only a.py."))
    async with opened(model) as chat:
        submit(chat, "Compare @a.py with @b.py and @c.png.")
        await wait(lambda: "Only a.py." in said(chat))
        await wait(idle(chat))
        missing = "@b.py and @c.png are no files of this project; the task is sent without them."
        assert missing in said(chat)
    assert "A = 1" in str(model.requests[0].messages)


# Questions


async def test_approvals_and_answers(opened: Opened, project: Path, said: Said, wait: Wait) -> None:
    notifications: list[str] = []
    model = scripted(
        call("write_file", path="a.txt", content="x"),
        call("write_file", path="b.txt", content="x"),
        call("ask_user", question="Colour?"),
        say("ok"),
    )
    async with opened(model, on_notify=notifications.append) as chat:
        submit(chat, "Go")
        await wait(lambda: chat.questions.open)
        submit(chat, "n")
        await wait(lambda: "you said no" in said(chat))
        await wait(lambda: chat.questions.open)
        submit(chat, "y")
        await wait(lambda: chat.questions.open and chat.questions.open[0].request is None)
        submit(chat, "blue")
        await wait(idle(chat))
    assert not (project / "a.txt").exists()
    assert (project / "b.txt").exists()
    assert "❯ blue\n\nok" in said(chat)
    assert notifications == [
        "The agent asks for write_file a.txt",
        "The agent asks for write_file b.txt",
        "The agent has a question",
    ]


async def test_other_text_during_an_approval_goes_to_the_root_agent(
    opened: Opened, wait: Wait
) -> None:
    model = scripted(call("write_file", path="a.txt", content="x"), say("ok"))
    async with opened(model) as chat:
        submit(chat, "Go")
        await wait(lambda: chat.questions.open)
        submit(chat, "yes but in capitals")
        assert chat.unread_messages == ["yes but in capitals"]
        assert chat.questions.open
        submit(chat, "y")
        await wait(idle(chat))


# Shell commands


async def test_model_sees_output_of_shell_command(opened: Opened, said: Said, wait: Wait) -> None:
    model = scripted(say("I see."))
    async with opened(model, unsafe_no_sandbox=True) as chat:
        submit(chat, "!echo out; exit 3")
        await wait(idle(chat))
        assert "$ echo out; exit 3\nout\n(exit 3)" in said(chat)
        submit(chat, "!true")
        await wait(idle(chat))
        assert "$ true\n(exit 0)" in said(chat)
        submit(chat, "What happened?")
        await wait(idle(chat))
    heard = model.requests[0].messages[1].content
    assert "The user ran `echo out; exit 3` (exit 3):\nout" in heard


async def test_shell_commands_need_a_sandbox(opened: Opened, said: Said) -> None:
    async with opened(scripted(), shell=False) as chat:
        submit(chat, "!true")
        submit(chat, "!")
    assert "Shell commands are off: no sandbox is available here." in said(chat)
    assert "Write a command after the exclamation mark: !make test" in said(chat)


async def test_cancel_a_shell_command(
    opened: Opened, said: Said, project: Path, wait: Wait
) -> None:
    async with opened(scripted(), unsafe_no_sandbox=True) as chat:
        submit(chat, "!touch begun; sleep 600")
        await wait((project / "begun").exists)
        assert "$ touch begun; sleep 600\n…" in said(chat)
        submit(chat, "/cancel")
        await wait(idle(chat))
        assert "$ touch begun; sleep 600\n(stopped)" in said(chat)


async def test_compact(opened: Opened, said: Said, wait: Wait) -> None:
    model = ScriptedModel([say("One."), say("They said one."), say("Two.")])
    async with opened(model) as chat:
        submit(chat, "/compact")
        assert "There is nothing to summarize yet." in said(chat)
        for line in ("One?", "/compact", "Two?"):
            submit(chat, line)
            await wait(idle(chat))
        assert len(chat.forest.trees) == 3
        assert chat.session == next(iter(chat.forest.trees))
    assert user_messages(model.requests[1])[-1].startswith("The conversation is too long to go on.")
    last = user_messages(model.requests[2])
    assert "One?" not in last
    assert last[-2].endswith("This is what you wrote down about it:\nThey said one.")
    assert last[-1] == "Two?"


async def test_fork(opened: Opened, said: Said, wait: Wait, project: Path) -> None:
    write = call("write_file", path="a.txt", content="by the fork")
    model = ScriptedModel([say("One."), say("Two."), write, say("Forked."), say("Four.")])
    async with opened(model, mode="auto") as chat:
        submit(chat, "/fork")
        lines = ("One?", "Two?", "/fork t9", "/fork t0 Another way", "/redo a0", "Four?")
        for line in lines:
            submit(chat, line)
            await wait(idle(chat))
        _, second, fork, _ = chat.forest.trees
        shown = " ".join(said(chat).split())
        assert chat.session == fork
    for text in (
        "This conversation has no message yet from which a run could be forked.",
        f"Run {second} cannot be forked at t9; it can at: t0, t1.",
        f"This was a fork of run {second}. Your next message continues from it. It worked in a"
        " copy: /diff a0 shows its changes, /redo a0 applies them.",
    ):
        assert text in shown
    assert (project / "a.txt").read_text() == "by the fork"
    heard = ["One?", "One.", "Two?", "Another way", "Forked.", "Four?"]
    texts = [str(one.content).split("\n")[0] for one in model.requests[-1].messages[1:]]
    assert [text for text in texts if text in heard] == heard
    assert "Two." not in texts


async def test_fork_of_a_child(opened: Opened, said: Said, wait: Wait) -> None:
    spawn = call("spawn_agent", role="researcher", task="Look.")
    model = ScriptedModel([spawn, say("Seen."), say("Done."), say("Seen again.")])
    async with opened(model, mode="auto") as chat:
        for line in ("Lead.", "/fork a9", "/fork a1 t0 Look at all of it."):
            submit(chat, line)
            await wait(idle(chat))
        first, _ = chat.forest.trees
        shown = " ".join(said(chat).split())
    assert f"No agent 'a9' in run {first}; there are: a0 (root), a1 (root/researcher.1)." in shown
    assert f"This was a fork of a1 of run {first}. Your next message continues from it." in shown
    texts = [str(one.content).split("\n")[0] for one in model.requests[-1].messages[1:]]
    assert texts == ["Look.", "Look at all of it."]


# Sessions


async def test_resume_an_earlier_conversation(opened: Opened, said: Said, wait: Wait) -> None:
    async with opened(ScriptedModel([say("First.")])) as chat:
        submit(chat, "One?")
        await wait(idle(chat))
        session = chat.session
    model = ScriptedModel([say("Other."), say("Second.")])
    async with opened(model) as chat:
        submit(chat, "Something else")
        await wait(idle(chat))
        submit(chat, f"/resume {session}")
        await wait(idle(chat))
        assert chat.session == session
        assert "Something else" not in said(chat)
        submit(chat, "Two?")
        await wait(idle(chat))
        assert chat.session == session
    assert "❯ One?\n\nFirst." in said(chat)
    assert user_messages(model.requests[1]) == ["One?", "Two?"]


@pytest.mark.parametrize("name", ["last", "the id"])
async def test_start_with_an_earlier_conversation(
    opened: Opened, said: Said, wait: Wait, name: str
) -> None:
    async with opened(ScriptedModel([say("First.")])) as chat:
        submit(chat, "One?")
        await wait(idle(chat))
        session = chat.session
    async with opened(scripted(), session="last" if name == "last" else session) as chat:
        await wait(lambda: chat.host.ready)
        assert chat.session == session
        assert said(chat).startswith("❯ One?\n\nFirst.")


async def test_resume_without_earlier_conversations(opened: Opened, said: Said, wait: Wait) -> None:
    async with opened(scripted(), session="zzzz") as chat:
        await wait(lambda: chat.host.ready)
        assert "There is no journal at" in said(chat)
        submit(chat, "/resume")
        await wait(idle(chat))
        assert "There is no earlier conversation to resume." in said(chat)
        submit(chat, "/resume zzzz")
        await wait(idle(chat))
        assert "'zzzz'" in said(chat)


async def test_notification_after_a_long_run(opened: Opened, wait: Wait) -> None:
    notifications: list[str] = []
    gate = asyncio.Event()
    model = scripted(hold(gate, say("ok")), say("quick"), Dig=[hold(gate, say("ok"))])
    async with opened(model, on_notify=notifications.append) as chat:
        submit(chat, "A long one")
        submit(chat, "/spawn Dig")
        await wait(lambda: len(model.requests) == 2)
        chat.clock.advance(21)  # type: ignore[attr-defined]
        gate.set()
        await wait(idle(chat))
        submit(chat, "A short one")
        await wait(idle(chat))
    assert sorted(notifications) == ["Done: A long one", "researcher finished: Dig"]


async def test_children_and_their_changes_are_approved(
    opened: Opened, said: Said, wait: Wait, project: Path
) -> None:
    git = await asyncio.create_subprocess_exec("git", "init", "-q", cwd=project)
    assert await git.wait() == 0
    spawn = call("spawn_agent", role="executor", task="Write a.")
    model = ScriptedModel(
        {
            "Write a": [call("write_file", path="a", content="one\n"), say("Written.")],
            "": [spawn, say("Done."), say("Then not.")],
        },
        strict=False,
    )
    async with opened(model) as chat:
        submit(chat, "Go.")
        await wait(lambda: bool(chat.questions.open))
        request = chat.questions.open[0].request
        assert request is not None
        assert [child.task for child in request.children] == ["Write a."]
        submit(chat, "y")
        await wait(lambda: any(q.request and q.request.diff for q in chat.questions.open))
        submit(chat, "n one is wrong")
        await wait(lambda: not chat.host.busy)
        assert "the user refused its change: one is wrong" in said(chat)
    assert not (project / "a").exists()


async def test_an_agent_that_has_ended_is_continued(opened: Opened, said: Said, wait: Wait) -> None:
    model = scripted(say("ok"), Dig=[say("Sand."), say("A bone.")])
    async with opened(model) as chat:
        submit(chat, "/spawn Dig")
        await wait(lambda: "Sand." in said(chat))
        await wait(idle(chat))  # Its text is on the screen before the agent has ended.
        submit(chat, "@a1 Deeper.")
        await wait(lambda: "A bone." in said(chat))
        await wait(idle(chat))
        submit(chat, "So?")
        await wait(idle(chat))
    *before, task = model.requests[1].messages
    assert [m.content for m in before[1:]][-1] == "Sand."
    assert task.content.startswith("Deeper.")
    assert "A bone." in model.requests[-1].messages[1].content


async def test_changes_are_diffs_in_the_conversation(
    opened: Opened, said: Said, wait: Wait, project: Path
) -> None:
    (project / "a.py").write_text("x = 1\n")
    edit = call("edit_file", path="a.py", old_text="x = 1", new_text="x = 2")
    async with opened(scripted(edit, say("Done.")), mode="auto") as chat:
        submit(chat, "Change it")
        await wait(lambda: "  a.py (+1 −1)\n  1 - x = 1\n  1 + x = 2\n" in said(chat))
        await wait(idle(chat))
        session = chat.session
    async with opened(scripted(), session=session) as chat:
        await wait(lambda: "  1 - x = 1\n  1 + x = 2\n" in said(chat))
