"""Decides which model endpoints may be used, and which of them get the user's key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from retinue.config.environment import Environment
from retinue.config.model_routes import PROVIDER_APIS, ModelRoute, ProviderApi, parse_route
from retinue.config.settings import EndpointSettings, Settings
from retinue.errors import ConfigError

if TYPE_CHECKING:
    from retinue.models.http.endpoint import Endpoint


class ModelEndpoints:
    """The endpoints that the user knows, by origin (scheme, host and port).

    A project's file or a model can name an endpoint too. Nothing is sent to an endpoint that is not
    allowed, since prompts hold the user's data, and a key only to one that the user trusts with it.
    """

    def __init__(self, environment: Environment, user: Settings) -> None:
        self._environment = environment
        self._settings = {origin_of(url): settings for url, settings in user.servers.items()}
        self._trusted = {origin_of(self._url_of(api)) for api in PROVIDER_APIS.values()}
        self._trusted |= {origin_of(url) for url in user.endpoints}
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
        self._allowed = set(self._trusted)

    def trust(self, name: str | None) -> None:
        """Let the endpoint in a model name be sent the user's key."""
        if name and (url := parse_route(name).endpoint):
            self._trusted.add(origin_of(url))

    def allow(self, names: Iterable[str | None]) -> None:
        """Let the endpoints in model names be asked."""
        for name in names:
            if name and (url := parse_route(name).endpoint):
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
        return route.endpoint or self._url_of(PROVIDER_APIS[route.provider])

    def _url_of(self, api: ProviderApi) -> str:
        return self._environment.get(api.url_variable) or api.url

    def settings_of(self, url: str) -> EndpointSettings:
        return self._settings.get(origin_of(url), EndpointSettings())

    def provider_of(self, route: ModelRoute) -> ProviderApi:
        """The provider whose key the endpoint gets.

        The address of a provider gets that provider's key, for any API that is used there.
        """
        api, origin = PROVIDER_APIS[route.provider], origin_of(self.url_of(route))
        owners = [
            one
            for one in PROVIDER_APIS.values()
            if origin in (origin_of(one.url), origin_of(self._url_of(one)))
        ]
        return api if api in owners or not owners else owners[0]

    def endpoint(self, route: ModelRoute) -> Endpoint:
        """The endpoint of a model, with the key if it may be sent one."""
        url, variable = self.url_of(route), self.provider_of(route).key_variable
        key = self._environment.get(variable) if origin_of(url) in self._trusted else None
        found = endpoint_at(url, self._environment, model=route.model, key=key, source=variable)
        settings = self.settings_of(url)
        return msgspec.structs.replace(
            found,
            first_byte_timeout_s=settings.first_byte_timeout_s,
            idle_timeout_s=settings.idle_timeout_s,
        )


def is_provider_address(url: str) -> bool:
    """Whether the endpoint is a provider's own, in the cloud."""
    return origin_of(url) in {origin_of(api.url) for api in PROVIDER_APIS.values()}


def origin_of(url: str) -> str:
    """Scheme, host and port, in one spelling. It is shown, so it has no user name and password."""
    parts = urlsplit(url)
    usual_port = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    host = parts.netloc.rpartition("@")[2].lower().removesuffix(usual_port)
    return f"{parts.scheme}://{host}"


def endpoint_at(
    url: str, environment: Environment, *, model: str = "", key: str | None, source: str
) -> Endpoint:
    """The endpoint at `url`, through the user's proxy. `source` is the variable of its key."""
    from retinue.models.http.endpoint import Endpoint

    return Endpoint(
        base_url=url,
        model=model,
        api_key=key,
        key_source=source or None,
        proxy=environment.proxy_for(url),
        ca_file=environment.ca_file,
    )
