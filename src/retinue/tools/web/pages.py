"""Fetched pages as text: HTML becomes Markdown without navigation, PDF becomes its text."""

from __future__ import annotations

import codecs
import re

from retinue.domain.images import Image, is_image, read_image
from retinue.errors import ToolFailure
from retinue.extras import install_command, is_installed
from retinue.tools.documents import is_pdf, pdf_text
from retinue.tools.web.fetcher import Fetched

_TEXT_TYPES = re.compile(r"text/|.*[/+](?:json|xml|javascript|yaml|toml|x-sh|x-ndjson)$")
_HTML_TYPES = ("text/html", "application/xhtml+xml")
_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([\w-]{1,40})", re.IGNORECASE)
_BLANK_LINES = re.compile(r"\n{3,}")


def page_text(fetched: Fetched) -> str:
    """The text of a page. Blocks. Raises ToolFailure for what is no text."""
    if is_pdf(fetched.body):
        return pdf_text(fetched.url, fetched.body)
    if fetched.media_type in _HTML_TYPES:
        return html_text(_decoded(fetched, look_inside=True), fetched.url)
    if _TEXT_TYPES.match(fetched.media_type) or not _is_binary(fetched.body):
        return _decoded(fetched)
    raise ToolFailure(
        f"{fetched.url} is {fetched.media_type} with {len(fetched.body):,} bytes, which is no text"
    )


def page_image(fetched: Fetched) -> Image | None:
    return read_image(fetched.url, fetched.body) if is_image(fetched.body) else None


def html_text(html: str, url: str) -> str:
    """The content of an HTML page as Markdown."""
    if not is_installed("web"):
        raise ToolFailure(f"{url} is HTML, and reading it needs: {install_command('web')}")
    from retinue.tools.web.extraction import extract

    return _BLANK_LINES.sub("\n\n", extract(html, url)).strip() + "\n"


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
