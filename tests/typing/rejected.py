"""Snippets that type checkers reject: 22 lines, each marked with the error that mypy reports.

mypy fails if one of them is accepted, because then its `type: ignore` is not used.
"""

# ruff: noqa: B018 - attributes are only read

from __future__ import annotations

import msgspec

import retinue
from retinue import events, testing


class Invoice(msgspec.Struct):
    total: int


class NoModel:
    name = "no model"


@retinue.tool
def repeat(text: str) -> str:
    """Repeat."""
    return text


async def rejected(rt: retinue.Runtime, event: retinue.Event, job: retinue.Job[Invoice]) -> None:
    retinue.open(".", modell="openai:x")  # type: ignore[call-arg]
    retinue.open(".", model=NoModel())  # type: ignore[arg-type]
    retinue.open(".", model=3)  # type: ignore[arg-type]
    retinue.open(".", limits={"max_token": 3})  # type: ignore[arg-type]
    retinue.open(".", tools=[len])  # type: ignore[list-item]
    result = await rt.spawn("researcher", "…", output=Invoice)
    result.data.total  # type: ignore[union-attr]
    result.unwrap().totl  # type: ignore[attr-defined]
    result.status = retinue.Status.ERROR  # type: ignore[misc]
    await rt.spawn("researcher")  # type: ignore[call-arg]
    await rt.spawn("researcher", "…", max_tool_calls="8")  # type: ignore[arg-type]
    await rt.spawn("researcher", "…", mode="automatic")  # type: ignore[arg-type]
    await rt.fan_out(["What?"])  # type: ignore[list-item]
    await rt.join("a1")  # type: ignore[arg-type]
    (await job.result()).unwrap().totl  # type: ignore[attr-defined]
    repeat(3)  # type: ignore[arg-type]
    match event.fact:
        case events.ToolFinished(tool=tool):
            tool.name  # type: ignore[attr-defined]
    event.fact.tool  # type: ignore[union-attr]
    retinue.Person(approve=lambda request: True)  # type: ignore[arg-type, return-value]
    retinue.Listeners(on_text=lambda a, b: None)  # type: ignore[arg-type, misc]
    testing.say(3)  # type: ignore[arg-type]
    retinue.run_sync("…", directry=".")  # type: ignore[call-arg]
