"""The page, in Debian's Chromium."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from retinue.domain.run_state import RunState
from retinue.interfaces.web.run_changes import RunFold, agent_view, run_view

if TYPE_CHECKING:
    import retinue
    from tests.interfaces.web.conftest import Site

playwright = pytest.importorskip("playwright.async_api")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
ROOT = Path(__file__).parents[3]


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    async with playwright.async_playwright() as started:
        launched = await started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield launched
        await launched.close()


@pytest.fixture
async def page(browser: Any, site: Site) -> AsyncIterator[Any]:
    """A page whose errors fail the test, as does a request to another host."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800})
    opened = await context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: _check_message(message, problems))
    opened.on("request", lambda request: _check_host(request.url, problems))
    yield opened
    await context.close()
    assert problems == []


def _check_message(message: Any, problems: list[str]) -> None:
    if message.type == "error":
        problems.append(message.text)


def _check_host(url: str, problems: list[str]) -> None:
    if not url.startswith(("http://127.0.0.1:", "data:", "blob:")):
        problems.append(f"request to {url}")


async def test_token_leaves_the_address(page: Any, site: Site, run_id: str) -> None:
    await page.goto(site.service.url)
    await page.get_by_role("link", name="2 tasks").click()
    await page.get_by_role("tree", name="Agents").wait_for()
    assert "token" not in page.url
    assert page.url.endswith(f"#/run/{run_id}")


async def test_failure_is_explained_in_one_click(page: Any, site: Site, run_id: str) -> None:
    await page.goto(f"{site.service.url}#/run/{run_id}")
    await page.get_by_role("button", name="Why did this fail?").click()
    await page.get_by_text("Why it failed: No.").wait_for()
    assert page.url.endswith(f"#/run/{run_id}/agent/a2")


async def test_agent_has_every_view(page: Any, site: Site, run_id: str) -> None:
    await page.goto(f"{site.service.url}#/run/{run_id}/agent/a1")
    await page.get_by_text("Written.").wait_for()
    for tab, text in (
        ("Contract", "write_file"),
        ("Budget", "Tool calls"),
        ("Receipts", "write_file"),
        ("Changes", "+two"),
        ("Checks", "No check has run."),
        ("Events", "agent.subagent_created"),
    ):
        await page.get_by_role("tab", name=tab).click()
        await page.get_by_role("tabpanel").get_by_text(text).first.wait_for()


async def test_time_travel_shows_the_run_as_of_an_event(page: Any, site: Site, run_id: str) -> None:
    await page.goto(f"{site.service.url}#/run/{run_id}/at/3")
    await page.get_by_text("running", exact=True).first.wait_for()
    slider = page.get_by_role("slider", name="Event")
    assert await slider.input_value() == "3"
    await page.get_by_role("button", name="Next event").click()
    assert await slider.input_value() == "4"
    assert page.url.endswith("/at/4")
    await page.get_by_role("button", name="End").click()
    await page.get_by_text("1 of 2 children failed").first.wait_for()
    assert "/at/" not in page.url


async def test_tree_is_used_with_the_keyboard(page: Any, site: Site, run_id: str) -> None:
    await page.goto(f"{site.service.url}#/run/{run_id}")
    tree = page.get_by_role("tree", name="Agents")
    await tree.get_by_text("executor.1").wait_for()
    await tree.focus()
    await page.keyboard.press("ArrowLeft")
    assert await tree.get_by_role("treeitem").count() == 1
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await page.get_by_role("complementary", name="Agent a1").wait_for()
    await page.locator("body").press("Escape")
    await page.get_by_role("complementary").wait_for(state="detached")


async def test_fold_of_the_page_equals_that_of_the_library(
    page: Any, journals: list[list[retinue.Event]]
) -> None:
    """At every event of every journal in the corpus."""
    await page.goto("about:blank")
    source = (ROOT / "web" / "src" / "fold.js").read_text().replace("export function", "function")
    for events in journals:
        fold, state = RunFold(), RunState()
        changes = msgspec.json.encode([fold.apply(event) for event in events]).decode()
        expected = []
        for event in events:
            state.apply(event)
            agents = {agent.id: agent_view(agent) for agent in state.agents.values()}
            expected.append([run_view(state), agents])
        found = await page.evaluate(
            source
            + """
            ;(changes) => {
              const state = emptyState();
              return JSON.stringify(JSON.parse(changes).map((change) => {
                apply(state, change);
                return structuredClone([state.run, Object.fromEntries(state.agents)]);
              }));
            }
            """,
            changes,
        )
        for at, ((run, agents), (run_, agents_)) in enumerate(
            zip(json.loads(found), msgspec.json.decode(msgspec.json.encode(expected)), strict=True)
        ):
            assert agents == agents_, at
            assert {**dict.fromkeys(run_), **run} == run_, at


def test_committed_page_is_what_its_source_builds() -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    done = subprocess.run([ROOT / "script" / "page", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
