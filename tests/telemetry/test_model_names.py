"""Spans name provider, model and server apart, as the GenAI conventions do."""

from __future__ import annotations

import pytest

from retinue.config.model_providers import PROVIDER_APIS
from retinue.config.model_routes import parse_route
from retinue.telemetry.model_names import read_model_name


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("openai:gpt-5-mini", ("openai", "gpt-5-mini", "", 0)),
        ("openai:qwen3@http://127.0.0.1:8080/v1", ("openai", "qwen3", "127.0.0.1", 8080)),
        ("ollama:qwen3:8b@https://ai.example/v1", ("ollama", "qwen3:8b", "ai.example", 443)),
        ("lmstudio:gemma-3@q8_0", ("lmstudio", "gemma-3@q8_0", "", 0)),
        ("gemini:gemini-3.6-flash+effort=high", ("gcp.gemini", "gemini-3.6-flash", "", 0)),
        ("anthropic:claude-sonnet-4-5+thinking", ("anthropic", "claude-sonnet-4-5", "", 0)),
        ("openrouter:command-r+", ("openrouter", "command-r+", "", 0)),
        ("bedrock:m+effort=low@https://h:1/x", ("aws.bedrock", "m", "h", 1)),
        ("scripted", ("scripted", "scripted", "", 0)),
        ("scripted+effort=high", ("scripted", "scripted", "", 0)),
        ("Smart", ("Smart", "Smart", "", 0)),
        ("embedded", ("embedded", "embedded", "", 0)),
    ],
)
def test_parts_of_a_model_name(name: str, parts: tuple[str, str, str, int]) -> None:
    assert read_model_name(name) == parts


def test_examples_of_all_providers_are_read_as_the_router_reads_them() -> None:
    for api in PROVIDER_APIS.values():
        if api.example:
            assert read_model_name(api.example).model == parse_route(api.example).model
