"""Owners are killed and the Postgres server is restarted, again and again: nothing is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.domain.events import ModelReplied
from retinue.extras import is_installed
from retinue.testing.server import Answering, ModelServer, Received
from tests.durability import test_chaos as chaos
from tests.store.postgres_server import PostgresServer, postgres_server, programs

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(
        programs() is None or not is_installed("postgres"),
        reason="Postgres or asyncpg is not installed: script/services",
    ),
]
project = chaos.project
# Which of them a process meets depends on what it was doing.
FAULTS = (b"The connection to postgresql://", b"cannot be reached; check that the server runs")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as found:
        yield found


class RestartingSales(chaos.Sales):
    """Sells replies, and restarts the database at some of the requests, as a crash would."""

    def __init__(self, server: PostgresServer, drawn: random.Random, restarts: int) -> None:
        super().__init__(chaos.SCRIPTS)
        self._server = server
        self._moments = sorted(drawn.sample(range(3, 40), restarts))
        self.restarts = 0

    def __call__(self, request: Received) -> Answering:
        answer = super().__call__(request)
        if self._moments and len(self.asked) >= self._moments[0]:
            self._moments.pop(0)
            self._server.stop()
            self._server.start()
            self.restarts += 1
        return answer


@pytest.mark.parametrize("seed", range(2))
async def test_run_survives_kills_and_restarts_of_the_database(
    tmp_path: Path,
    project: Path,
    server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    store = f"{server.url}?schema=kills_{seed}"
    monkeypatch.setenv("RETINUE_STORE", store)
    drawn = random.Random(seed)
    sales = RestartingSales(server, drawn, restarts=4)
    async with ModelServer(sales) as model:
        work = chaos.Chaos(
            project, tmp_path, f"openai:m@{model.base_url}", store=store, faults=FAULTS
        )
        while not await work.work(drawn.randrange(20, 90)):
            assert work.kills + work.faults < 100, "it does not get on"
    where = f"seed {seed}: {work.kills} kills, {sales.restarts} restarts, {work.faults} faults"
    view, events = await chaos.whole(project)
    assert view.status == "completed", where
    assert {agent.status for agent in view.agents.values()} == {"completed"}, where
    assert len(view.agents) == chaos.CHILDREN + 1, where
    assert chaos.tree(project) == chaos.FINAL, where
    chaos.check(work, events, sales, chaos.CHILDREN, where)
    assert sales.restarts == 4, where
    # Asked again was only what was under way: four agents at a time, and their parents.
    replies = sum(isinstance(event.fact, ModelReplied) for event in events)
    assert len(sales.asked) <= replies + 6 * (work.kills + work.faults), where
