"""The content of HTML pages as Markdown, without the parts that a site has on every page."""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from html import unescape
from urllib.parse import urljoin

import msgspec
from bs4 import BeautifulSoup, MarkupResemblesLocatorWarning, Tag, XMLParsedAsHTMLWarning
from markdownify import ATX, MarkdownConverter

_NO_CONTENT = (
    "script, style, template, noscript, svg, iframe, object, canvas, nav, aside, form, button,"
    " input, select, [hidden], [aria-hidden=true], [role=navigation], [role=search], [role=banner],"
    " [role=contentinfo], [role=complementary], [role=dialog], [role=menu]"
)
# Names that sites and generators of documentation give to the parts around their content.
_AROUND = re.compile(
    r"^(?:(?:side|nav|menu|tool|status)-?(?:bar|menu|header|footer|buttons?|container|wrapper)?"
    r"|sphinxsidebar\w*|related|breadcrumbs?|headerlink|toc|table-of-contents|globaltoc|page-toc"
    r"|cookies?[\w-]*|consent[\w-]*|gdpr[\w-]*|newsletter[\w-]*|share[\w-]*|social[\w-]*"
    r"|advert[\w-]*|promo[\w-]*|skip-(?:nav|link|to)[\w-]*|sr-only|visually-hidden|nojs"
    r"|nosearch|searchbox|column2|gtoc|prev-next[\w-]*|pagination|navigation|navpath|modal"
    r"|(?:page|site|doc)?-?footer|(?:top|bottom)lang)$"
)
# Words inside the names of such parts, as in `main-nav` or `postRelated`. Only small parts are left
# out by them: `with-sidebar` may be the name of everything.
_AROUND_WORD = re.compile(
    r"nav(?:bar|igation)?|menu|sidebar|footer|banner|breadcrumbs?|related|trending"
    r"|recommend(?:ed|ations)|shar(?:e|ing)|social|cookies?|newsletter|subscribe|promo|ads"
    r"|advert(?:isement)?"
)
_WORD = re.compile(r"[a-z]+|[A-Z][a-z]*")
_MAX_AROUND_SHARE = 0.2
# Most of the text of a menu is links, and so is that of "related articles".
_MENUS = ["ul", "ol", "div", "section", "table"]
_MIN_MENU_LINKS = 3
_MIN_LINKED_SHARE = 0.75
_MAX_MENUS_SHARE = 0.6
# Every parent of every text is visited, so a page of nested tags would take time without limit.
_MAX_DEPTH = 200
_CONTENT = "main, [role=main], article"
# A part that has less than this share of the page's text is not the content of the page.
_MIN_SHARE = 0.25
_TAGS = re.compile(r"<[^<>]*>")
_BLANK_LINES = re.compile(r"\n{3,}")
# The text of each part that may be the content is read whole.
_MAX_PARTS = 50


class _Converter(MarkdownConverter):
    """Markdown with whole addresses and without pictures."""

    def __init__(self, url: str) -> None:
        super().__init__(
            heading_style=ATX,
            bullets="-",
            newline_style="backslash",
            escape_underscores=False,
            escape_asterisks=False,
            escape_misc=False,
        )
        self._url = url

    def convert_a(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        address = str(el.get("href") or "")
        if not text.strip() or address.startswith(("#", "javascript:")) or not address:
            return text
        try:
            address = urljoin(self._url, address)
        except ValueError:
            return text  # The address may be anything.
        return f"[{text.strip()}]({address})"

    def convert_img(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return str(el.get("alt") or "")


def extract(html: str, url: str) -> str:
    """The content of a page. A page that no parser understands gives all of its text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MarkupResemblesLocatorWarning)
            warnings.simplefilter("ignore", XMLParsedAsHTMLWarning)
            soup = BeautifulSoup(html, "html.parser")
        title = " ".join(soup.title.get_text().split()) if soup.title else ""
        found = str(_Converter(url).convert_soup(_content(soup)))
    except (RecursionError, AssertionError):
        return all_text(html)  # Tags that are nested too deeply, or damaged.
    if title and title.partition(" ")[0] not in found[:500]:
        found = f"# {title}\n\n{found}"
    return _tidy(found)


def all_text(html: str) -> str:
    """The text of a page with everything that is around the content."""
    return _tidy(unescape(_TAGS.sub(" ", html)))


def write_extracted() -> None:
    """In a process: a page and its address on standard input, its content on standard output."""
    html, url = msgspec.json.decode(sys.stdin.buffer.read(), type=tuple[str, str])
    sys.stdout.buffer.write(extract(html, url).encode())


def _tidy(text: str) -> str:
    return _BLANK_LINES.sub("\n\n", text).strip() + "\n"


def _content(soup: BeautifulSoup) -> Tag:
    for part in soup.select(_NO_CONTENT):
        part.decompose()
    for part in soup.find_all(_is_around):
        part.decompose()
    body = soup.body or soup
    _remove_menus(body)
    whole = len(body.get_text())
    found = body.select(_CONTENT, limit=_MAX_PARTS)
    parts = [part for part in found if len(part.get_text()) >= _MIN_SHARE * whole]
    if len(parts) == 1 or (parts and parts[0].name == "main"):
        return parts[0]
    # A header or a footer of an article belongs to it.
    for part in body.find_all(["header", "footer"]):
        if part.find_parent(["article", "main", "section"]) is None:
            part.decompose()
    return body


def _is_around(tag: Tag) -> bool:
    if tag.name in ("html", "body", "main", "article"):
        return False
    words = [*(tag.get("class") or ()), str(tag.get("id") or "")]
    return any(_AROUND.match(word.lower()) for word in words)


def _remove_menus(body: Tag) -> None:
    """Remove small parts that are named like a menu, or are mostly links to other pages.

    Inside of `main` and `article`, links stay: an API page lists its classes there.
    """
    text: Counter[int] = Counter()
    linked: Counter[int] = Counter()
    links: Counter[int] = Counter()
    for string in body.find_all(string=True):
        parents = list(string.parents)
        if len(parents) > _MAX_DEPTH:
            return
        size = len(string.strip())
        is_link = any(one.name == "a" and _leads_elsewhere(one) for one in parents)
        for parent in parents:
            text[id(parent)] += size
            if is_link and size:
                linked[id(parent)] += size
                links[id(parent)] += 1
    whole = text[id(body)]
    found = [
        part
        for part in body.find_all(True)
        if text[id(part)] <= _MAX_AROUND_SHARE * whole
        and (
            _has_word_of_surroundings(part)
            or (
                part.name in _MENUS
                and part.find_parent(["main", "article"]) is None
                and links[id(part)] >= _MIN_MENU_LINKS
                and linked[id(part)] >= _MIN_LINKED_SHARE * text[id(part)]
            )
        )
    ]
    outer = {id(part) for part in found}
    outermost = [part for part in found if not any(id(p) in outer for p in part.parents)]
    # The content of an index is its links.
    if sum(text[id(part)] for part in outermost) <= _MAX_MENUS_SHARE * whole:
        for part in outermost:
            part.decompose()


def _leads_elsewhere(link: Tag) -> bool:
    return not str(link.get("href") or "#").startswith("#")


def _has_word_of_surroundings(tag: Tag) -> bool:
    if tag.name in ("html", "body", "main", "article", "h1"):
        return False
    names = [*(tag.get("class") or ()), str(tag.get("id") or "")]
    return any(
        _AROUND_WORD.fullmatch(word.lower()) for name in names for word in _WORD.findall(name)
    )
