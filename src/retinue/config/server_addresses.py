"""Where models may be served, when nobody says: what the user's environment names, and the usual
ports of this machine."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from retinue.config.environment import Environment
from retinue.config.model_routes import PROVIDER_APIS, is_web_address, parse_route
from retinue.config.settings import Settings
from retinue.domain.discovered_models import CloudProvider, ServerAddress
from retinue.domain.server_info import DEFAULT_PORTS, OLLAMA
from retinue.errors import ConfigError

_CLOUD_TITLES = {
    "openai": ("OpenAI", "openai:gpt-5-mini"),
    "anthropic": ("Anthropic", "anthropic:claude-sonnet-4-5"),
}
_CLOUDS = tuple(
    (
        service.url_variable,
        CloudProvider(
            provider=provider,
            title=_CLOUD_TITLES[provider][0],
            key_variable=service.key_variable,
            address=f"{service.url.removesuffix('/v1')}/v1",
            example=_CLOUD_TITLES[provider][1],
        ),
    )
    for provider, service in PROVIDER_APIS.items()
)

KEY_VARIABLES = {cloud.provider: cloud.key_variable for _, cloud in _CLOUDS}


def named_addresses(environment: Environment, user: Settings) -> list[ServerAddress]:
    """The addresses that the user's variables and settings name. ConfigError if one is none."""
    found = []
    for variable, cloud in _CLOUDS:
        if url := environment.get(variable):
            found.append(
                ServerAddress(
                    address=_models_url(_validate(url, variable), cloud.provider),
                    title=f"{cloud.title}-compatible server",
                    named_by=variable,
                    provider=cloud.provider,
                    key_variable=cloud.key_variable,
                    is_default=True,
                )
            )
    if host := environment.get("OLLAMA_HOST"):
        # It gets no key: the one there is belongs to somebody else.
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
    """Where a model is served whose name says so. Only a `trusted` place may be sent a key."""
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
    """Where the models are listed, which Anthropic's address leaves out the half of."""
    return f"{address.removesuffix('/v1')}/v1" if provider == "anthropic" else address


def default_addresses() -> list[ServerAddress]:
    """The ports that servers listen on when nobody says otherwise."""
    return [
        ServerAddress(address=f"http://127.0.0.1:{port}/v1", title=server)
        for server, port in DEFAULT_PORTS.items()
    ]


def deduplicate(places: Iterable[ServerAddress]) -> list[ServerAddress]:
    """Without those whose address came before; this machine has several names."""
    found: dict[str, ServerAddress] = {}
    for place in places:
        found.setdefault(_canonical(place.address), place)
    return list(found.values())


def cloud_providers(environment: Environment) -> list[CloudProvider]:
    """The providers that there is a key for, and no address: that one would be another's."""
    return [
        cloud
        for variable, cloud in _CLOUDS
        if environment.get(cloud.key_variable) and not environment.get(variable)
    ]


def cloud_address(cloud: CloudProvider) -> ServerAddress:
    """Where the provider lists its own models."""
    return ServerAddress(
        address=cloud.address,
        title=cloud.title,
        named_by=cloud.key_variable,
        provider=cloud.provider,
        key_variable=cloud.key_variable,
        is_default=True,
        cloud=True,
    )


def ollama_address(host: str) -> str:
    """OLLAMA_HOST as Ollama reads it, which is a host, a port, both, or a whole address."""
    scheme, separator, rest = host.strip().rpartition("://")
    scheme = scheme or "http"
    rest = rest.partition("/")[0]
    if not separator and rest.startswith(":"):
        rest = f"127.0.0.1{rest}"
    url = f"{scheme}://{rest}"
    if not is_web_address(url):
        raise ConfigError(
            f"OLLAMA_HOST is {host!r}, which is no address; write it like 127.0.0.1:11434."
        )
    parts = urlsplit(url)
    name = parts.hostname or ""
    if name in ("0.0.0.0", "::"):
        name = "127.0.0.1"  # Where it listens, not where it is called.
    usual = {"http": 80, "https": 443}[scheme] if separator else DEFAULT_PORTS[OLLAMA]
    shown = f"[{name}]" if ":" in name else name
    return f"{scheme}://{shown}:{parts.port or usual}/v1"


def _validate(url: str, named_by: str) -> str:
    address = url.strip().rstrip("/")
    if not is_web_address(address):
        raise ConfigError(
            f"{named_by} has {url.rpartition('@')[2]!r}, which is no web address; write it like"
            " http://127.0.0.1:8080/v1."
        )
    return address


def _canonical(address: str) -> str:
    parts = urlsplit(address)
    host = "127.0.0.1" if parts.hostname in ("localhost", "::1") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port}{parts.path}"
