"""Makes the clients of models. Imports are local: aiohttp alone costs 250 ms of CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.config.environment import Environment
from retinue.config.model_routes import ModelRoute
from retinue.ports.clock import Clock
from retinue.ports.model import Model

if TYPE_CHECKING:
    from retinue.embedded.model import EmbeddedModel
    from retinue.embedded.serving import RunningServer
    from retinue.models.http.endpoint import Endpoint
    from retinue.models.replay.model import ReplayModel
    from retinue.models.replay.redaction import Redaction

RECORDED_PACE = "@recorded"
"""Suffix of a recording's file name: replies take as long as they took."""


def http_client(
    route: ModelRoute, endpoint: Endpoint, on_headers: Callable[[int, Mapping[str, str]], None]
) -> Model:
    """The client of a model that is served over HTTP, in the dialect of its provider."""
    if route.provider == "anthropic":
        from retinue.models.anthropic.model import AnthropicModel

        return AnthropicModel(
            endpoint, name=str(route), thinking=route.thinking, on_headers=on_headers
        )
    from retinue.models.openai.model import OpenAIModel

    return OpenAIModel(endpoint, name=str(route), on_headers=on_headers)


def scripted_model(route: ModelRoute, root: Path) -> Model:
    from retinue.models.scripted.model import ScriptedModel

    return ScriptedModel.from_yaml(root / route.model)


def replay_model(
    route: ModelRoute, root: Path, environment: Environment, clock: Clock
) -> ReplayModel:
    from retinue.models.replay.model import ReplayModel
    from retinue.models.replay.recording import read_recording

    file = route.model.removesuffix(RECORDED_PACE)
    return ReplayModel(
        read_recording(root / file),
        name=str(route),
        redaction=redaction_of(root, environment),
        clock=None if file == route.model else clock,
    )


def embedded_model(environment: Environment) -> EmbeddedModel:
    """The model that is installed on this machine; ConfigError if none is installed."""
    from retinue.embedded.llama_server import MODEL_ALIAS
    from retinue.embedded.model import NAME, PATIENCE_S, EmbeddedModel

    def connect(server: RunningServer) -> Model:
        from retinue.models.http.endpoint import Endpoint
        from retinue.models.openai.model import OpenAIModel

        endpoint = Endpoint(
            base_url=server.url,
            model=MODEL_ALIAS,
            api_key=server.key,
            first_byte_timeout_s=PATIENCE_S,
        )
        return OpenAIModel(endpoint, name=NAME)

    return EmbeddedModel(environment.embedded_dir, environment.variables, connect)


def redaction_of(root: Path, environment: Environment) -> Redaction:
    """What to hide in recordings of this project."""
    from retinue.models.replay.redaction import Redaction

    return Redaction(directory=str(root), secrets=environment.secrets)
