from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retinue.config.model_providers import PROVIDER_APIS
from retinue.config.model_table import known_model
from retinue.domain.messages import Usage

COSTS = json.loads((Path(__file__).parent / "data" / "costs.json").read_text())


@pytest.mark.parametrize("provider", sorted({cost[0] for cost in COSTS}))
def test_costs_equal_those_of_genai_prices(provider: str) -> None:
    costs: list[list[Any]] = [cost for cost in COSTS if cost[0] == provider]
    assert len(costs) == 20
    for _, model, tokens_in, cached, written, tokens_out, usd in costs:
        known = known_model(PROVIDER_APIS[provider].table, model)
        assert known is not None, model
        usage = Usage(tokens_in, cached, tokens_out, tokens_written=written)
        assert known.price.add_cost(usage).cost_usd == pytest.approx(usd, abs=0.005), model


@pytest.mark.parametrize(
    ("provider", "model", "window", "max_output"),
    [
        ("openai", "gpt-5.6-sol", 1_050_000, 128_000),
        ("openai", "gpt-5-mini-2025-08-07", 400_000, 128_000),
        ("anthropic", "claude-haiku-4-5-20251001", 200_000, 64_000),
        ("bedrock", "us.anthropic.claude-haiku-4-5-20251001-v1:0", 200_000, 64_000),
        ("vertex", "google/gemini-3.6-flash", 1_000_000, 65_536),
        ("vertex", "claude-haiku-4-5@20251001", 200_000, 64_000),
        ("azure", "gpt-5-mini", 400_000, 128_000),
        ("groq", "openai/gpt-oss-120b", 131_072, 65_536),
    ],
)
def test_window_and_longest_output(provider: str, model: str, window: int, max_output: int) -> None:
    known = known_model(PROVIDER_APIS[provider].table, model)
    assert known is not None
    assert (known.window, known.max_output) == (window, max_output)


def test_same_name_differs_by_host() -> None:
    at_groq = known_model(("groq",), "gpt-oss-120b")
    at_bedrock = known_model(("bedrock",), "openai.gpt-oss-120b-1:0")
    assert at_groq is not None
    assert at_bedrock is not None
    assert at_groq.window != at_bedrock.window


@pytest.mark.parametrize("model", ["gpt-7", "qwen3", ""])
def test_unknown_model(model: str) -> None:
    assert known_model(("openai",), model) is None
