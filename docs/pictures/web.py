"""Makes the pictures of the page in the browser, from the session that `retinue demo` plays back.

script/pictures --web
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from playwright.async_api import Page, async_playwright

from retinue.config.environment import Environment
from retinue.interfaces.web.service import Address, WebService

HERE = Path(__file__).parent
SESSION = HERE.parents[1] / "src" / "retinue" / "interfaces" / "demo" / "session.retinue"
SIZE = {"width": 1280, "height": 760}


async def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("script/pictures: chromium is missing; script/services installs it")
    with tempfile.TemporaryDirectory() as home:
        service = WebService(
            Path(home), Environment(variables={"HOME": home}), exported=str(SESSION)
        )
        async with (
            service.serving(Address(), page=True, read_only=True),
            async_playwright() as playwright,
        ):
            browser = await playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox"]
            )
            for theme, take in (("light", tree), ("dark", agent)):
                context = await browser.new_context(
                    color_scheme=theme, viewport=SIZE, timezone_id="UTC"
                )
                page = await context.new_page()
                await page.goto(service.url)
                await page.locator(".card").first.click()
                await page.get_by_role("tree").get_by_text("researcher.1").wait_for()
                await take(page)
                await context.close()
            await browser.close()


async def tree(page: Page) -> None:
    await page.screenshot(path=HERE / "web-run.png")


async def agent(page: Page) -> None:
    await page.get_by_role("tree").get_by_text("researcher.1").click()
    await page.get_by_role("tabpanel").get_by_text("read_file").first.wait_for()
    await page.screenshot(path=HERE / "web-agent.png")


asyncio.run(main())
