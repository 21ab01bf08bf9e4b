"""Fixtures: journals of scripted runs, with a fake clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.contract import Contract, decode_contract
from retinue.domain.events import Event
from retinue.models.scripted.model import ScriptedModel, Step
from retinue.project import open_journal
from retinue.testing.clock import FakeClock

Record = Callable[..., Awaitable[list[Event]]]


@pytest.fixture
def contracts(tmp_path: Path) -> Callable[[], Awaitable[dict[str, Contract]]]:
    """Contracts of the latest run by agent id, from the journal."""

    async def read() -> dict[str, Contract]:
        async with open_journal(tmp_path / "project") as store:
            (run, *_) = await store.runs()
            return {row.id: decode_contract(row.context_json) for row in await store.agents(run.id)}

    return read


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Run a script, and return its journal."""

    async def run(
        script: Mapping[str, Sequence[Step]],
        on_event: Callable[[Event], None] = lambda _: None,
        **options: object,
    ) -> list[Event]:
        project = tmp_path / "project"
        project.mkdir(exist_ok=True)
        events: list[Event] = []

        def listen(event: Event) -> None:
            events.append(event)
            on_event(event)

        async with retinue.open(
            project,
            model=ScriptedModel(script),
            mode="auto",
            limits={"max_tool_calls": 1_000},
            clock=FakeClock(),
            environment=Environment(variables={"HOME": str(tmp_path)}),
            listeners=retinue.Listeners(on_event=listen),
            **options,  # type: ignore[arg-type]
        ) as runtime:
            await runtime.run("Survey it all")
        return events

    return run
