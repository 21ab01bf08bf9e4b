"""Titles of sessions: a child writes one after the first exchange, where the server has slots."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.slash_commands import submit
from retinue.interfaces.cli.chosen_run import chosen_run
from retinue.models.scripted.model import say
from retinue.project import open_journal
from retinue.runtime.history.session import TITLE, list_sessions
from retinue.runtime.run.session_title import clean_title
from retinue.testing.server import ModelServer
from tests.interfaces.chat.conftest import Opened, until

QUESTION = "why does the login page take so long"


@asynccontextmanager
async def asked(
    opened: Opened, answers: list[Any], *, slots: int | None
) -> AsyncIterator[tuple[Chat, ModelServer]]:
    """A chat after its first exchange with a server of so many slots."""
    pages = {
        "/v1/models": {"data": [{"id": "m", "owned_by": "llamacpp"}]},
        "/props": {"default_generation_settings": {"n_ctx": 32_768}, "total_slots": slots},
    }
    async with (
        ModelServer([say("The index is missing."), *answers], pages=pages) as server,
        opened(f"openai:m@{server.base_url}") as chat,
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
