"""`web_fetch` and `web_search`. Their results are untrusted, and framed as such."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Annotated

from msgspec import Meta

from retinue.domain.framing import frame
from retinue.domain.images import Image
from retinue.domain.messages import Effect
from retinue.domain.permissions import WEB_SEARCH
from retinue.domain.web_hosts import WEB_FETCH
from retinue.errors import ToolFailure
from retinue.ports.tool import Tool, ToolContext, ToolOutcome
from retinue.threads import in_thread
from retinue.tools.excerpt import excerpt
from retinue.tools.function import tool
from retinue.tools.web.fetcher import MAX_BYTES, Fetched, WebClient
from retinue.tools.web.pages import page_image, page_text
from retinue.tools.web.search import SearchProvider

_MAX_PAGES = 64

_Page = tuple[Fetched, str, Image | None]


class PageCache:
    """The pages that a run has fetched, so that all parts an agent reads are of one version."""

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[str, str], _Page] = OrderedDict()

    async def get(self, client: WebClient, url: str, ctx: ToolContext) -> _Page:
        # Another agent of the run may fetch from hosts that this one may not.
        client.check(url, ctx.web_hosts)
        key = ctx.run_id, url
        page = self._pages.get(key)
        if page is None:
            fetched = await client.fetch(url, ctx.web_hosts)
            image = await in_thread(partial(page_image, fetched))
            text = "" if image else await page_text(fetched)
            # The body is no longer needed.
            page = self._pages[key] = fetched._replace(body=b""), text, image
            if len(self._pages) > _MAX_PAGES:
                self._pages.popitem(last=False)
        return page


def fetch_tool(client: WebClient) -> Tool:
    cache = PageCache()

    @tool(name=WEB_FETCH, effect=Effect.READ)
    async def web_fetch(
        ctx: ToolContext,
        url: str,
        start: Annotated[int | None, Meta(description="first line, from 1")] = None,
        end: Annotated[int | None, Meta(description="last line")] = None,
    ) -> ToolOutcome:
        """Fetch a web page as Markdown."""
        # The request has its own time limit, so the watchdog need not watch it.
        with ctx.waiting():
            fetched, text, image = await cache.get(client, url, ctx)
        moved = "".join(f"[redirected to {address}]\n" for address in fetched.redirects)
        note = f"[only the first {MAX_BYTES:,} bytes were fetched]\n" if fetched.cut else ""
        if image is not None:
            shown = f"[{image}]"
        else:
            shown = excerpt(fetched.url, text.encode("utf-8", "replace"), start, end)
        framed = frame(moved + shown, kind="untrusted", source=fetched.url)
        images = (image,) if image is not None else ()
        return ToolOutcome(content=note + framed, images=images, untrusted=True)

    return web_fetch


def search_tool(client: WebClient, provider: SearchProvider) -> Tool:
    @tool(name=WEB_SEARCH, effect=Effect.READ)
    async def web_search(ctx: ToolContext, query: str) -> ToolOutcome:
        """Search the web; gives titles, addresses and excerpts."""
        if not query.strip():
            raise ToolFailure("the query is empty")
        with ctx.waiting():
            hits = await provider.search(client, query)
        if not hits:
            return ToolOutcome(content="[Nothing was found.]", untrusted=True)
        text = "\n".join(map(str, hits))
        return ToolOutcome(
            content=frame(text, kind="untrusted", source="web search"), untrusted=True
        )

    return web_search


def web_tools(
    client: WebClient, *, fetch: bool, provider: SearchProvider | None
) -> tuple[Tool, ...]:
    """The web tools: `web_fetch` only with `fetch`, and `web_search` only with a provider."""
    return (
        *([fetch_tool(client)] if fetch else []),
        *([search_tool(client, provider)] if provider else []),
    )
