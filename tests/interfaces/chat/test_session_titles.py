"""Titles of sessions: a child writes one after the first exchange, where the server has slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.slash_commands import submit
from retinue.interfaces.cli.chosen_run import chosen_run
from retinue.interfaces.mcp_server.resources import Resources
from retinue.interfaces.web.run_reader import RunReader
from retinue.models.scripted.model import say
from retinue.project import open_journal, rename_session
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.history.session import TITLE, list_sessions, user_runs
from retinue.runtime.run.session_title import clean_title
from retinue.testing.server import ModelServer, Response, failing, streamed
from tests.interfaces.chat.conftest import Opened, until

QUESTION = "why does the login page take so long"


@asynccontextmanager
async def asked(
    opened: Opened, answers: list[Any], *, slots: int | None, **options: Any
) -> AsyncIterator[tuple[Chat, ModelServer]]:
    """A chat after its first exchange with a server of so many slots."""
    pages = {
        "/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp"}]},
        "/props": {"default_generation_settings": {"n_ctx": 32_768}, "total_slots": slots},
    }
    async with (
        ModelServer([say("The index is missing."), *answers], pages=pages) as server,
        opened(f"openai:m@{server.base_url}", **options) as chat,
    ):
        submit(chat, QUESTION)
        await until(lambda: chat.session is not None and not chat.host.busy)
        yield chat, server


async def kinds_and_titles(chat: Chat) -> tuple[list[str], list[str]]:
    async with open_journal(chat.directory, chat.environment) as store:
        kinds = sorted(row.kind for row in await store.runs(limit=9))  # at the same second
        return kinds, [session.title for session in await list_sessions(store)]


async def test_a_child_writes_the_title(opened: Opened, project: Path) -> None:
    async with asked(opened, [say('**Title: "Slow login page."**\n')], slots=2) as (chat, server):
        await until(lambda: chat.title == "Slow login page")
        prompt = str([request.json["messages"] for request in server.requests if request.body][-1])
        assert QUESTION in prompt
        assert "The index is missing." in prompt
        assert len(chat.forest.trees) == 1, "the agents of the user alone are listed"
        kinds, titles = await kinds_and_titles(chat)
        assert (kinds, titles) == (["run", TITLE], ["Slow login page"])
        # Lists have what the user has started.
        assert [item.id for item in await RunReader(project, chat.environment, None).runs(9)] == [
            chat.session
        ]
        assert [run["name"] for run in await Resources(str(project)).latest_runs()] == [
            chat.session
        ]
        # What the user looks at, or undoes, is the exchange.
        assert (await chosen_run(str(project), None))[0] == chat.session


@pytest.mark.parametrize("slots", [1, None])
async def test_with_one_slot_the_title_is_the_first_words(
    opened: Opened, slots: int | None
) -> None:
    async with asked(opened, [], slots=slots) as (chat, _):
        assert chat.title == QUESTION
        assert await kinds_and_titles(chat) == (["run"], [QUESTION])


async def test_a_child_that_fails_leaves_the_first_words(opened: Opened) -> None:
    async with asked(opened, [say(""), say("")], slots=2) as (chat, server):
        await until(lambda: len([r for r in server.requests if r.body]) > 1)
        assert chat.title == QUESTION


async def title_run(chat: Chat) -> tuple[str | None, str]:
    """Status of the run that writes the title, once it is over, and the stored title."""
    async with open_journal(chat.directory, chat.environment) as store:
        status = None
        async with asyncio.timeout(60):
            while status is None:
                rows = await store.runs(limit=9)
                status = next((row.status for row in rows if row.kind == TITLE), None)
        assert TITLE not in {row.kind for row in await user_runs(store)}
        return status, (await list_sessions(store))[0].title


@pytest.mark.parametrize("status", [401, 404, 500])
async def test_a_dead_endpoint_leaves_no_run_to_resume(opened: Opened, status: int) -> None:
    answers = [failing(status, "Gone.")] * 9
    # Its clock moves, because a server error is tried again after a pause.
    async with asked(opened, answers, slots=2, clock=SystemClock()) as (chat, _):
        assert await title_run(chat) == ("error", QUESTION)
        assert chat.title == QUESTION
        assert chat.interrupted_run is None


def held(gate: asyncio.Event) -> Response:
    return msgspec.structs.replace(streamed(say("Slow login page")), gate=gate)


async def test_a_title_that_the_user_gave_meanwhile_stays(opened: Opened) -> None:
    gate = asyncio.Event()
    async with asked(opened, [held(gate)], slots=2) as (chat, _):
        assert chat.session is not None
        await rename_session(chat.directory, chat.session, "My title", chat.environment)
        gate.set()
        assert await title_run(chat) == ("completed", "My title")
        submit(chat, "/rename Mine")
        await until(lambda: chat.title == "Mine")
        assert (await title_run(chat))[1] == "Mine"


@pytest.mark.parametrize("command", ["/resume {session}", "/clear"])
async def test_leaving_the_conversation_cancels_its_title(opened: Opened, command: str) -> None:
    async with asked(opened, [held(asyncio.Event())], slots=2) as (chat, server):
        await until(lambda: len([r for r in server.requests if r.body]) > 1)
        submit(chat, command.format(session=chat.session))
        assert await title_run(chat) == ("cancelled", QUESTION)


@pytest.mark.parametrize(
    ("reply", "title"),
    [
        ("# Slow login\n\nIt is about…", "Slow login"),
        ("Title: Slow login", "Slow login"),
        ("“Slow login.”", "Slow login"),
        ("\n", ""),
    ],
)
def test_a_title_is_one_line_without_decoration(reply: str, title: str) -> None:
    assert clean_title(reply) == title
