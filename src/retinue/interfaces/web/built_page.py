"""The files of the page, as `script/page` has built them."""

from __future__ import annotations

from importlib.resources import files

PAGE_FILES = {"index.html": "text/html", "page.js": "text/javascript", "page.css": "text/css"}
"""Content types by name."""


def page_file(name: str) -> bytes:
    return (files("retinue.interfaces.web") / "page" / name).read_bytes()
