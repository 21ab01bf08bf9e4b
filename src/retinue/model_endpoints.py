"""Decides which model endpoints may be used, and which of them get the user's key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from retinue.config.environment import Environment
from retinue.config.key_command import KeyCommand
from retinue.config.model_providers import PROVIDER_APIS, ProviderApi
from retinue.config.model_routes import ModelRoute, parse_route
from retinue.config.model_table import KnownModel, known_model
from retinue.config.server_addresses import (
    KeySource,
    address_variables,
    key_source,
    missing_variable,
    origin_of,
    own_url,
    provider_url,
)
from retinue.config.settings import EndpointSettings, Settings
from retinue.errors import ConfigError

if TYPE_CHECKING:
    from retinue.models.http.endpoint import Endpoint


class ModelEndpoints:
    """The endpoints that the user knows, by origin (scheme, host and port).

    A project's file or a model can name an endpoint too. Nothing is sent to an endpoint that is not
    allowed, since prompts hold the user's data, and a key only to one that the user trusts with it.
    """

    def __init__(self, environment: Environment, user: Settings, project: str = "") -> None:
        self._environment = environment
        self._project = project
        self._key_commands: dict[str, KeyCommand] = {}
        self._servers = user.servers
        self._settings = {origin_of(url): settings for url, settings in user.servers.items()}
        # Each with the key that may be sent there. A project's file or a model that names another
        # provider for the address must not send that provider's key there.
        self._trusted: set[tuple[str, str, str]] = set()
        self._clouds: dict[str, ProviderApi] = {}
        for provider, api in PROVIDER_APIS.items():
            if not api.in_cloud:
                continue
            if (url := provider_url(api, environment)) is not None:
                self._trust(provider, url)
            if (own := own_url(api, environment)) is not None:
                self._clouds.setdefault(origin_of(own), api)
        for url in user.endpoints:
            self._trust("openai", url)
            self._trust("anthropic", url)
        for url, settings in user.servers.items():
            if settings.key_variable or settings.key_command:
                self._trust("openai", url)
        self.named_by_user = {
            environment.get("RETINUE_MODEL"),
            user.model,
            *user.models.values(),
            *(name for pool in user.pools.values() for name in pool.endpoints),
            *(role.model for role in user.roles.values()),
            *(profile.model or profile.pool for profile in user.profiles.values()),
        }
        """The model names in the user's settings and environment."""
        for name in self.named_by_user:
            self.trust(name)
        self._allowed = {origin for origin, _, _ in self._trusted}
        self.allow(self.named_by_user)

    def trust(self, name: str | None) -> None:
        """Let the endpoint in a model name be sent the user's key."""
        if name and (route := parse_route(name)).endpoint:
            self._trust(route.provider, route.endpoint)

    def _trust(self, provider: str, url: str) -> None:
        source = key_source(provider, url, self._environment, self._servers)
        self._trusted.add((origin_of(url), source.variable, source.command))

    def allow(self, names: Iterable[str | None]) -> None:
        """Allow requests to the endpoints in model names, and to those of local providers."""
        for name in names:
            if name and (route := parse_route(name)).provider in PROVIDER_APIS:
                url = route.endpoint or provider_url(
                    PROVIDER_APIS[route.provider], self._environment
                )
                if url is not None:
                    self._allowed.add(origin_of(url))

    def is_allowed(self, url: str) -> bool:
        return origin_of(url) in self._allowed

    def check_allowed(self, url: str) -> None:
        """Raises ConfigError for an endpoint that may not be asked."""
        if not self.is_allowed(url):
            known = ", ".join(sorted(self._allowed))
            raise ConfigError(
                f"Endpoint {url!r} is not known; add it to `endpoints` in your settings."
                f" Known: {known}."
            )

    def url_of(self, route: ModelRoute) -> str:
        """The address in a model name, or else that of its provider."""
        api = PROVIDER_APIS[route.provider]
        url = route.endpoint or provider_url(api, self._environment)
        if url is None:
            raise ConfigError(
                f"Model {str(route)!r} needs the address of {api.title}: set"
                f" {missing_variable(api, self._environment)}, or write"
                f" {route.provider}:{route.model}@https://HOST/PATH."
            )
        return url

    def settings_of(self, url: str) -> EndpointSettings:
        return self._settings.get(origin_of(url), EndpointSettings())

    def key_source(self, route: ModelRoute) -> KeySource:
        """Where the key of the endpoint comes from, if it may be sent one."""
        return key_source(route.provider, self.url_of(route), self._environment, self._servers)

    def endpoint(self, route: ModelRoute) -> Endpoint:
        """The endpoint of a model, with the key if it may be sent one."""
        url, source = self.url_of(route), self.key_source(route)
        trusted = (origin_of(url), source.variable, source.command) in self._trusted
        settings = self.settings_of(url)
        found = endpoint_at(
            url,
            self._environment,
            source,
            model=route.model,
            trusted=trusted,
            project=self._project,
        )
        if found.read_key is not None:
            command = KeyCommand(source.command, self._environment, self._project)
            shared = self._key_commands.setdefault(source.command, command)
            found = msgspec.structs.replace(found, read_key=shared.key)
        from retinue.models.http.endpoint import CLOUD_TIMEOUT_S, LOCAL_TIMEOUT_S

        # A local server rarely has a certificate; for one that has, a longer timeout does no harm.
        usual_s = CLOUD_TIMEOUT_S if url.startswith("https:") else LOCAL_TIMEOUT_S
        return msgspec.structs.replace(
            found,
            url_source=None if route.endpoint else address_variables(PROVIDER_APIS[route.provider]),
            first_byte_timeout_s=settings.first_byte_timeout_s or usual_s,
            idle_timeout_s=settings.idle_timeout_s or usual_s,
        )

    def cloud_of(self, route: ModelRoute) -> ProviderApi | None:
        """The cloud provider whose own address the model has; None for other servers."""
        return self._clouds.get(origin_of(self.url_of(route)))

    def known_model(self, route: ModelRoute) -> KnownModel | None:
        """The entry of the model table for a model at the address of its provider."""
        api = self.cloud_of(route)
        return None if api is None else known_model(api.table, route.model)


def endpoint_at(
    url: str,
    environment: Environment,
    source: KeySource,
    *,
    model: str = "",
    trusted: bool = True,
    project: str = "",
) -> Endpoint:
    """The endpoint at `url`, through the user's proxy. It gets the key only if it is `trusted`.

    No program inside `project` prints the key.
    """
    from retinue.models.http.endpoint import Endpoint

    key = environment.get(source.variable) if trusted else None
    by_command = trusted and key is None and source.command
    return Endpoint(
        base_url=url,
        model=model,
        api_key=key,
        key_source=source.variable or source.command or None,
        key_header=source.header,
        read_key=KeyCommand(source.command, environment, project).key if by_command else None,
        proxy=environment.proxy_for(url),
        ca_file=environment.ca_file,
    )
