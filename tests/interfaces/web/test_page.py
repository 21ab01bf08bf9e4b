"""The page, in Debian's Chromium."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from retinue import Runtime
from retinue.config.environment import Environment
from retinue.domain.run_state import RunState
from retinue.interfaces.web.html_export import export_html
from retinue.interfaces.web.run_changes import RunFold, agent_view, run_view
from retinue.interfaces.web.run_reader import RunReader
from retinue.model_registry import redaction_of
from retinue.models.scripted.model import ScriptedModel, call, calls, say
from tests.interfaces.web.conftest import check_message

if TYPE_CHECKING:
    import retinue
    from tests.interfaces.web.conftest import Site

pytestmark = pytest.mark.services
ROOT = Path(__file__).parents[3]
Opened = Callable[..., AbstractAsyncContextManager[Runtime]]


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


async def test_group_of_many_children_opens_and_few_rows_are_drawn(
    page: Any, site: Site, opened: Opened
) -> None:
    model = ScriptedModel({"": [say("Done.")]}, strict=False)
    async with opened(model=model) as rt:
        tasks = [("researcher", f"task {number}") for number in range(300)]
        run_id = (await rt.fan_out(tasks, max_concurrent=50))[0].run_id
    await page.goto(f"{site.service.url}#/run/{run_id}")
    tree = page.get_by_role("tree", name="Agents")
    await tree.get_by_text("300 × researcher").click()
    await tree.get_by_text("researcher.1", exact=True).wait_for()
    await tree.focus()
    await page.keyboard.press("End")
    await tree.get_by_text("researcher.300").wait_for()
    assert await tree.get_by_role("treeitem").count() <= 100


TABS = ("Contract", "Budget", "Receipts", "Changes", "Checks", "Events")
HOSTILE = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
    "</script><svg onload=window.hacked=1>{{window.hacked=1}} javascript:window.hacked=1 "
    "\x1b]0;hacked\x07\x1b[31mred \u202egnp.exe\u2066 \u200f"
)


async def test_hostile_run_is_text(page: Any, site: Site, opened: Opened, project: Path) -> None:
    """Markup, scripts, escapes, marks of direction and 1 MB lines, wherever a model puts them."""
    long = "x" * 1_000_000
    (project / "long.txt").write_text(f"{HOSTILE}{long}\n")
    model = ScriptedModel(
        {
            "Lead": [
                call("spawn_agent", task=f"Child {HOSTILE}", role="researcher"),
                calls(
                    call("read_file", path="long.txt"),
                    call(HOSTILE[:60], a=HOSTILE),
                    call("write_file", path="<b>a</b>.txt", content=f"{HOSTILE}\n{long}\n"),
                    text=HOSTILE + long,
                ),
                say(HOSTILE + long),
            ],
            "Child": [say(HOSTILE), say(HOSTILE)],
        },
        strict=False,
    )
    async with opened(model=model, mode="auto") as rt:
        run_id = (await rt.run(f"Lead {HOSTILE}")).run_id
    await page.goto(site.service.url)
    await page.get_by_role("link").filter(has_text="Lead").wait_for()
    for agent in ("a0", "a1"):
        await page.goto(f"{page.url.partition('#')[0]}#/run/{run_id}/agent/{agent}")
        for tab in (
            "Contract",
            "Budget",
            "Receipts",
            "Changes",
            "Checks",
            "Events",
            "Conversation",
        ):
            await page.get_by_role("tab", name=tab).click()
        await page.get_by_role("tabpanel").get_by_text("onerror").first.wait_for()
    for name in ("Changes", "Tree"):
        await page.get_by_role("group", name="View").get_by_role("button", name=name).click()
    assert await page.evaluate("window.hacked") is None
    assert await page.evaluate("document.title.includes('\\u202e')") is False
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for width in (360, 1280, 2560):
        await page.set_viewport_size({"width": width, "height": 800})
        assert await page.evaluate(wide) == 0, width


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_nothing_serious_is_inaccessible(
    browser: Any, site: Site, run_id: str, theme: str
) -> None:
    context = await browser.new_context(color_scheme=theme, bypass_csp=True)
    page = await context.new_page()
    axe = (ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js").read_text()
    for address in ("", "#/stats/role", f"#/run/{run_id}", f"#/run/{run_id}/agent/a1"):
        await page.goto(f"{site.service.url}{address}")
        await page.locator(".card, .row, .chart").first.wait_for()
        for tab in await page.get_by_role("tab").all():
            await tab.click()
            await _check_axe(page, axe)
        await _check_axe(page, axe)
    await context.close()


async def _check_axe(page: Any, axe: str) -> None:
    await page.evaluate(axe)
    found = await page.evaluate("axe.run().then((found) => found.violations)")
    serious = [
        (one["id"], [node["html"][:200] for node in one["nodes"]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []


async def test_export_opens_without_a_server(
    browser: Any, project: Path, environment: Environment, run_id: str, tmp_path: Path
) -> None:
    reader = RunReader(project, environment, None)
    found = await export_html(reader, run_id, redaction_of(project, environment))
    file = tmp_path / "run.html"
    file.write_bytes(found.html)
    page = await browser.new_page()
    problems: list[str] = []
    page.on("console", lambda message: check_message(message, problems))
    await page.goto(file.as_uri())
    await page.get_by_role("button", name="Why did this fail?").click()
    await page.get_by_text("Why it failed: No.").wait_for()
    await page.get_by_role("group", name="View").get_by_role("button", name="Changes").click()
    await page.get_by_text("+two").wait_for()
    assert await page.get_by_role("button", name="Undo changes").count() == 0
    assert problems == []


async def test_approval_is_answered_while_the_command_line_runs(
    page: Any, site: Site, project: Path, environment: Environment
) -> None:
    steps = '[{call: write_file, args: {path: a.txt, content: "hi"}}, {say: Done.}]'
    (project / "script.yaml").write_text(f'rules: [{{match: "", steps: {steps}}}]')
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "retinue", "run", "Write.", "-m", "scripted:script.yaml",
        "--mode", "normal", cwd=project, stdin=slave, stdout=slave, stderr=slave,
        env={**environment.variables, "PATH": os.environ["PATH"], "TERM": "xterm"},
    )  # fmt: skip
    os.close(slave)
    await page.goto(site.service.url)
    await page.get_by_text("waits for you").first.wait_for()
    await page.get_by_role("link").filter(has_text="Write.").click()
    await page.get_by_role("button", name="Yes", exact=True).click()
    assert await process.wait() == 0
    os.close(master)
    await page.get_by_text("completed").first.wait_for()
    assert (project / "a.txt").read_text() == "hi"
    page.once("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))
    await page.get_by_role("button", name="Undo changes").click()
    await page.get_by_text("1 file undone.").wait_for()
    assert not (project / "a.txt").exists()
    await page.get_by_role("button", name="Redo changes").click()
    await page.get_by_text("1 file redone.").wait_for()


async def test_run_is_started_told_stopped_and_resumed_on_the_page(
    page: Any, site: Site, project: Path, settings: Callable[[str], None]
) -> None:
    steps = '[{call: ask_user, args: {question: "Which one?"}}, {say: Thanks.}]'
    (project / "script.yaml").write_text(f'rules: [{{match: "", steps: {steps}}}]')
    settings('model = "scripted:script.yaml"\n')
    await page.goto(site.service.url)
    await page.get_by_label("Task for a new run").fill("Ask me.")
    await page.get_by_role("button", name="Start").click()
    await page.get_by_label("Question of root").get_by_text("Which one?").wait_for()
    await page.get_by_role("button", name="Stop").click()
    await page.get_by_role("button", name="Resume").click()
    await page.get_by_label("Your answer").fill("Both.")
    await page.get_by_role("button", name="Answer").click()
    await page.get_by_text("completed").first.wait_for()


async def test_page_reconnects_to_a_restarted_server(
    browser: Any, serving: Callable[..., AbstractAsyncContextManager[Site]], run_id: str
) -> None:
    page = await browser.new_page()
    async with serving() as site:
        origin = site.service.origin
        await page.goto(f"{site.service.url}#/run/{run_id}")
        await page.get_by_role("tree").get_by_text("executor.1").wait_for()
    await page.get_by_text("The connection to the server is lost.").wait_for()
    async with serving(port=int(origin.rpartition(":")[2])):
        await page.get_by_text("Connected again; nothing was missed.").wait_for()
        assert await page.get_by_role("treeitem").count() == 3
        await page.close()


def test_committed_page_is_what_its_source_builds() -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    done = subprocess.run([ROOT / "script" / "page", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
