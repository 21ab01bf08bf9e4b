"""The page in Debian's Chromium: search, filters, steps in time, zoom, and each action's button."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retinue import Runtime
from retinue.models.scripted.model import ScriptedModel, call, hold, say
from retinue.testing.server import ModelServer, Response, streamed

if TYPE_CHECKING:
    from tests.conftest import Repo
    from tests.interfaces.web.conftest import Site

pytestmark = pytest.mark.services
Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


async def never(*_: Any) -> Any:
    """A person who has left the terminal."""
    await asyncio.Event().wait()


async def accept(dialog: Any) -> None:
    await dialog.accept()


async def test_runs_are_searched_and_filtered(page: Any, site: Site, opened: Opened) -> None:
    await page.goto(site.service.url)
    await page.get_by_text("No runs yet.").wait_for()
    gate = asyncio.Event()
    model = ScriptedModel(
        {
            "Feed": [say("Fed.")],
            "Wash": [call("ask_user", question="Which?"), say("Washed.")],
            "Wait": [hold(gate, say("Waited."))],
        }
    )
    runs = page.locator(".runs li")
    async with opened(model=ScriptedModel([]), clock=None) as rt:
        (failed,) = await rt.fan_out([("researcher", "Comb")])  # Its model has nothing to say.
        assert not failed.ok
    async with opened(model=model, ask=never, clock=None) as rt:
        await rt.run("Feed the herons")
        washing = asyncio.create_task(rt.run("Wash the herons"))
        waiting = asyncio.create_task(rt.run("Wait for rain"))
        await page.get_by_text("waits for you").first.wait_for()
        await runs.filter(has_text="Wait for rain").wait_for()
        for name, tasks in {
            "Live": ["Wait for rain", "Wash the herons"],
            "Waits for you": ["Wash the herons"],
            "Failed": ["Comb"],
            "Done": ["Feed the herons"],
            "All": ["Wait for rain", "Wash the herons", "Comb", "Feed the herons"],
        }.items():
            await page.get_by_role("button", name=name, exact=True).click()
            assert sorted(await runs.locator("strong").all_inner_texts()) == sorted(tasks), name
        search = page.get_by_label("Search runs")
        await search.fill("  HERONS ")
        assert await runs.count() == 2
        await search.fill("completed")
        assert await runs.locator("strong").all_inner_texts() == ["Feed the herons"]
        await search.fill("storks")
        await page.get_by_text("No run matches.").wait_for()
        gate.set()
        await waiting
        washing.cancel()
        await asyncio.gather(washing, return_exceptions=True)


async def test_a_run_is_forked_from_an_earlier_moment(
    page: Any, browser: Any, site: Site, project: Path
) -> None:
    steps = "[{call: list_dir}, {say: One.}, {say: Two.}]"
    (project / "script.yaml").write_text(f'rules: [{{match: "", steps: {steps}}}]')
    options = {"task": "Count.", "model": "scripted:script.yaml"}
    run_id = (await site.post("/api/runs", options))["run"]
    await site.until_idle(run_id)
    await page.goto(f"{site.service.url}#/run/{run_id}")
    await page.get_by_role("button", name="Fork", exact=True).click()
    await page.get_by_label("Message for the fork").fill("And on?")
    await page.get_by_role("button", name="Start the fork").click()
    crumb = page.locator(".crumb").filter(has_not_text=run_id)
    await crumb.wait_for()
    fork = await crumb.inner_text()
    assert (await site.until_idle(fork))["status"] == "completed"
    await page.get_by_text(f"Fork of {run_id}, a0 at event").get_by_role("link").click()
    await page.locator(".crumb").filter(has_text=run_id).wait_for()
    past = await browser.new_page()  # Its console has the refusal.
    await past.goto(f"{site.service.url}#/run/{run_id}/at/1")
    await past.get_by_role("button", name="Fork from here").click()
    await past.get_by_role("button", name="Start the fork").click()
    await past.get_by_role("alert").filter(has_text="cannot be forked at event 1").wait_for()
    await past.close()


async def test_a_child_is_forked(page: Any, site: Site, project: Path) -> None:
    spawn = "{call: spawn_agent, args: {role: researcher, task: read all}}"
    child = "{match: read all, steps: [{say: Seen.}, {say: All.}]}"
    root = f'{{match: "", steps: [{spawn}, {{say: Done.}}]}}'
    (project / "script.yaml").write_text(f"rules: [{child}, {root}]")
    options = {"task": "Lead.", "model": "scripted:script.yaml"}
    run_id = (await site.post("/api/runs", options))["run"]
    await site.until_idle(run_id)
    await page.goto(f"{site.service.url}#/run/{run_id}/agent/a1")
    await page.get_by_role("button", name="Fork a1", exact=True).click()
    await page.get_by_label("Message for the fork").fill("And the rest?")
    await page.get_by_role("button", name="Start the fork").click()
    crumb = page.locator(".crumb").filter(has_not_text=run_id)
    await crumb.wait_for()
    fork = await crumb.inner_text()
    assert (await site.until_idle(fork))["status"] == "completed"
    started, *_ = (await site.get(f"/api/runs/{fork}/agents/a0"))["events"]
    assert started["payload"]["origin"]["agent_id"] == "a1"


async def test_the_host_of_a_child_is_shown(page: Any, site: Site, opened: Opened) -> None:
    gate = asyncio.Event()
    async with (
        ModelServer(lambda _: Response(body=streamed(say("Seen.")).body, gate=gate)) as server,
        opened(model=f"openai:any@{server.base_url}", cluster="local:1", clock=None) as rt,
    ):
        job = await rt.start("researcher", "Look.")
        await server.received()
        await page.goto(f"{site.service.url}#/run/{job.run_id}/agent/a1")
        tree = page.get_by_role("tree", name="Agents")
        await tree.get_by_text("researcher.1@local-1").wait_for()
        heading = page.locator(".agenthead").get_by_text("on local-1")
        await heading.wait_for()
        gate.set()
        assert (await job.result()).ok
        await tree.get_by_text("researcher.1", exact=True).wait_for()
        assert await heading.is_visible()


async def test_statistics_are_charts(page: Any, site: Site, run_id: str, project: Path) -> None:
    await page.goto(site.service.url)
    await page.get_by_role("link", name="Statistics").click()
    chart = page.get_by_role("table", name="Success")
    await chart.get_by_role("row", name="executor 100 %").wait_for()
    await chart.get_by_role("row", name="researcher 0 %").wait_for()
    assert await page.locator("progress").count() > 2
    await page.get_by_role("link", name="Tools").click()
    await chart.get_by_role("row", name="write_file 100 %").wait_for()
    await page.get_by_role("link", name="Projects").click()
    await chart.get_by_role("row", name=f"{project} 33 %").wait_for()


async def test_a_run_that_cannot_start_is_reported(browser: Any, site: Site) -> None:
    page = await browser.new_page()
    await page.goto(site.service.url)
    await page.get_by_label("Task for a new run").fill("Work.")
    await page.get_by_role("button", name="Start").click()
    await page.get_by_role("alert").filter(has_text="No model").wait_for()
    await page.close()


async def test_steps_through_events_turns_and_agents(page: Any, site: Site, run_id: str) -> None:
    await page.goto(f"{site.service.url}#/run/{run_id}")
    await page.get_by_role("tree").get_by_text("executor.1").wait_for()
    slider = page.get_by_role("slider", name="Event")
    told = page.locator(".travel .event")
    end = int(await slider.get_attribute("max"))

    async def press(button: str) -> int:
        await page.get_by_role("button", name=button, exact=True).click()
        return int(await slider.input_value())

    async def key(name: str) -> int:
        await page.locator("body").press(name)
        return int(await slider.input_value())

    before = await press("Previous agent")
    assert before < end
    await told.get_by_text("closed").wait_for()
    assert await press("Previous turn") < before
    turn = int(await slider.input_value())
    assert await press("Previous event") == turn - 1
    assert await press("Next turn") == turn
    assert await press("Next agent") > turn
    await slider.fill("5")
    assert page.url.endswith("/at/5")
    assert [await key(name) for name in "]]["] == [6, 7, 6]
    first = await key("}")
    assert 6 < first < await key("}")
    assert await key("{") == first
    await slider.fill(str(end))
    assert "/at/" not in page.url


async def test_agents_are_searched_and_rows_are_closed(page: Any, site: Site, run_id: str) -> None:
    await page.goto(f"{site.service.url}#/run/{run_id}")
    tree = page.get_by_role("tree", name="Agents")
    rows = tree.get_by_role("treeitem")
    await tree.get_by_text("executor.1").wait_for()
    await page.get_by_label("Search agents").fill("task bad")
    await tree.get_by_text("executor.1").wait_for(state="detached")
    await tree.get_by_text("researcher.1").wait_for()
    await page.get_by_label("Search agents").fill("")
    await tree.get_by_text("executor.1").wait_for()
    await tree.get_by_role("button", name="Collapse").click()
    assert await rows.count() == 1
    await tree.get_by_text("1 failure").wait_for()
    await tree.get_by_role("button", name="Expand").click()
    assert await rows.count() == 3
    await page.get_by_text("Legend").click()
    await page.get_by_text("Waits for a person").or_(page.get_by_text("person")).first.wait_for()
    await tree.get_by_text("executor.1").click()
    agent = page.get_by_role("complementary", name="Agent a1")
    await agent.get_by_role("tab", name="Conversation").press("ArrowRight")
    assert await agent.get_by_role("tab", name="Contract").get_attribute("aria-selected") == "true"
    await agent.get_by_role("button", name="Close").click()
    await agent.wait_for(state="detached")


@pytest.mark.parametrize(
    ("button", "written", "asked"), [("Yes to all like this", True, 1), ("No", False, 2)]
)
async def test_approvals_are_answered_with_a_rule_and_with_a_reason(
    page: Any, site: Site, opened: Opened, project: Path, button: str, written: bool, asked: int
) -> None:
    write = [call("write_file", path=f"birds/{name}.txt", content="hi\n") for name in "ab"]
    model = ScriptedModel([*write, say("Done.")])
    questions: list[str] = []

    def on_event(event: Any) -> None:
        if event.type == "approval.requested":
            questions.append(event.run_id)

    async with opened(
        model=model, mode="normal", approve=never, on_event=on_event, clock=None
    ) as rt:
        running = asyncio.create_task(rt.run("Write."))
        await page.goto(site.service.url)
        await page.get_by_role("link").filter(has_text="Write.").click()
        for number in range(asked):
            question = page.get_by_label("Question of root")
            await question.get_by_text(f"birds/{'ab'[number]}.txt").first.wait_for()
            if not written:
                await question.get_by_label("Reason of a no").fill("Not this one.")
            await question.get_by_role("button", name=button, exact=True).click()
        await running
    assert len(questions) == asked
    assert (project / "birds" / "b.txt").exists() == written
    if not written:
        assert "Not this one." in str(model.requests[-1].messages)


async def test_five_questions_are_shown_and_the_others_are_counted(
    page: Any, site: Site, opened: Opened, project: Path
) -> None:
    (project / "a.txt").write_text("one\n")
    model = ScriptedModel({"": [call("read_file", path="a.txt"), say("Read.")]}, strict=False)
    ask = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "ask"}}
    async with opened(model=model, mode="normal", approve=never, clock=None) as rt:
        rt.on("pre_tool_use")(lambda _: ask)
        tasks = [("researcher", f"Read {number}.") for number in range(7)]
        running = asyncio.create_task(rt.fan_out(tasks, max_concurrent=7))
        await page.goto(site.service.url)
        await page.get_by_role("link", name="7 tasks").click()
        questions = page.get_by_label("Question of root/researcher")
        for more in ("2 more questions wait.", "1 more question waits."):
            await page.get_by_text(more, exact=True).wait_for()
            assert await questions.count() == 5
            await questions.first.get_by_role("button", name="Yes", exact=True).click()
        await page.get_by_text("more question").wait_for(state="detached")
        for left in range(5, 0, -1):
            assert await questions.count() == left
            answered = await questions.first.get_attribute("aria-label")
            await questions.first.get_by_role("button", name="Yes", exact=True).click()
            await page.get_by_label(answered, exact=True).wait_for(state="detached")
        assert all(result.ok for result in await running)


async def test_the_changes_of_one_child_are_undone_and_redone(
    page: Any, site: Site, project: Path, run_id: str
) -> None:
    page.on("dialog", accept)
    await page.goto(f"{site.service.url}#/run/{run_id}/agent/a1")
    agent = page.get_by_role("complementary", name="Agent a1")
    await agent.get_by_role("button", name="Undo changes").click()
    await agent.get_by_text("1 file undone.").wait_for()
    assert not (project / "a.txt").exists()
    await agent.get_by_role("button", name="Redo changes").click()
    await agent.get_by_text("1 file redone.").wait_for()
    assert (project / "a.txt").read_text() == "one\ntwo\n"


async def test_work_that_was_not_merged_is_merged(
    page: Any, site: Site, opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"b.txt": "b\n"})

    model = ScriptedModel([call("write_file", path="a.txt", content="one\n"), say("Not done.")])
    async with opened(model=model, mode="auto") as rt:
        result = await rt.spawn("executor", "Write.", max_turns=2)
    assert result.kept
    assert not (project / "a.txt").exists()
    page.on("dialog", accept)
    await page.goto(f"{site.service.url}#/run/{result.run_id}/agent/a1")
    await page.get_by_text("work kept, not merged").wait_for()
    await page.get_by_role("button", name="Merge kept work").click()
    await page.get_by_text("1 file redone.").wait_for()
    assert (project / "a.txt").read_text() == "one\n"


async def test_a_read_only_page_has_no_actions(
    browser: Any, serving: Callable[..., AbstractAsyncContextManager[Site]], run_id: str
) -> None:
    page = await browser.new_page()
    async with serving(read_only=True) as site:
        await page.goto(site.service.url)
        await page.get_by_role("link", name="2 tasks").wait_for()
        assert await page.get_by_role("button", name="Start").count() == 0
        await page.get_by_role("link", name="2 tasks").click()
        await page.get_by_role("tree").get_by_text("executor.1").click()
        await page.get_by_role("complementary").get_by_text("Written.").wait_for()
        assert await page.get_by_role("button", name="Undo changes").count() == 0
        await page.close()


async def test_theme_skip_link_and_long_texts(page: Any, site: Site, opened: Opened) -> None:
    long = "heron " * 2_000
    async with opened(model=ScriptedModel([say(long)])) as rt:
        run_id = (await rt.run("Talk.")).run_id
    await page.goto(f"{site.service.url}#/run/{run_id}/agent/a0")
    await page.get_by_label("Theme").select_option("Dark")
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
    await page.reload()
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
    panel = page.get_by_role("tabpanel")
    await panel.get_by_role("button", name="show all 12,000 characters").first.click()
    text = await panel.locator(".entry").filter(has_text="heron").first.inner_text()
    assert text.count("heron") == 2_000
    await page.get_by_role("link", name="Skip to content").focus()
    await page.keyboard.press("Enter")
    assert await page.evaluate("document.activeElement.id") == "main"
