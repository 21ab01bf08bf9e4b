"""Search providers, against servers that answer as the providers do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from aiohttp import web

from retinue.domain.web_search import SearchSettings
from retinue.errors import ToolFailure
from retinue.tools.web.fetcher import WebClient
from retinue.tools.web.search import SearchHit, search_provider
from tests.tools.web.web_server import web_server

HITS = [
    SearchHit("Herons", "https://a.example/heron", "A large bird."),
    SearchHit("Egrets", "https://b.example/egret", ""),
]
SEARXNG = {
    "query": "heron",
    "number_of_results": 2,
    "results": [
        {"title": "Herons", "url": "https://a.example/heron", "content": "A large bird.",
         "engine": "duckduckgo", "score": 1.0},
        {"title": "Egrets", "url": "https://b.example/egret", "content": None},
        {"title": "No address"},
    ],
    "suggestions": [],
}  # fmt: skip
BRAVE = {
    "type": "search",
    "web": {
        "type": "search",
        "results": [
            {"title": "Herons", "url": "https://a.example/heron", "description": "A large bird."},
            {"title": "Egrets", "url": "https://b.example/egret"},
        ],
    },
}
TAVILY = {
    "query": "heron",
    "results": [
        {"title": "Herons", "url": "https://a.example/heron", "content": "A large bird.",
         "score": 0.9},
        {"title": "Egrets", "url": "https://b.example/egret", "content": ""},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("provider", "answer"), [("searxng", SEARXNG), ("brave", BRAVE), ("tavily", TAVILY)]
)
async def test_hits_of_each_provider(provider: str, answer: dict[str, Any]) -> None:
    async def respond(_: web.Request) -> web.Response:
        return web.json_response(answer)

    async with web_server(respond) as server:
        url = f"http://127.0.0.1:{server.port}"
        made = search_provider(SearchSettings(provider, url, "secret-key"))
        assert await made.search(WebClient(), "heron & co") == HITS
    (request,), (body,) = server.requests, server.bodies
    assert ("secret-key" in str(request.headers)) == (provider != "searxng")
    if provider == "tavily":
        assert msgspec.json.decode(body)["query"] == "heron & co"
    else:
        assert request.query["q"] == "heron & co"


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (401, '{"error": "no"}', 'the search provider answered 401: {"error": "no"}'),
        (200, "[1]", "answered something else than results"),
        (200, "<html>", "answered something else than results"),
        (200, '{"results": 3}', "answered something else than results"),
    ],
)
async def test_bad_answers(status: int, text: str, words: str) -> None:
    async def respond(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    async with web_server(respond) as server:
        made = search_provider(SearchSettings("searxng", f"http://127.0.0.1:{server.port}"))
        with pytest.raises(ToolFailure) as refused:
            await made.search(WebClient(), "heron")
    assert words in f"{refused.value}: {refused.value.quoted}"


async def test_a_provider_that_is_not_there() -> None:
    made = search_provider(SearchSettings("searxng", "http://127.0.0.1:9"))
    with pytest.raises(ToolFailure, match="the search provider cannot be asked: "):
        await made.search(WebClient(), "heron")
