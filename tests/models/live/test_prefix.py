"""Siblings with one prefix, at a server that has a cache in each of its slots."""

from __future__ import annotations

from pathlib import Path

import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.events import Event, ModelReplied
from retinue.models.http.endpoint import Endpoint

pytestmark = pytest.mark.live

SIBLINGS = 8


async def test_siblings_use_the_cached_prefix(roomy_llama_cpp: Endpoint, tmp_path: Path) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    (project / "MANUAL.md").write_text(
        "\n".join(f"Rule {n}: the heron {n * 7 % 101} stands by water." for n in range(150))
    )
    settings = home / ".config/retinue/config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        "[profiles.warden]\n"
        'system_prompt = "You answer in one word."\nbootstrap_files = ["MANUAL.md"]\ntools = []\n'
        "[profiles.warden.budget]\nmax_context_tokens = 8192\ntimeout_s = 3000\n"
    )
    replies: list[ModelReplied] = []

    def listen(event: Event) -> None:
        if isinstance(event.fact, ModelReplied):
            replies.append(event.fact)

    async with retinue.open(
        project,
        model=f"openai:smollm2@{roomy_llama_cpp.base_url}",
        environment=Environment(variables={"HOME": str(home)}),
        listeners=retinue.Listeners(on_event=listen),
    ) as rt:
        results = await rt.fan_out(
            [
                retinue.Task(role="warden", task=f"Which heron has rule {n}?", max_tokens=3_000)
                for n in range(SIBLINGS)
            ],
            max_concurrent=SIBLINGS,
        )
    assert [result.error for result in results] == [None] * SIBLINGS
    first, *others = replies
    assert first.usage.tokens_in > 2_000
    cached = [reply.usage.tokens_cached / reply.usage.tokens_in for reply in others]
    assert sum(cached) / len(cached) >= 0.8, cached
