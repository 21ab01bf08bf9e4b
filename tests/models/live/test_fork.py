"""A fork at a server that has a cache in its slots: the shared prompt is not read again."""

from __future__ import annotations

from pathlib import Path

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import Event, ModelReplied
from retinue.models.http.endpoint import Endpoint

pytestmark = pytest.mark.live


async def test_the_shared_prompt_of_a_fork_comes_from_the_cache(
    roomy_llama_cpp: Endpoint, tmp_path: Path
) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    rules = "\n".join(f"Rule {n}: the heron {n * 7 % 101} stands by water." for n in range(100))
    replies: list[ModelReplied] = []

    def listen(event: Event) -> None:
        if isinstance(event.fact, ModelReplied):
            replies.append(event.fact)

    async with retinue.open(
        project,
        model=f"openai:smollm2@{roomy_llama_cpp.base_url}",
        environment=Environment(variables={"HOME": str(home)}),
        listeners=retinue.Listeners(on_event=listen),
        limits={"timeout_s": 3_000, "max_turns": 1},
        sampling=retinue.Sampling(max_output_tokens=32),
    ) as rt:
        run = await rt.run("Which heron has rule 3?", context=rules, tools=[])
        assert run.ok, run.error
        forks = [await rt.fork(run.id, tell=tell, new_budget=True) for tell in ("And 5?", "And 7?")]
    assert [fork.error for fork in forks] == [None, None]
    first, *forked = replies
    assert first.usage.tokens_in > 1_500
    shared = first.usage.tokens_in + first.usage.tokens_out
    cached = [reply.usage.tokens_cached / shared for reply in forked]
    assert min(cached) >= 0.95, cached
