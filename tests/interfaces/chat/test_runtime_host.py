"""The runtime of a chat: opened, reopened with other options, or missing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from retinue.config.environment import Environment
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.slash_commands import submit
from retinue.models.scripted.model import ScriptedModel, Step, call, hold, say
from retinue.testing.server import ModelServer

Opened = Callable[..., AbstractAsyncContextManager[Chat]]
Said = Callable[..., str]
Wait = Callable[[Callable[[], Any]], Awaitable[None]]


def scripted(*steps: Step, **rules: list[Step]) -> ScriptedModel:
    return ScriptedModel({**rules, "": list(steps)}, strict=False)


def idle(chat: Chat) -> Callable[[], bool]:
    return lambda: not chat.host.busy


async def test_changing_options_keeps_the_conversation(
    opened: Opened, project: Path, said: Said, wait: Wait
) -> None:
    (project / "other.yaml").write_text("steps: [{say: From another.}]")
    async with opened(ScriptedModel([say("One.")])) as chat:
        submit(chat, "One?")
        await wait(idle(chat))
        session = chat.session
        for line in ("/model scripted:other.yaml", "/mode plan", "/budget max_turns=7"):
            before = chat.runtime
            submit(chat, line)
            await wait(lambda: chat.host.ready and chat.runtime is not before)  # noqa: B023
        runtime = chat.runtime
        assert (runtime.model, runtime.mode, runtime.budget.max_turns) == (
            "scripted:other.yaml",
            "plan",
            7,
        )
        submit(chat, "Two?")
        await wait(idle(chat))
        assert chat.session == session
    assert "❯ Two?\n\nFrom another." in said(chat)


async def test_message_during_opening_is_sent_later(opened: Opened, said: Said, wait: Wait) -> None:
    async with opened(scripted(say("ok"))) as chat:
        submit(chat, "/mode plan")
        submit(chat, "Go")
        submit(chat, "/spawn Dig")
        assert "Still starting; try again in a moment." in said(chat)
        await wait(lambda: "❯ Go\n\nok" in said(chat))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks need Python 3.12")
async def test_message_during_opening_is_sent_later_with_eager_tasks(
    opened: Opened, said: Said, wait: Wait
) -> None:
    # Textual uses eager tasks. An eager task cannot share the context of the task that starts it.
    asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009
    async with opened(scripted(say("ok"))) as chat:
        submit(chat, "/mode plan")
        submit(chat, "Go")
        await wait(lambda: "❯ Go\n\nok" in said(chat))


async def test_options_cannot_change_while_agents_run(
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


async def test_chat_without_a_model(opened: Opened, said: Said, wait: Wait) -> None:
    async with opened(None) as chat:
        assert "No model" in said(chat)
        submit(chat, "Hello")
        assert "No model is set. Choose one with /model NAME." in said(chat)
        for line in ("/status", "/agents", "/budget", "/mode", "/spawn x"):
            submit(chat, line)
        submit(chat, "/model")
        await wait(lambda: "The model is not set. No other is configured" in said(chat))
        submit(chat, "/resume")
        await wait(lambda: "There is no journal at" in said(chat))
        (chat.directory / "m.yaml").write_text("steps: [{say: Here I am.}]")
        submit(chat, "/model scripted:m.yaml")
        await wait(lambda: chat.host.ready)
        submit(chat, "Hello")
        await wait(idle(chat))
    assert "❯ Hello\n\nHere I am." in said(chat)


def model_server(*names: str) -> ModelServer:
    cards = [{"id": name, "owned_by": "vllm", "max_model_len": 65_536} for name in names]
    answers = [say("Here."), call("ping", word="pong")]
    return ModelServer(answers, pages={"/v1/models": {"object": "list", "data": cards}})


async def test_user_chooses_a_model_once(
    opened: Opened, tmp_path: Path, said: Said, wait: Wait
) -> None:
    async with model_server("small", "large") as server:
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
            assert chat.runtime.model == f"openai:large@{server.base_url}"
            submit(chat, "Go")
            await wait(idle(chat))
            assert "❯ Go\n\nHere." in said(chat)
        async with opened(None, environment=environment) as chat:
            submit(chat, f"/model openai:small@{server.base_url}")
            await wait(lambda: chat.host.ready)
            assert chat.questions.open == []
            submit(chat, "/model")
            await wait(lambda: f"  openai:large@{server.base_url}  vLLM," in said(chat))
            assert "(called a tool, " in said(chat)
            submit(chat, f"/model openai:large@{server.base_url}")
            await wait(lambda: "✗ openai:large@" in said(chat))
            assert f"The model is still openai:small@{server.base_url}." in said(chat)
            assert chat.runtime.model == f"openai:small@{server.base_url}"
        async with opened(None, environment=environment) as chat:
            assert chat.questions.open, "closing does not wait for an answer"


async def test_options_that_cannot_be_opened_leave_the_earlier_ones(
    opened: Opened, said: Said, wait: Wait
) -> None:
    async with opened(scripted(say("ok"))) as chat:
        chat.host.reopen(model="scripted:missing.yaml")
        await wait(lambda: chat.host.ready)
        assert "missing.yaml" in said(chat)
        assert chat.runtime.model == "scripted"
        submit(chat, "Go")
        await wait(lambda: "❯ Go\n\nok" in said(chat))


async def test_runtime_notes_are_shown_once(
    opened: Opened, tmp_path: Path, said: Said, wait: Wait
) -> None:
    async with model_server("only") as server:
        environment = Environment(variables={"HOME": str(tmp_path), "OLLAMA_HOST": server.base_url})
        async with opened(None, environment=environment) as chat:
            await wait(lambda: chat.host.ready)
            submit(chat, "/mode plan")
            await wait(lambda: chat.host.ready)
            assert said(chat).count("no model was named: using openai:only@") == 1
