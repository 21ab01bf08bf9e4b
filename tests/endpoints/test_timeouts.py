"""How long an endpoint may be silent: by its kind, and by the user's settings."""

from __future__ import annotations

import pytest

from retinue.config.environment import Environment
from retinue.config.model_routes import parse_route
from retinue.config.settings import EndpointSettings, Settings
from retinue.model_endpoints import ModelEndpoints


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("openai:gpt-6", (900.0, 900.0)),
        ("anthropic:claude-opus-5", (900.0, 900.0)),
        ("openai:m@https://models.example.com/v1", (900.0, 900.0)),
        ("openai:m@http://127.0.0.1:8080/v1", (120.0, 120.0)),
        ("openai:m@https://slow.example.com/v1", (30.0, 900.0)),
    ],
)
def test_silence_that_is_waited_for(name: str, expected: tuple[float, float]) -> None:
    servers = {"https://slow.example.com": EndpointSettings(first_byte_timeout_s=30.0)}
    endpoints = ModelEndpoints(Environment(variables={}), Settings(servers=servers))
    endpoint = endpoints.endpoint(parse_route(name))
    assert (endpoint.first_byte_timeout_s, endpoint.idle_timeout_s) == expected
    assert endpoint.is_patient is (max(expected) > 120)
