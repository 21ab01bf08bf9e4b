"""The page in Debian's Chromium: timeline, plan, messages to agents, and what goes wrong."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import retinue
from retinue import Runtime
from retinue.config.environment import Environment
from retinue.interfaces.web.service import Address, WebService
from retinue.models.scripted.model import ScriptedModel, Step, call, hold, say
from retinue.project import open_store
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.history.pruning import prune_journal
from retinue.store.export import export_run

if TYPE_CHECKING:
    from tests.interfaces.web.conftest import Site

pytestmark = pytest.mark.services
Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


async def test_timeline_zooms_pans_and_explains(page: Any, site: Site, opened: Opened) -> None:
    model = ScriptedModel({"": [call("list_dir"), say("Done.").after(0.5)]}, strict=False)
    async with opened(model=model, clock=None) as rt:
        run_id = (await rt.fan_out([("executor", "one"), ("executor", "two")]))[0].run_id
    await page.goto(f"{site.service.url}#/run/{run_id}")
    await page.get_by_role("tree").get_by_text("executor.1").wait_for()
    canvas = page.locator("canvas")
    box = await canvas.bounding_box()

    pictures = [""]

    async def picture_changes() -> None:
        for _ in range(200):
            picture = await canvas.evaluate("(canvas) => canvas.toDataURL()")
            if picture != pictures[-1]:
                pictures.append(picture)
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"picture {len(pictures)} is like the one before")

    await page.mouse.move(box["x"] + 40, box["y"] + 26 + 45)
    await page.locator(".hover").get_by_text("executor.1").wait_for()
    await picture_changes()
    for key in ("+", "+", "ArrowRight"):
        await canvas.press(key)
        await picture_changes()
    await page.mouse.down()
    await page.mouse.move(box["x"] + 140, box["y"] + 71, steps=4)
    await page.mouse.up()
    await picture_changes()
    await canvas.press("0")
    await picture_changes()
    assert await page.get_by_role("complementary").count() == 0, "dragging opens no agent"
    for name in ("Zoom in", "Zoom out", "Fit"):
        await page.get_by_role("button", name=name).click()
        await picture_changes()
    await canvas.click(position={"x": 60, "y": 8})  # The axis.
    await page.get_by_role("slider", name="Event").wait_for()
    assert "/at/" in page.url


async def test_plan_shows_forecast_and_critical_path(page: Any, site: Site, opened: Opened) -> None:
    steps = [
        {"name": "find", "role": "researcher", "task": "Find it.", "expect_s": 60},
        {"name": "aside", "role": "researcher", "task": "Look aside.", "expect_s": 1},
        {"name": "judge", "role": "reviewer", "task": "Judge.", "depends_on": ["find"]},
    ]
    model = ScriptedModel({"Find it.": [say("Done.").after(0.5)], "": [say("Done.")]}, strict=False)
    async with opened(model=model, clock=None) as rt:
        done = await rt.execute({"goal": "Judge it", "steps": steps})
    await page.goto(f"{site.service.url}#/run/{done.run_id}")
    await page.get_by_role("group", name="View").get_by_role("button", name="Plan").click()
    items = page.locator(".plan li")
    assert await items.count() == 3
    critical = items.filter(has_text="critical path").get_by_role("link")
    assert await critical.all_inner_texts() == ["find", "judge"]
    assert await items.get_by_text("forecast").count() == 6


async def test_agent_is_told_and_cancelled_and_the_run_stopped_and_cancelled(
    page: Any, site: Site, opened: Opened
) -> None:
    gate, ids = asyncio.Event(), asyncio.Queue[str]()

    def on_event(event: retinue.Event) -> None:
        if event.type == "turn.started" and event.agent_id == "a1":
            ids.put_nowait(event.run_id)

    lead: list[Step] = [
        call("spawn_agent", task="Child", role="researcher"),
        hold(gate, call("list_dir")),
    ]
    model = ScriptedModel(
        {"Lead": [*lead, say("Partly.")], "Child": [hold(gate, say("never"))]}, strict=False
    )
    async with opened(model=model, on_event=on_event, clock=None) as rt:
        running = asyncio.create_task(rt.run("Lead"))
        run_id = await ids.get()
        page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))
        await page.goto(f"{site.service.url}#/run/{run_id}/agent/a1")
        agent = page.get_by_role("complementary", name="Agent a1")
        await agent.get_by_label("Message to a1").fill("Hurry.")
        await agent.get_by_role("button", name="Send").click()
        await agent.get_by_text("a1 reads it before its next turn.").wait_for()
        await agent.get_by_role("button", name="Cancel", exact=True).click()
        await agent.get_by_text("a1 is cancelled.").wait_for()
        await page.get_by_role("button", name="Stop").click()
        await page.get_by_text("stops, and can be resumed").wait_for()
        gate.set()
        with pytest.raises(retinue.errors.RunSuspended):
            await running
    state = page.locator(".headline .state")
    await state.filter(has_text="interrupted").wait_for()
    await page.get_by_role("button", name="Cancel run").click()
    await state.filter(has_text="cancelled").wait_for()


def damage(database: Path) -> None:
    database.write_bytes(b"no database" * 1_000)


def write_newer(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA user_version = 999")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (damage, "retinue.db is damaged"),
        (write_newer, "was written by a newer retinue (schema 999"),
    ],
)
@pytest.mark.parametrize("view", ["", "#/run/RUN"])
async def test_journal_that_cannot_be_read_is_reported(
    browser: Any,
    site: Site,
    project: Path,
    run_id: str,
    spoil: Callable[[Path], None],
    message: str,
    view: str,
) -> None:
    for rest in ("-wal", "-shm"):
        (project / ".retinue" / f"retinue.db{rest}").unlink(missing_ok=True)
    spoil(project / ".retinue" / "retinue.db")
    page = await browser.new_page()
    await page.goto(f"{site.service.url}{view.replace('RUN', run_id)}")
    await page.get_by_role("alert").filter(has_text=message).wait_for()
    await page.close()


async def test_locked_journal_is_read_all_the_same(
    page: Any, site: Site, project: Path, run_id: str
) -> None:
    with closing(sqlite3.connect(project / ".retinue" / "retinue.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        await page.goto(f"{site.service.url}#/run/{run_id}")
        await page.get_by_role("tree").get_by_text("executor.1").wait_for()


async def test_unknown_run_and_wrong_token_are_reported(
    browser: Any, site: Site, run_id: str
) -> None:
    page = await browser.new_page()
    await page.goto(f"{site.service.url}#/run/none")
    await page.get_by_role("alert").filter(has_text="No run 'none'").wait_for()
    await page.close()
    context = await browser.new_context()
    page = await context.new_page()
    answer = await page.goto(f"{site.service.origin}/?token=wrong")
    assert answer.status == 401
    assert "retinue web" in await page.inner_text("body")
    await context.close()


async def test_pruned_run_shows_its_outcome(
    page: Any, site: Site, project: Path, environment: Environment, run_id: str
) -> None:
    async with open_store(project, environment) as store:
        events = (await store.run(run_id)).head_seq
        await prune_journal(store, SystemClock(), run_id)
    told = await site.get(f"/api/runs/{run_id}/agents/a1", 400)
    assert told["error"] == f"Run {run_id} was cleaned away; only its outcome is left."
    await page.goto(f"{site.service.url}#/run/{run_id}")
    await page.get_by_text(
        f"{events} events of this run were cleaned away; its outcome is left."
    ).wait_for()
    tree = page.get_by_role("tree", name="Agents")
    assert await tree.get_by_role("treeitem").count() == 3


async def test_agent_of_a_pruned_run_says_what_is_left(
    browser: Any, site: Site, project: Path, environment: Environment, run_id: str
) -> None:
    async with open_store(project, environment) as store:
        await prune_journal(store, SystemClock(), run_id)
    page = await browser.new_page()
    await page.goto(f"{site.service.url}#/run/{run_id}/agent/a1")
    agent = page.get_by_role("complementary", name="Agent a1")
    await agent.get_by_text(f"Run {run_id} was cleaned away; only its outcome is left.").wait_for()
    await page.close()


async def test_children_of_an_abandoned_run_do_not_look_as_if_they_run(
    browser: Any, project: Path, environment: Environment, opened: Opened, tmp_path: Path
) -> None:
    gate, turns = asyncio.Event(), asyncio.Queue[str]()

    def on_event(event: retinue.Event) -> None:
        if event.type == "turn.started":
            turns.put_nowait(event.run_id)

    model = ScriptedModel({"": [hold(gate, say("Done."))]}, strict=False)
    file = tmp_path / "run.retinue"
    async with opened(model=model, on_event=on_event, clock=None) as rt:
        tasks = [("researcher", f"task {number}") for number in range(8)]
        running = asyncio.create_task(rt.fan_out(tasks, max_concurrent=8))
        (run_id,) = {await turns.get() for _ in tasks}
        # The journal as a kill would leave it now.
        export_run(project / ".retinue" / "retinue.db", run_id, file)
        gate.set()
        await running
    service = WebService(tmp_path, environment, exported=str(file))
    async with service.serving(Address(), page=True, read_only=True):
        page = await browser.new_page(viewport={"width": 360, "height": 800})
        await page.goto(f"{service.url}#/run/{run_id}")
        await page.locator(".headline .state").filter(has_text="abandoned").wait_for()
        metrics = page.locator(".metrics")
        await metrics.get_by_text("■ 8").wait_for()
        assert "running" not in (await metrics.inner_text()).lower()
        await page.get_by_role("tree").get_by_text("8 × researcher").wait_for()
        await page.close()


async def test_expired_cookie_is_reported_on_the_open_page(
    browser: Any, site: Site, run_id: str
) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(site.service.url)
    await page.get_by_role("link", name="2 tasks").wait_for()
    await context.clear_cookies()  # As the browser does when the cookie's time is over.
    await page.get_by_role("link", name="2 tasks").click()
    await page.get_by_role("alert").filter(has_text="The address needs its token").wait_for()
    answer = await page.reload()
    assert answer.status == 401
    assert "Open the address that `retinue web` printed" in await page.inner_text("body")
    await context.close()


async def test_nothing_moves_with_reduced_motion(browser: Any, site: Site, opened: Opened) -> None:
    gate = asyncio.Event()
    async with opened(model=ScriptedModel([hold(gate, say("Done."))]), clock=None) as rt:
        running = asyncio.create_task(rt.run("Wait"))
        for motion, moving in (("reduce", 0), ("no-preference", 1)):
            context = await browser.new_context(reduced_motion=motion)
            page = await context.new_page()
            await page.goto(site.service.url)
            await page.get_by_role("link").filter(has_text="Wait").click()
            await page.get_by_role("tree").locator(".state.running").wait_for()
            found = await page.evaluate("document.getAnimations().length > 0")
            assert found is bool(moving), motion
            await context.close()
        gate.set()
        await running
