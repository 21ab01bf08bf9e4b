"""Fetched pages as text: HTML becomes Markdown without navigation, PDF becomes its text."""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from functools import partial

import msgspec

from retinue.domain.images import Image, is_image, read_image
from retinue.errors import ToolFailure
from retinue.extras import install_command, is_installed
from retinue.processes.function_process import FunctionLimits, run_function
from retinue.threads import in_thread
from retinue.tools.documents import is_pdf, pdf_text
from retinue.tools.web.fetcher import Fetched

_TEXT_TYPES = re.compile(r"text/|.*[/+](?:json|xml|javascript|yaml|toml|x-sh|x-ndjson)$")
_HTML_TYPES = ("text/html", "application/xhtml+xml")
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([\w-]{1,40})", re.IGNORECASE)
# A page of usual size takes a tenth of a second. A process takes a quarter of a second more.
MAX_TAGS_IN_THREAD = 5_000
HTML_LIMITS = FunctionLimits(cpu_s=20, wall_s=40.0)


async def page_text(fetched: Fetched) -> str:
    """The text of a page. Raises ToolFailure for what is no text."""
    if is_pdf(fetched.body):
        return await pdf_text(fetched.url, fetched.body)
    if fetched.media_type in _HTML_TYPES:
        return await html_text(_decoded(fetched, look_inside=True), fetched.url)
    if _TEXT_TYPES.match(fetched.media_type) or not _is_binary(fetched.body):
        return _decoded(fetched)
    raise ToolFailure(
        f"{fetched.url} has {len(fetched.body):,} bytes, which are no text",
        quoted=fetched.media_type,
        source=fetched.url,
    )


def page_image(fetched: Fetched) -> Image | None:
    return read_image(fetched.url, fetched.body) if is_image(fetched.body) else None


async def html_text(html: str, url: str, limits: FunctionLimits = HTML_LIMITS) -> str:
    """The content of an HTML page as Markdown; all of its text if that takes too long."""
    if not is_installed("web"):
        raise ToolFailure(f"{url} is HTML, and reading it needs: {install_command('web')}")
    from retinue.tools.web import extraction

    if html.count("<") <= MAX_TAGS_IN_THREAD:
        return await in_thread(partial(extraction.extract, html, url))
    page = msgspec.json.encode((html, url))
    with suppress(OSError):
        name = extraction.write_extracted.__name__
        done = await run_function(extraction.__name__, name, page, limits)
        if done.complete:
            return done.data.decode()
    return await in_thread(partial(extraction.all_text, html))


def _decoded(fetched: Fetched, *, look_inside: bool = False) -> str:
    names = [fetched.charset]
    if look_inside and (found := _META_CHARSET.search(fetched.body[:4_096])):
        names.append(found[1].decode("ascii"))
    for name in filter(None, names):
        try:
            codecs.lookup(name)
            return fetched.body.decode(name, "replace")
        except (LookupError, ValueError):
            continue  # A page may name an encoding that does not exist.
    return fetched.body.decode("utf-8", "replace")


def _is_binary(data: bytes) -> bool:
    return b"\0" in data[:8_192]
