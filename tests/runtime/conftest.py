"""A runtime in an empty project, on a clock that the test moves, with settings that it writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from retinue.config.environment import Environment
from retinue.domain.contract import Contract, decode_contract
from retinue.project import open_journal
from retinue.runtime.runtime import Runtime
from retinue.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture
def settings(tmp_path: Path) -> Callable[[str], None]:
    """Write the user's own settings."""
    path = tmp_path / ".config" / "retinue" / "config.toml"

    def write(text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


@pytest.fixture
def opened(
    tmp_path: Path,
    project: Path,
    clock: FakeClock,
    open_project: Callable[..., AbstractAsyncContextManager[Runtime]],
) -> Callable[..., AbstractAsyncContextManager[Runtime]]:
    """`retinue.open` of the project, untouched by the environment of whoever runs the tests.

    Without shell commands, which a machine has or has not.
    """
    environment = Environment(variables={"HOME": str(tmp_path)})
    return partial(open_project, project, clock=clock, environment=environment, shell=False)


@pytest.fixture
def contracts(project: Path) -> Callable[[], Awaitable[dict[str, Contract]]]:
    """The contracts of the latest run, by agent, as they are on record."""

    async def read() -> dict[str, Contract]:
        async with open_journal(project) as store:
            (run, *_) = await store.runs()
            return {row.id: decode_contract(row.context_json) for row in await store.agents(run.id)}

    return read
