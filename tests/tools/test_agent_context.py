"""What a tool learns about the agent that calls it, and the progress that it reports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import msgspec
import pytest

import retinue
from retinue.errors import ToolFailure
from retinue.events import ToolFinished
from retinue.models.scripted.model import ScriptedModel, call, say
from retinue.ports.tool import ToolContext
from retinue.tools.agent_context import AgentContext
from retinue.tools.function import tool


@tool(effect="write")
def shout(path: str, agent: AgentContext) -> str:
    """Write a file in capitals."""
    text = agent.workspace.read_text(path)
    agent.workspace.write_text("loud.txt", text.upper())
    left = agent.remaining
    return f"{agent.agent_id} {agent.path} {agent.depth} {left.tool_calls} {left.cost_usd}"


async def test_context_has_agent_budget_and_workspace(tmp_path: Path) -> None:
    (tmp_path / "quiet.txt").write_text("hush\n")
    model = ScriptedModel([call("shout", path="quiet.txt"), say("Done.")])
    async with retinue.open(tmp_path, model=model, tools=[shout], mode="auto") as rt:
        result = await rt.spawn("executor", "Shout.", tools=["shout"], max_tool_calls=3)
        events = [event.fact async for event in rt.events(result.run_id)]
    (finished,) = [fact for fact in events if isinstance(fact, ToolFinished)]
    assert finished.content == f"{result.agent_id} root/executor.1 1 2 None"
    assert (tmp_path / "loud.txt").read_text() == "HUSH\n"
    (receipt,) = result.receipts
    assert (receipt.read, [str(c) for c in receipt.changed]) == (
        ("quiet.txt",),
        ["loud.txt (+1 line, new file)"],
    )
    assert [change.path for change in result.files_modified] == ["loud.txt"]


def test_models_do_not_see_the_context() -> None:
    assert list(msgspec.json.decode(shout.spec.parameters)["properties"]) == ["path"]


async def test_the_contract_limits_what_a_tool_writes(ctx: ToolContext, root: Path) -> None:
    files = AgentContext(ctx, print).workspace
    (root / "docs").mkdir()
    (root / "docs" / "a.bin").write_bytes(b"\xff")
    with pytest.raises(ToolFailure, match="The contract does not let you write 'docs/a'"):
        files.write_text("docs/a", "x")
    with pytest.raises(ToolFailure, match=r"docs/a.bin is not UTF-8 text"):
        files.read_text("docs/a.bin")
    assert files.find("docs/*") == ["docs/a.bin"]
    assert files.directory == str(root)


async def test_generators_report_progress(tmp_path: Path) -> None:
    @tool(effect="read")
    def count(to: int) -> Iterator[str]:
        """Count."""
        for number in range(to):
            yield f"{number + 1} of {to}"

    @tool(effect="read")
    async def walk(agent: AgentContext) -> AsyncIterator[str]:
        """Walk."""
        agent.report("setting off")
        yield "half way"
        yield "there"

    @tool(effect="read")
    def sum_up() -> Generator[str, None, int]:
        """Sum up."""
        yield "adding"
        return 7

    seen: list[tuple[str, str, str]] = []
    listeners = retinue.Listeners(
        on_progress=lambda run, agent, tool, text: seen.append((agent, tool, text))
    )
    model = ScriptedModel([call("count", to=3), call("walk"), call("sum_up"), say("Done.")])
    async with retinue.open(
        tmp_path, model=model, tools=[count, walk, sum_up], listeners=listeners
    ) as rt:
        result = await rt.spawn("planner", "Go.", tools=["count", "walk", "sum_up"])
        events = [event.fact async for event in rt.events(result.run_id)]
    told = [fact.content for fact in events if isinstance(fact, ToolFinished)]
    assert told == ["3 of 3", "there", "7"]
    assert [(tool, text) for _, tool, text in seen] == [
        ("count", "1 of 3"),
        ("count", "2 of 3"),
        ("walk", "setting off"),
        ("walk", "half way"),
        ("sum_up", "adding"),
    ]
    assert {agent for agent, _, _ in seen} == {result.agent_id}
