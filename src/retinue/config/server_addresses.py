"""Addresses of model servers: those that variables and settings name, and the default ports."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from retinue.config.environment import Environment
from retinue.config.model_routes import PROVIDER_APIS, RESPONSES, is_web_address, parse_route
from retinue.config.settings import Settings
from retinue.domain.discovered_models import ServerAddress
from retinue.domain.server_info import DEFAULT_PORTS, OLLAMA
from retinue.errors import ConfigError

# The Responses API has the addresses of OpenAI, which are listed once.
_APIS = {provider: api for provider, api in PROVIDER_APIS.items() if provider != RESPONSES}
KEY_VARIABLES = {provider: api.key_variable for provider, api in PROVIDER_APIS.items()}


def named_addresses(environment: Environment, user: Settings) -> list[ServerAddress]:
    """Addresses that the user's variables and settings name. ConfigError if one is invalid."""
    found = []
    for provider, api in _APIS.items():
        if url := environment.get(api.url_variable):
            found.append(
                ServerAddress(
                    address=_models_url(_validate(url, api.url_variable), provider),
                    title=f"{api.title}-compatible server",
                    named_by=api.url_variable,
                    provider=provider,
                    key_variable=api.key_variable,
                    is_default=True,
                )
            )
    if host := environment.get("OLLAMA_HOST"):
        # Ollama gets no key: the key belongs to another provider.
        found.append(
            ServerAddress(address=ollama_address(host), title=OLLAMA, named_by="OLLAMA_HOST")
        )
    found += [
        _server_address(_validate(url, "endpoints"), "endpoints", trusted=True)
        for url in user.endpoints
    ]
    models = [(f"models.{short}", name) for short, name in user.models.items()]
    models += [
        (f"pools.{name}", user.models.get(member, member))
        for name, pool in user.pools.items()
        for member in pool.endpoints
    ]
    places = (address_of(name, where, trusted=True) for where, name in models)
    return [*found, *(place for place in places if place is not None)]


def address_of(name: str, named_by: str, *, trusted: bool) -> ServerAddress | None:
    """Address in a model name, if it has one. Only a `trusted` address is sent a key."""
    route = parse_route(name)
    if route.provider not in KEY_VARIABLES or not route.endpoint:
        return None
    return _server_address(route.endpoint, named_by, provider=route.provider, trusted=trusted)


def _server_address(
    address: str, named_by: str, *, provider: str = "openai", trusted: bool
) -> ServerAddress:
    return ServerAddress(
        address=_models_url(address, provider),
        title="server",
        named_by=named_by,
        provider=provider,
        key_variable=KEY_VARIABLES[provider] if trusted else "",
    )


def _models_url(address: str, provider: str) -> str:
    """Base address of the model list. Anthropic's address has no /v1."""
    return f"{address.removesuffix('/v1')}/v1" if provider == "anthropic" else address


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
    return [
        ServerAddress(
            address=_models_url(api.url, provider),
            title=api.title,
            named_by=api.key_variable,
            provider=provider,
            key_variable=api.key_variable,
            is_default=True,
            cloud=True,
            example=api.example,
        )
        for provider, api in _APIS.items()
        if environment.get(api.key_variable) and not environment.get(api.url_variable)
    ]


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
