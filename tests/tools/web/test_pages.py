"""Pages as text: content without what is around it, in any encoding."""

from __future__ import annotations

import pytest

from retinue.errors import ToolFailure
from retinue.processes.function_process import FunctionLimits
from retinue.testing.model_contract import PNG
from retinue.tools.web import pages
from retinue.tools.web.fetcher import Fetched
from retinue.tools.web.pages import MAX_TAGS_IN_THREAD, html_text, page_image, page_text
from tests.tools.web.web_server import PAGE

URL = "https://site.test/birds/heron"


def page(body: str | bytes, media_type: str = "text/html", charset: str | None = None) -> Fetched:
    data = body.encode() if isinstance(body, str) else body
    return Fetched(URL, (), media_type, charset, data, cut=False)


async def test_html_becomes_markdown_without_navigation() -> None:
    assert await page_text(page(PAGE)) == (
        "# Herons\n\nA heron stands in [water](https://site.test/water).\n\n"
        "```\nbird.stand()\n```\n"
    )


async def test_headings_tables_lists_and_code_are_kept() -> None:
    text = await page_text(
        page(
            "<html><title>T</title><body><header>Site</header><article><h2>Options</h2><table><tr>"
            "<th>Name</th><th>Value</th></tr><tr><td>limit</td><td>100</td></tr></table>"
            "<ul><li>one</li><li><code>two</code></li></ul></article><aside>Read more</aside>"
        )
    )
    for part in ("## Options", "| limit | 100 |", "- one", "`two`"):
        assert part in text
    assert "Read more" not in text


@pytest.mark.parametrize(
    ("body", "charset"),
    [
        ("<p>Grüße</p>".encode("latin-1"), "latin-1"),
        ("<p>Grüße</p>".encode(), None),
        ("<p>Grüße</p>".encode(), "no-such-charset"),
        ('<meta charset="latin-1"><p>Grüße</p>'.encode("latin-1"), None),
        ("<p>Grüße</p>".encode("utf-16"), "utf-16"),
    ],
)
async def test_encodings(body: bytes, charset: str | None) -> None:
    assert "Grüße" in await page_text(page(body, charset=charset))


async def test_invalid_bytes_are_replaced() -> None:
    assert await page_text(page(b"<p>a\xff\xfeb</p>", charset="utf-8")) == "a\ufffd\ufffdb\n"


async def test_plain_text_and_json_stay_as_they_are() -> None:
    assert await page_text(page("a < b\n", "text/plain")) == "a < b\n"
    assert await page_text(page('{"a": 1}', "application/json")) == '{"a": 1}'
    assert await page_text(page("key: 1", "application/octet-stream")) == "key: 1"


async def test_binary_data_is_no_text() -> None:
    with pytest.raises(ToolFailure, match="has 9 bytes, which are no text") as failure:
        await page_text(page(b"PK\3\4\0\0\0\0\0", "application/zip"))
    assert failure.value.quoted == "application/zip"


def test_an_image_is_an_image_whatever_its_type_says() -> None:
    assert page_image(page(PNG, "application/octet-stream")) is not None
    assert page_image(page(PAGE)) is None


async def test_endless_nesting_gives_the_text() -> None:
    assert "deep" in await page_text(page("<div>" * MAX_TAGS_IN_THREAD + "deep"))


async def test_a_page_with_many_tags_is_read_in_a_process() -> None:
    body = PAGE.replace("</pre>", "</pre>" + "<b></b>" * MAX_TAGS_IN_THREAD)
    assert body != PAGE
    assert await page_text(page(body)) == await page_text(page(PAGE))


async def test_a_page_that_takes_too_long_gives_its_text() -> None:
    html = f"<p>herons stand</p>{'<article>' * 1_000_000}"
    assert "herons stand" in await html_text(html, URL, FunctionLimits(cpu_s=1, wall_s=30.0))


async def test_without_the_extra_html_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "is_installed", lambda extra: False)
    with pytest.raises(ToolFailure, match=r"is HTML, and reading it needs: pip install 'retinue"):
        await page_text(page(PAGE))
