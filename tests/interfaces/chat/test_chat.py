"""A chat with nothing drawn: what is typed, what becomes of it, and what is told."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from retinue.config.environment import Environment
from retinue.domain.messages import Request, UserMessage
from retinue.errors import ProviderError
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.slash_commands import COMMANDS, COMMANDS_BY_NAME, help_tables, submit
from retinue.models.scripted.model import ScriptedModel, Step, call, calls, fail, hold, say
from retinue.testing.server import ModelServer

Opened = Callable[..., AbstractAsyncContextManager[Chat]]
Said = Callable[..., str]
Wait = Callable[[Callable[[], Any]], Awaitable[None]]


def scripted(*steps: Step, **rules: list[Step]) -> ScriptedModel:
    return ScriptedModel({**rules, "": list(steps)}, strict=False)


def users(request: Request) -> list[str]:
    """What was said to a model, without what stands around a task."""
    return [
        m.content.split("\n\nDirectory")[0] for m in request.messages if isinstance(m, UserMessage)
    ]


def idle(chat: Chat) -> Callable[[], bool]:
    return lambda: not chat.host.busy


# Talking


async def test_each_message_goes_on_with_the_conversation(
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
    assert users(model.requests[1]) == ["One?", "Two?"]
    assert "❯ One?\n\nFirst answer.\n\n" in said(chat)
    assert "❯ Two?\n\nSecond answer.\n\n" in said(chat)


async def test_text_is_shown_while_it_is_written(opened: Opened, said: Said, wait: Wait) -> None:
    async with opened(scripted(say("One two three. " * 50).after(60.0))) as chat:
        submit(chat, "Go")
        await wait(lambda: "One two three." in said(chat))
        submit(chat, "/cancel")
        await wait(idle(chat))
    assert "■ cancelled: stopped by the user" in said(chat)


async def test_what_is_said_meanwhile_is_read_before_the_next_turn(
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
    assert users(model.requests[1])[-1] == "in blue"
    assert "❯ in blue\n\nBlue it is." in said(chat)


async def test_files_are_given_along(opened: Opened, project: Path, wait: Wait) -> None:
    (project / "a.txt").write_text("the text of a")
    model = scripted(say("ok"))
    async with opened(model) as chat:
        submit(chat, "Look at @a.txt, and @gone.txt")
        await wait(idle(chat))
    assert "the text of a" in model.requests[0].messages[1].content
    assert "gone.txt" in model.requests[0].messages[1].content


async def test_a_file_that_cannot_be_given_along_is_said(
    opened: Opened, project: Path, said: Said, wait: Wait
) -> None:
    (project / "big.txt").write_text("x" * 200_000)
    async with opened(scripted()) as chat:
        submit(chat, "Look at @big.txt")
        await wait(idle(chat))
        assert "skipped big.txt: its 50,000 tokens do not fit" in said(chat)
        assert chat.current_run_id is None


# Agents


async def test_spawning_beside_the_conversation(opened: Opened, said: Said, wait: Wait) -> None:
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


async def test_speaking_to_one_agent(opened: Opened, said: Said, wait: Wait) -> None:
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
    heard = next(r for r in model.requests if len(users(r)) == 3)
    assert users(heard) == ["Dig", "deeper", "and wider"]
    assert "» researcher.1: deeper" in said(chat)


async def test_stopping_one_agent_and_all(opened: Opened, said: Said, wait: Wait) -> None:
    never = asyncio.Event()
    spawn = calls(*(call("spawn_agent", role="researcher", task="Dig") for _ in range(2)))
    model = scripted(spawn, hold(never, say("never")), Dig=[hold(never, say("never"))])
    async with opened(model) as chat:
        submit(chat, "Go")
        await wait(lambda: len(model.requests) == 3)
        submit(chat, "/cancel a1")
        await wait(lambda: "stopped by the user" in said(chat))
        submit(chat, "/cancel researcher.9")
        assert "No agent 'researcher.9' in this conversation; running: a2." in said(chat)
        submit(chat, "/cancel a1")
        assert "a1 (root/researcher.1) has already ended." in said(chat)
        submit(chat, "/cancel")
        await wait(idle(chat))
        submit(chat, "/cancel")
        assert "Nothing is running." in said(chat)
    assert [a.close_reason for _, a in chat.agents()] == ["stopped by the user"] * 3


async def test_stopping_what_was_spawned(opened: Opened, wait: Wait) -> None:
    model = scripted(Dig=[hold(asyncio.Event(), say("never"))])
    async with opened(model) as chat:
        submit(chat, "/spawn Dig")
        await wait(lambda: len(model.requests) == 1)
        submit(chat, "/cancel")
        await wait(idle(chat))
        assert [a.close_reason for _, a in chat.active_children()] == []


async def test_closing_stops_everything(opened: Opened, wait: Wait) -> None:
    model = scripted(hold(asyncio.Event(), say("never")), Dig=[hold(asyncio.Event(), say("never"))])
    async with opened(model) as chat:
        submit(chat, "/spawn Dig")
        submit(chat, "Go")
        await wait(lambda: len(model.requests) == 2)
    ends = {tree.run.kind: (a.state, a.close_reason) for tree, a in chat.agents() if a.parent_id}
    assert ends == {"program": ("closed", "the chat was closed")}
    assert chat.interrupted_run
    assert chat.interrupted_run.suspend_reason == "the chat was closed"


# Interrupting


def spawning(gate: asyncio.Event) -> ScriptedModel:
    """A lead with two children: one is done at once, the other waits for the gate."""
    sent = calls(*(call("spawn_agent", role="researcher", task=t) for t in ("Look", "Wait")))
    return scripted(sent, say("Both."), Look=[say("ok")], Wait=[hold(gate, say("Late."))])


async def test_what_is_interrupted_is_gone_on_with(opened: Opened, said: Said, wait: Wait) -> None:
    gate = asyncio.Event()
    model = spawning(gate)
    async with opened(model) as chat:
        submit(chat, "Go")
        await wait(lambda: len(model.requests) == 3 and len(chat.active_children()) == 1)
        assert chat.interrupt()
        await wait(idle(chat))
        assert "■ interrupted by the user\n  /resume continues it" in said(chat)
        assert '[researcher] Paused: "Wait"' in said(chat)
        assert chat.active_children() == []
        assert not chat.interrupt()
        gate.set()
        submit(chat, "/resume")
        await wait(lambda: "Both." in said(chat))
        await wait(idle(chat))
        assert chat.interrupted_run is None
        assert [a.status for _, a in chat.agents()] == ["completed"] * 3
        # Who was done is not asked again; the one who was at work, and its parent, are.
        assert len(model.requests) == 5


async def test_after_an_interruption_something_else_can_be_said(opened: Opened, wait: Wait) -> None:
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
    assert users(model.requests[1]) == ["Go", note, "Stay"]


async def test_what_a_closed_chat_has_left_is_gone_on_with(
    opened: Opened, said: Said, wait: Wait
) -> None:
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


async def test_a_model_that_was_gone_is_asked_again(opened: Opened, said: Said, wait: Wait) -> None:
    gone = fail(ProviderError("The server is gone."))
    model = scripted(call("list_dir", path="."), gone, say("Back."))
    async with opened(model) as chat:
        submit(chat, "Go")
        await wait(lambda: "■ The server is gone." in said(chat))
        await wait(idle(chat))
        submit(chat, "/resume")
        await wait(lambda: "Back." in said(chat))
        await wait(idle(chat))


async def test_interrupting_before_anything_has_begun(
    opened: Opened, said: Said, wait: Wait
) -> None:
    model = scripted(say("never"))
    async with opened(model) as chat:
        submit(chat, "Go")
        assert chat.interrupt()
        await wait(idle(chat))
        assert "■ interrupted by the user" in said(chat)
        assert model.requests == []
        submit(chat, "/resume")
        await wait(lambda: "There is no earlier conversation to resume." in said(chat))


# QuestionQueue


async def test_leave_and_answers(opened: Opened, project: Path, said: Said, wait: Wait) -> None:
    attention: list[str] = []
    model = scripted(
        call("write_file", path="a.txt", content="x"),
        call("write_file", path="b.txt", content="x"),
        call("ask_user", question="Colour?"),
        say("ok"),
    )
    async with opened(model, on_notify=attention.append) as chat:
        submit(chat, "Go")
        await wait(lambda: chat.questions.open)
        submit(chat, "n")
        await wait(lambda: "said no to write_file" in said(chat, full=True))
        await wait(lambda: chat.questions.open)
        submit(chat, "y")
        await wait(lambda: chat.questions.open and chat.questions.open[0].request is None)
        submit(chat, "blue")
        await wait(idle(chat))
    assert not (project / "a.txt").exists()
    assert (project / "b.txt").exists()
    assert "❯ blue\n\nok" in said(chat)
    assert attention == [
        "root requests write_file",
        "root requests write_file",
        "root has a question",
    ]


async def test_while_a_question_is_open_other_words_are_for_the_one_who_leads(
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


async def test_a_shell_command_and_what_the_model_hears_of_it(
    opened: Opened, said: Said, wait: Wait
) -> None:
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


async def test_without_a_sandbox_there_are_no_shell_commands(opened: Opened, said: Said) -> None:
    async with opened(scripted(), shell=False) as chat:
        submit(chat, "!true")
        submit(chat, "!")
    assert "Shell commands are off: no sandbox is available here." in said(chat)
    assert "Write a command after the exclamation mark: !make test" in said(chat)


async def test_a_shell_command_is_stopped(
    opened: Opened, said: Said, project: Path, wait: Wait
) -> None:
    async with opened(scripted(), unsafe_no_sandbox=True) as chat:
        submit(chat, "!touch begun; sleep 600")
        await wait((project / "begun").exists)
        assert "$ touch begun; sleep 600\n…" in said(chat)
        submit(chat, "/cancel")
        await wait(idle(chat))
        assert "$ touch begun; sleep 600\n(stopped)" in said(chat)


# Settings


async def test_model_mode_and_budget_change_and_the_conversation_stays(
    opened: Opened, project: Path, said: Said, wait: Wait
) -> None:
    (project / "other.yaml").write_text("steps: [{say: From another.}]")
    async with opened(ScriptedModel([say("One.")])) as chat:
        submit(chat, "One?")
        await wait(idle(chat))
        session = chat.session
        for line in ("/model scripted:other.yaml", "/mode plan", "/budget max_turns=7"):
            submit(chat, line)
            assert not chat.host.ready
            await wait(lambda: chat.host.ready)
        terms = chat.runtime.policy
        assert (terms.model, terms.mode, terms.budget.max_turns) == (
            "scripted:other.yaml",
            "plan",
            7,
        )
        submit(chat, "Two?")
        await wait(idle(chat))
        assert chat.session == session
    assert "❯ Two?\n\nFrom another." in said(chat)


async def test_who_types_while_it_is_being_opened_is_heard(
    opened: Opened, said: Said, wait: Wait
) -> None:
    async with opened(scripted(say("ok"))) as chat:
        submit(chat, "/mode plan")
        submit(chat, "Go")
        submit(chat, "/spawn Dig")
        assert "Still starting; try again in a moment." in said(chat)
        await wait(lambda: "❯ Go\n\nok" in said(chat))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks begin at once from 3.12 on")
async def test_who_types_while_it_is_being_opened_is_heard_where_tasks_begin_at_once(
    opened: Opened, said: Said, wait: Wait
) -> None:
    # As Textual has it: a task that is begun inside of another's step cannot share its context.
    asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009
    async with opened(scripted(say("ok"))) as chat:
        submit(chat, "/mode plan")
        submit(chat, "Go")
        await wait(lambda: "❯ Go\n\nok" in said(chat))


async def test_nothing_is_changed_under_agents_at_work(
    opened: Opened, said: Said, wait: Wait
) -> None:
    model = scripted(hold(asyncio.Event(), say("never")))
    async with opened(model) as chat:
        submit(chat, "Go")
        await wait(lambda: model.requests)
        for line in ("/mode plan", "/model m", "/budget max_turns 3", "/clear", "/resume"):
            submit(chat, line)
    busy = "Agents are running. Wait for them, or stop them with /cancel."
    assert said(chat).count(busy) == 5


async def test_mistakes_are_told(opened: Opened, said: Said) -> None:
    mistakes = {
        "/modell": "Unknown command /modell. Did you mean /model?",
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


async def test_without_a_model_the_way_out_is_told(opened: Opened, said: Said, wait: Wait) -> None:
    async with opened(None) as chat:
        assert "No model" in said(chat)
        submit(chat, "Hello")
        assert "No model is set. Choose one with /model NAME." in said(chat)
        for line in ("/status", "/agents", "/budget", "/mode", "/spawn x"):
            submit(chat, line)
        submit(chat, "/model")
        await wait(lambda: "The model is none. Change it with /model NAME:" in said(chat))
        submit(chat, "/resume")
        await wait(lambda: "There is no journal at" in said(chat))
        (chat.directory / "m.yaml").write_text("steps: [{say: Here I am.}]")
        submit(chat, "/model scripted:m.yaml")
        await wait(lambda: chat.host.ready)
        submit(chat, "Hello")
        await wait(idle(chat))
    assert "❯ Hello\n\nHere I am." in said(chat)


def serving(*names: str) -> ModelServer:
    cards = [{"id": name, "owned_by": "vllm", "max_model_len": 65_536} for name in names]
    return ModelServer([say("Here.")], pages={"/v1/models": {"object": "list", "data": cards}})


async def test_of_several_models_one_is_chosen_once(
    opened: Opened, tmp_path: Path, said: Said, wait: Wait
) -> None:
    async with serving("small", "large") as server:
        environment = Environment(variables={"HOME": str(tmp_path), "OLLAMA_HOST": server.base_url})
        async with opened(None, environment=environment) as chat:
            await wait(lambda: chat.questions.open)
            assert "  2  openai:large@" in chat.questions.open[0].text
            submit(chat, "7")
            await wait(lambda: chat.questions.open[0].text.startswith("There is no number 7.\n"))
            submit(chat, "2")
            await wait(lambda: chat.host.ready)
            submit(chat, "/mode plan")
            await wait(lambda: chat.host.ready)
            assert chat.runtime.policy.model == f"openai:large@{server.base_url}"
            submit(chat, "Go")
            await wait(idle(chat))
            assert "❯ Go\n\nHere." in said(chat)
        async with opened(None, environment=environment) as chat:
            submit(chat, f"/model openai:small@{server.base_url}")
            await wait(lambda: chat.host.ready)
            assert chat.questions.open == []
            submit(chat, "/model")
            await wait(lambda: f"  openai:large@{server.base_url}  (vLLM," in said(chat))
        async with opened(None, environment=environment) as chat:
            assert chat.questions.open, "leaving does not wait for an answer"


async def test_what_is_to_be_known_of_a_runtime_is_told_once(
    opened: Opened, tmp_path: Path, said: Said, wait: Wait
) -> None:
    async with serving("only") as server:
        environment = Environment(variables={"HOME": str(tmp_path), "OLLAMA_HOST": server.base_url})
        async with opened(None, environment=environment) as chat:
            await wait(lambda: chat.host.ready)
            submit(chat, "/mode plan")
            await wait(lambda: chat.host.ready)
            assert said(chat).count("no model was named: using openai:only@") == 1


# What can be seen


async def test_every_command_there_is_answers(
    opened: Opened, project: Path, said: Said, wait: Wait
) -> None:
    left: list[bool] = []
    model = scripted(
        calls(
            call("spawn_agent", role="researcher", task="Dig"),
            call("spawn_agent", role="reviewer", task="Break"),
        ),
        say("All done."),
        say("It was short."),
        Dig=[say("Gold.")],
        Break=[fail(ProviderError("Refused."))],
    )
    async with opened(model, shell=False, on_quit=lambda: left.append(True)) as chat:
        submit(chat, "Go")
        await wait(idle(chat))
        answers = {
            "tasks": [
                "a2 reviewer.1     error",
                "Break  (Refused.)",
                "a1 researcher.1   completed",
            ],
            "agents": ["researcher", "tester"],
            "model": ["The model is scripted. Change it with /model NAME:"],
            "mode": ["The mode is normal. Modes: plan, normal, auto, dangerous."],
            "budget": ["This conversation has used ", "max_tool_calls 100", "max_cost_usd none"],
            "status": ["sandbox    none: shell commands are off", "agents     1 failed, 1 done"],
            "resume": [f"{chat.session}", "1 message"],
            "compact": ["❯ Sum up the conversation so far.", "7 messages became a summary"],
            "export": ["Exported to"],
            "diff": ["This conversation has changed no files."],
            "undo": ["There is nothing to undo in this conversation."],
            "redo": ["There is nothing to redo in this conversation."],
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
    assert left == [True]
    elsewhere = {"spawn", "plan", "cancel", "clear", "quit"}
    assert {c.name for c in COMMANDS} == answers.keys() | elsewhere


async def test_help_names_every_command_and_helps_with_one(opened: Opened, said: Said) -> None:
    async with opened(scripted()) as chat:
        submit(chat, "/help")
        for command in COMMANDS:
            assert f"  /{command.name}" in said(chat)
            assert " ".join(command.help.split()) in " ".join(said(chat).split())
        submit(chat, "/help mode")
        assert "/mode [MODE]\nShow or change what agents may do" in said(chat)
    for name in ("new", "stop", "exit", "permissions", "?"):
        assert name in COMMANDS_BY_NAME


def test_the_page_about_the_chat_tells_what_help_does() -> None:
    page = (Path(__file__).parents[3] / "docs" / "chat.md").read_text()
    for title, rows in help_tables().items():
        table = "".join(f"| `{what}` | {told} |\n" for what, told in rows)
        assert f"## {title}\n\n| | |\n|---|---|\n{table}" in page, "script/pictures writes it anew"


async def test_many_tasks_are_listed_up_to_a_number(opened: Opened, said: Said, wait: Wait) -> None:
    spawn = calls(*(call("spawn_agent", role="researcher", task=f"Dig {n}") for n in range(45)))
    async with opened(scripted(spawn, say("ok"), Dig=[say("ok")])) as chat:
        submit(chat, "Go")
        await wait(idle(chat))
        submit(chat, "/tasks")
        assert "… and 5 more" in said(chat)


async def test_a_conversation_is_exported(
    opened: Opened, project: Path, said: Said, wait: Wait
) -> None:
    async with opened(scripted(call("list_dir"), say("It is **empty**."))) as chat:
        submit(chat, "/export")
        chat.conversation.entries.clear()
        submit(chat, "/export")
        assert "There is nothing to export yet." in said(chat)
        chat.conversation.entries.clear()
        submit(chat, "Look")
        await wait(idle(chat))
        submit(chat, "/export talk.md")
        submit(chat, "/export talk.md")
        submit(chat, "/export no/such/folder.md")
    text = (project / "talk.md").read_text()
    assert text.startswith("# Conversation\n\n## You\n\nLook\n\n```text\n  · list_dir\n")
    assert "\n\nIt is **empty**.\n\n" in text
    assert f"{project / 'talk.md'} already exists. Name another file: /export FILE" in said(
        chat, 300
    )
    assert "folder.md: No such file or directory." in said(chat, 300)


async def test_what_was_done_to_files_is_shown_and_taken_back(
    opened: Opened, project: Path, said: Said, wait: Wait
) -> None:
    write = [call("write_file", path=f"{name}.txt", content=name) for name in ("one", "two")]
    model = scripted(write[0], say("ok"), write[1], say("ok"), Dig=[say("Nothing.")])

    async with opened(model, mode="auto") as chat:

        async def told(line: str) -> str:
            shown = len(said(chat))
            submit(chat, line)
            await wait(idle(chat))
            return said(chat)[shown:]

        assert "There is nothing to undo in this conversation." in await told("/undo")
        assert "There is nothing to redo in this conversation." in await told("/redo")
        assert "This conversation has changed no files." in await told("/diff")
        await told("One")
        await told("Two")
        assert "step 1, by a0 (root): write two.txt\n" in await told("/diff")
        assert "1 file undone:\n  two.txt (-1 line, removed)" in await told("/undo")
        assert [p.name for p in project.glob("*.txt")] == ["one.txt"]  # noqa: ASYNC240
        await told("/undo")
        assert "1 file redone:\n  one.txt (+1 line, new file)" in await told("/redo")
        assert "two.txt" in await told("/redo a0")
        (project / "two.txt").write_text("mine")
        refused = await told("/undo")
        assert "Nothing was undone: these changes are in the way: two.txt." in refused
        await told("/spawn Dig")
        assert "a1 has changed no files." in await told("/diff a1")
        assert "There is nothing to undo of a1 in run" in await told("/undo a1")


async def test_a_conversation_is_summed_up(opened: Opened, said: Said, wait: Wait) -> None:
    model = ScriptedModel([say("One."), say("They said one."), say("Two.")])
    async with opened(model) as chat:
        submit(chat, "/compact")
        assert "There is nothing to summarize yet." in said(chat)
        for line in ("One?", "/compact", "Two?"):
            submit(chat, line)
            await wait(idle(chat))
        assert len(chat.forest.trees) == 3
        assert chat.session == next(iter(chat.forest.trees))
    assert users(model.requests[1])[-1].startswith("The conversation is too long to go on.")
    last = users(model.requests[2])
    assert "One?" not in last
    assert last[-2].endswith("This is what you wrote down about it:\nThey said one.")
    assert last[-1] == "Two?"


# Going on


async def test_an_earlier_conversation_is_gone_on_with(
    opened: Opened, said: Said, wait: Wait
) -> None:
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
    assert users(model.requests[1]) == ["One?", "Two?"]


@pytest.mark.parametrize("name", ["last", "the id"])
async def test_a_chat_can_begin_with_an_earlier_conversation(
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


async def test_where_there_is_nothing_to_go_on_with_it_is_told(
    opened: Opened, said: Said, wait: Wait
) -> None:
    async with opened(scripted(), session="zzzz") as chat:
        await wait(lambda: chat.host.ready)
        assert "There is no journal at" in said(chat)
        submit(chat, "/resume")
        await wait(idle(chat))
        assert "There is no earlier conversation to resume." in said(chat)
        submit(chat, "/resume zzzz")
        await wait(idle(chat))
        assert "'zzzz'" in said(chat)


async def test_somebody_who_looks_elsewhere_is_told_of_a_long_run(
    opened: Opened, wait: Wait
) -> None:
    attention: list[str] = []
    gate = asyncio.Event()
    model = scripted(hold(gate, say("ok")), say("quick"), Dig=[hold(gate, say("ok"))])
    async with opened(model, on_notify=attention.append) as chat:
        submit(chat, "A long one")
        submit(chat, "/spawn Dig")
        await wait(lambda: len(model.requests) == 2)
        chat.clock.advance(21)  # type: ignore[attr-defined]
        gate.set()
        await wait(idle(chat))
        submit(chat, "A short one")
        await wait(idle(chat))
    assert sorted(attention) == ["Done: A long one", "researcher finished: Dig"]
