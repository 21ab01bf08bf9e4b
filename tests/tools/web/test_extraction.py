"""Pages of different kinds (articles, forums, issues, API references): what is kept of them."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import msgspec
import pytest
from bs4 import Tag

from retinue.tools.web.extraction import extract


class Saved(msgspec.Struct):
    html: str
    kept: list[str]
    left_out: list[str]


PAGES = msgspec.json.decode(
    Path(__file__).with_name("pages.json").read_bytes(), type=dict[str, Saved]
)


def plain(text: str) -> str:
    """`text` without the marks of Markdown, which are not what is compared."""
    text = re.sub(r"\[([^\]]*)\]\([^)\s]*\)", r"\1", unescape(text))
    return re.sub(r"[*_`\\#|<>\s]", "", text).lower()


@pytest.mark.parametrize("name", PAGES)
def test_content_is_kept_and_what_is_around_it_is_left_out(name: str) -> None:
    page = PAGES[name]
    found = plain(extract(page.html, "https://site.test/page"))
    assert [text for text in page.kept if plain(text) not in found] == []
    assert [text for text in page.left_out if plain(text) in found] == []


def test_links_are_whole_addresses() -> None:
    text = extract('<p><a href="../b#c">b</a> <a href="#d">d</a></p>', "https://site.test/x/a")
    assert text.strip() == "[b](https://site.test/b#c) d"


TEXT = "<p>" + "Herons stand in the shallow water and wait for fish. " * 20 + "</p>"
LINKS = "".join(f'<li><a href="/{name}">{name}</a></li>' for name in ("Egrets", "Storks", "Ibises"))


@pytest.mark.parametrize(
    "around",
    [
        f"<ul>{LINKS}</ul>",
        f'<div class="post-related"><p>Egrets have moved.</p><ul>{LINKS}</ul></div>',
        '<div id="mainNav"><p>Egrets</p></div>',
    ],
)
def test_menus_are_left_out_by_their_links_or_names(around: str) -> None:
    found = extract(f"<body>{around}{TEXT}</body>", "https://a.test/")
    assert "Herons" in found
    assert "Egrets" not in found


@pytest.mark.parametrize(
    "page",
    [
        f"<main>{TEXT}<ul>{LINKS}</ul></main>",
        f"<h1>Birds</h1><ul>{LINKS}</ul>",
        f'<div class="with-sidebar">{TEXT}<p>Egrets have moved.</p></div>',
        f"{TEXT}<ul>{LINKS}</ul>".replace('href="/', 'href="#'),
    ],
)
def test_lists_of_links_are_kept_where_they_are_the_content(page: str) -> None:
    assert "Egrets" in extract(f"<body>{page}</body>", "https://a.test/")


def test_menus_of_deeply_nested_pages_stay() -> None:
    """Looking for them would take time that grows with the square of the depth."""
    page = f"<ul>{LINKS}</ul>{TEXT}" + "<div>x" * 250
    assert "Egrets" in extract(f"<body>{page}</body>", "https://a.test/")


def test_only_the_first_parts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    whole = Tag.get_text

    def get_text(tag: Tag) -> str:
        read.append(tag.name)
        return whole(tag)

    monkeypatch.setattr(Tag, "get_text", get_text)
    extract("<p>herons stand</p>" + "<article>" * 300 + "fish", "https://a.test/")
    assert read.count("article") == 50
