"""Search providers: each asks one service, and gives titles, addresses and excerpts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from retinue.domain.web_search import SearchSettings
from retinue.errors import ToolFailure
from retinue.tools.web.fetcher import WebClient

MAX_RESULTS = 8


class SearchHit(msgspec.Struct, frozen=True, gc=False):
    title: str
    url: str
    excerpt: str = ""

    def __str__(self) -> str:
        excerpt = " ".join(self.excerpt.split())
        return f"- {' '.join(self.title.split())}\n  {self.url}" + (
            f"\n  {excerpt[:500]}" if excerpt else ""
        )


class SearchProvider(Protocol):
    async def search(self, client: WebClient, query: str) -> list[SearchHit]:
        """The best hits for `query`. Raises ToolFailure."""
        ...


class SearxngSearch:
    """The user's own SearXNG, whose settings must have `json` among `search.formats`."""

    def __init__(self, url: str) -> None:
        self._url = f"{url.rstrip('/')}/search"

    async def search(self, client: WebClient, query: str) -> list[SearchHit]:
        said = await client.get_json(self._url, headers={}, params={"q": query, "format": "json"})
        return _hits(said, ("results",), excerpt="content")


class BraveSearch:
    def __init__(self, key: str, url: str = "") -> None:
        self._key = key
        self._url = url or "https://api.search.brave.com/res/v1/web/search"

    async def search(self, client: WebClient, query: str) -> list[SearchHit]:
        said = await client.get_json(
            self._url,
            headers={"X-Subscription-Token": self._key},
            params={"q": query, "count": str(MAX_RESULTS)},
        )
        return _hits(said, ("web", "results"), excerpt="description")


class TavilySearch:
    def __init__(self, key: str, url: str = "") -> None:
        self._key = key
        self._url = url or "https://api.tavily.com/search"

    async def search(self, client: WebClient, query: str) -> list[SearchHit]:
        said = await client.get_json(
            self._url,
            headers={"Authorization": f"Bearer {self._key}"},
            body={"query": query, "max_results": MAX_RESULTS},
        )
        return _hits(said, ("results",), excerpt="content")


def search_provider(settings: SearchSettings) -> SearchProvider:
    match settings.provider:
        case "searxng":
            return SearxngSearch(settings.url)
        case "brave":
            return BraveSearch(settings.key, settings.url)
        case _:
            return TavilySearch(settings.key, settings.url)


def _hits(data: bytes, path: tuple[str, ...], *, excerpt: str) -> list[SearchHit]:
    try:
        rows: Any = msgspec.json.decode(data)
        for name in path:
            rows = rows[name]
        return [
            SearchHit(str(row["title"]), str(row["url"]), str(row.get(excerpt) or ""))
            for row in rows[:MAX_RESULTS]
            if isinstance(row, Mapping) and "url" in row and "title" in row
        ]
    except (msgspec.DecodeError, KeyError, TypeError, IndexError, RecursionError):
        raise ToolFailure("the search provider answered something else than results") from None
