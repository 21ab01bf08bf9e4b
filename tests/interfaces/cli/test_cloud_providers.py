"""Runs on servers that behave like cloud providers: killed, resumed, continued, replayed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
import pytest

from retinue.testing.server import Answering, Received, Response, ResponseEnding
from tests.interfaces.cli.conftest import Serving
from tests.models.provider_servers import PROVIDERS, THOUGHT, Kimi, Provider, Responses

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interfaces.cli.conftest import Cli, Program

HANG = Response(ending=ResponseEnding.HANG)


class HangsOnce:
    """A provider that does not answer the second request which it accepts, once."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._accepted = 0

    def __call__(self, request: Received) -> Answering:
        answer = self._provider(request)
        if isinstance(answer, Response) and answer.status != 200:
            return answer
        self._accepted += 1
        return HANG if self._accepted == 2 else answer


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_killed_run_is_resumed_and_continued(
    cli: Cli, program: Program, project: Path, provider: type[Provider]
) -> None:
    (project / "a.txt").write_text("A heron.\n")
    with Serving(HangsOnce(provider()), {}) as server:
        model = f"{provider.route}@{server.url}"
        process = program("run", "-q", "Read both.", "-m", model)
        server.received(3 if provider.__name__ == "OpenAI" else 2)
        process.kill()
        process.communicate()
        assert cli("resume", "-q") == (0, "Done.\n", "")
        assert cli("run", "-q", "-c", "And now?", "-m", model) == (0, "Again.\n", "")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_recorded_run_is_replayed(cli: Cli, project: Path, provider: type[Provider]) -> None:
    (project / "a.txt").write_text("A heron.\n")
    with Serving(provider(), {}) as server:
        model = f"{provider.route}@{server.url}"
        done = cli("run", "-q", "Read both.", "-m", model, "--record", ".retinue/run.jsonl")
        assert done == (0, "Done.\n", "")
    assert re.search("thoughts", (project / ".retinue" / "run.jsonl").read_text())
    assert cli("run", "-q", "Read both.", "-m", "replay:.retinue/run.jsonl") == (0, "Done.\n", "")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_session_moves_to_another_model(
    cli: Cli, project: Path, provider: type[Provider]
) -> None:
    """Its reasoning stays behind, and the other model gets what it needs instead."""
    (project / "a.txt").write_text("A heron.\n")
    before = Kimi if provider is Responses else Responses
    with Serving(before(), {}) as first, Serving(provider(), {}) as second:
        begun = cli("run", "-q", "Read both.", "-m", f"{before.route}@{first.url}")
        assert begun == (0, "Done.\n", "")
        moved = cli("run", "-q", "-c", "And now?", "-m", f"{provider.route}@{second.url}")
        assert moved == (0, "Again.\n", "")
    assert THOUGHT not in second.requests[-1].body.decode()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_child_is_continued_by_another_model(
    cli: Cli, project: Path, provider: type[Provider]
) -> None:
    """As above, by the conversation that the journal has."""
    (project / "a.txt").write_text("A heron.\n")
    before = Kimi if provider is Responses else Responses
    with Serving(before(), {}) as first, Serving(provider(), {}) as second:
        models = [f"{each.route}@{at.url}" for each, at in ((before, first), (provider, second))]
        begun = cli("spawn", "researcher", "Read both.", "-m", models[0], "--output", "json")
        done = msgspec.json.decode(begun.out)
        assert (done["status"], done["answer"]) == ("completed", "Done.")
        child = f"{done['run_id']}/a1"
        moved = cli("spawn", "-q", "--continue", child, "And now?", "-m", models[1])
        assert moved == (0, "Again.\n", "")
    assert THOUGHT in first.requests[-1].body.decode()
    assert THOUGHT not in second.requests[-1].body.decode()
