"""Addresses of model servers: those that variables and settings name, and the default ports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from urllib.parse import urlsplit

import msgspec

from retinue.config.environment import Environment
from retinue.config.model_providers import PROVIDER_APIS, RESPONSES, ProviderApi
from retinue.config.model_routes import is_web_address, parse_route
from retinue.config.settings import EndpointSettings, Settings
from retinue.domain.discovered_models import ServerAddress
from retinue.domain.server_info import DEFAULT_PORTS, OLLAMA
from retinue.errors import ConfigError

# `responses` has the same addresses as `openai`, so only `openai` is listed.
_LISTED_APIS = {provider: api for provider, api in PROVIDER_APIS.items() if provider != RESPONSES}
KEY_VARIABLES = {
    provider: api.key_variable for provider, api in PROVIDER_APIS.items() if api.key_variable
}


def provider_url(api: ProviderApi, environment: Environment) -> str | None:
    """The address for model names without one; None if a variable that it needs is not set."""
    url = environment.get(api.url_variable)
    if url is None:
        return own_url(api, environment)
    if api.title == OLLAMA:
        return ollama_address(url)
    url = _validate(url, api.url_variable)
    return url if url.endswith("/v1") else f"{url}{api.url_suffix}"


def own_url(api: ProviderApi, environment: Environment) -> str | None:
    """The address of the provider itself; None if a variable that it needs is not set."""
    if not api.url:
        return provider_url(api, environment) if environment.get(api.url_variable) else None
    names = _names(api.url)
    if not names:
        return api.url
    values = {name: environment.get(name) or api.defaults.get(name) for name in names}
    if None in values.values():
        return None
    # The host name begins with the region, except for the location `global`.
    return api.url.format(**values).replace("//global-", "//")


def missing_variable(api: ProviderApi, environment: Environment) -> str:
    """The variable without which the provider has no address."""
    names = (name for name in _names(api.url) if name not in api.defaults)
    return next((name for name in names if not environment.get(name)), api.url_variable)


def address_variables(api: ProviderApi) -> str | None:
    """The variables that set the address of a provider, for an error; None if there are none."""
    return " or ".join(dict.fromkeys(_names(api.url))) or api.url_variable or None


@cache
def _names(template: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", template)


class KeySource(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Where the key of an endpoint comes from: a variable, or a command that prints it."""

    variable: str = ""
    command: str = ""
    header: str = ""
    """Header that carries the key, in addition to the dialect's own."""


def key_source(
    provider: str, url: str, environment: Environment, servers: Mapping[str, EndpointSettings]
) -> KeySource:
    """Where the key for an address comes from, if the address may be sent one.

    The user's settings of the server come first. Otherwise, the address of a known provider gets
    that provider's key, and any other address gets the key of `provider`.
    """
    origin, api = origin_of(url), PROVIDER_APIS[provider]
    owners = [
        one
        for one in PROVIDER_APIS.values()
        for own in (provider_url(one, environment), own_url(one, environment))
        if one.in_cloud and own is not None and origin_of(own) == origin
    ]
    api = api if api in owners or not owners else owners[0]
    for address, settings in servers.items():
        if origin_of(address) == origin and (settings.key_variable or settings.key_command):
            return KeySource(
                variable=settings.key_variable,
                command=settings.key_command,
                header=api.key_header,
            )
    return KeySource(
        variable=key_variable(api, environment), command=api.key_command, header=api.key_header
    )


def key_variable(api: ProviderApi, environment: Environment) -> str:
    """The variable with the provider's key: the first that is set, or else the usual one."""
    names = (api.key_variable, *api.other_key_variables)
    return next((name for name in names if environment.get(name)), api.key_variable)


@lru_cache(maxsize=256)
def origin_of(url: str) -> str:
    """Scheme, host and port, in one spelling. It is shown, so it has no user name and password."""
    parts = urlsplit(url)
    usual_port = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    host = parts.netloc.rpartition("@")[2].lower().removesuffix(usual_port)
    return f"{parts.scheme}://{host}"


def named_addresses(environment: Environment, user: Settings) -> list[ServerAddress]:
    """Addresses that the user's variables and settings name. ConfigError if one is invalid."""
    found = []
    for provider, api in _LISTED_APIS.items():
        url = provider_url(api, environment) if environment.get(api.url_variable) else None
        # Names of Ollama models are listed with their address, so no provider is given.
        if url is not None and api.title == OLLAMA:
            found.append(ServerAddress(address=url, title=OLLAMA, named_by=api.url_variable))
        elif url is not None:
            source = key_source(provider, url, environment, user.servers)
            found.append(
                ServerAddress(
                    address=_models_url(url, provider),
                    title=api.title if api.url_suffix else f"{api.title}-compatible server",
                    named_by=api.url_variable,
                    provider=provider,
                    key_variable=source.variable,
                    key_command=source.command,
                    key_header=source.header,
                    is_default=True,
                )
            )
    for url in user.endpoints:
        address = _validate(url, "endpoints")
        found.append(_server_address(address, "endpoints", "openai", environment, user))
    models = [(f"models.{short}", name) for short, name in user.models.items()]
    models += [
        (f"pools.{name}", user.models.get(member, member))
        for name, pool in user.pools.items()
        for member in pool.endpoints
    ]
    places = (address_of(name, where, environment, user) for where, name in models)
    return [*found, *(place for place in places if place is not None)]


def address_of(
    name: str, named_by: str, environment: Environment, user: Settings | None
) -> ServerAddress | None:
    """Address in a model name, or of its local provider; None for other names.

    `user` is None for a name that is not the user's: only an address that the user named is sent a
    key.
    """
    route = parse_route(name)
    api = PROVIDER_APIS.get(route.provider)
    if api is None or (api.in_cloud and not route.endpoint):
        return None
    address = route.endpoint or provider_url(api, environment) or ""
    return _server_address(address, named_by, route.provider, environment, user)


def _server_address(
    address: str, named_by: str, provider: str, environment: Environment, user: Settings | None
) -> ServerAddress:
    source = (
        KeySource() if user is None else key_source(provider, address, environment, user.servers)
    )
    return ServerAddress(
        address=_models_url(address, provider),
        title="server",
        named_by=named_by,
        provider=provider,
        key_variable=source.variable,
        key_command=source.command,
        key_header=source.header,
    )


def _models_url(address: str, provider: str) -> str:
    """Base address of the model list. Anthropic's address has no /v1."""
    if PROVIDER_APIS[provider].dialect != "anthropic":
        return address
    return f"{address.removesuffix('/v1')}/v1"


def default_addresses() -> list[ServerAddress]:
    """Default ports of model servers on this machine."""
    return [
        ServerAddress(address=f"http://127.0.0.1:{port}/v1", title=server)
        for server, port in DEFAULT_PORTS.items()
    ]


def deduplicate(places: Iterable[ServerAddress]) -> list[ServerAddress]:
    """Remove repeated addresses; localhost and 127.0.0.1 are the same."""
    found: dict[str, ServerAddress] = {}
    for place in places:
        found.setdefault(_canonical(place.address), place)
    return list(found.values())


def cloud_providers(environment: Environment) -> list[ServerAddress]:
    """Providers with a key in the environment. With an address set, the key is for that address."""
    found = []
    for provider, api in _LISTED_APIS.items():
        variable = key_variable(api, environment)
        has_key = environment.get(variable) is not None
        if not has_key or not api.url or environment.get(api.url_variable):
            continue
        if (url := provider_url(api, environment)) is not None:
            found.append(
                ServerAddress(
                    address=_models_url(url, provider),
                    title=api.title,
                    named_by=variable,
                    provider=provider,
                    key_variable=variable,
                    key_header=api.key_header,
                    is_default=True,
                    cloud=True,
                    example=api.example,
                )
            )
    return found


def ollama_address(host: str) -> str:
    """OLLAMA_HOST as Ollama reads it: a host, a port, both, or a whole address."""
    scheme, separator, rest = host.strip().rpartition("://")
    scheme = scheme or "http"
    rest = rest.partition("/")[0]
    if not separator and rest.startswith(":"):
        rest = f"127.0.0.1{rest}"
    url = f"{scheme}://{rest}"
    if not is_web_address(url):
        raise ConfigError(
            f"OLLAMA_HOST is {host!r}, which is not an address; write it like 127.0.0.1:11434."
        )
    parts = urlsplit(url)
    name = parts.hostname or ""
    if name in ("0.0.0.0", "::"):
        name = "127.0.0.1"  # This address is for listening, not for connecting.
    usual = {"http": 80, "https": 443}[scheme] if separator else DEFAULT_PORTS[OLLAMA]
    shown = f"[{name}]" if ":" in name else name
    return f"{scheme}://{shown}:{parts.port or usual}/v1"


def _validate(url: str, named_by: str) -> str:
    address = url.strip().rstrip("/")
    if not is_web_address(address):
        raise ConfigError(
            f"{named_by} has {url.rpartition('@')[2]!r}, which is not a web address; write it like"
            " http://127.0.0.1:8080/v1."
        )
    return address


def _canonical(address: str) -> str:
    parts = urlsplit(address)
    host = "127.0.0.1" if parts.hostname in ("localhost", "::1") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port}{parts.path}"
