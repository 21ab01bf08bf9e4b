"""Presets of model providers, from `model_providers.toml`: addresses, APIs, key variables."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

import msgspec.toml


class ProviderApi(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a provider. `{NAME}` in `url` stands for a variable of the environment."""

    title: str
    url: str = ""
    """Empty: the variable `url_variable` must have the address."""
    dialect: str = "openai"
    """`openai` for chat completions or the Responses API, `anthropic` for Messages."""
    url_variable: str = ""
    url_suffix: str = ""
    """Path to add to the address in `url_variable`: users copy the address without it."""
    key_variable: str = ""
    """Empty: the key comes from `key_command`, or the servers need none."""
    other_key_variables: tuple[str, ...] = ()
    """Variables that the provider's own tools read too, if the first one is not set."""
    key_command: str = ""
    """Command that prints the key, for providers whose keys expire."""
    key_header: str = ""
    """Header that carries the key, in addition to the dialect's own."""
    defaults: Mapping[str, str] = {}
    """Values of variables in `url` that are not set."""
    example: str = ""
    """Full name of one of its models."""
    table: tuple[str, ...] = ()
    """Names of providers in the table of models, whose rows apply to this provider's models."""
    lists_windows: bool = False
    """Whether the provider's list of models has context windows, so that the list is read."""

    @property
    def in_cloud(self) -> bool:
        return bool(self.key_variable or self.key_command)


PROVIDER_APIS = msgspec.toml.decode(
    files(__package__).joinpath("model_providers.toml").read_bytes(), type=dict[str, ProviderApi]
)
# `responses:` always uses the Responses API; `openai:` uses it at some addresses only.
RESPONSES = "responses"
PROVIDER_APIS[RESPONSES] = PROVIDER_APIS["openai"]
