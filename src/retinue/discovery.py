"""Which models there are: every place where one may be served is looked at, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from retinue.config.environment import Environment
from retinue.config.server_addresses import (
    address_of,
    cloud_address,
    cloud_providers,
    deduplicate,
    default_addresses,
    named_addresses,
)
from retinue.config.settings import PROJECT_FILE, SettingsLayers
from retinue.domain.discovered_models import DiscoveredModels, InspectedServer, ServerAddress
from retinue.embedded.model import is_available

if TYPE_CHECKING:
    from retinue.models.http.endpoint import Endpoint

# How long looking around may take. Trying ports on a guess must not keep the user waiting; an
# address that somebody named may be further away.
PROBE_S = 0.25
NAMED_S = 2.0
CLOUD_S = 5.0


async def discover(
    environment: Environment,
    layers: SettingsLayers,
    *,
    more: Iterable[ServerAddress] = (),
    cloud: bool = False,
) -> DiscoveredModels:
    """Look at what variables and settings name, at the usual ports of this machine, and at `more`.

    With `cloud` the providers that there is a key for are asked as well, instead of only being told
    of. A key is sent to nobody but them and the addresses that the user named for it.
    """
    # aiohttp costs a quarter of a second to import.
    from retinue.models.server_info.inventory import inspect_server

    keys = cloud_providers(environment)
    tried = [*more, *named_addresses(environment, layers.user)]
    tried += default_addresses() if layers.merged.discovery else []
    tried += map(cloud_address, keys) if cloud else []
    places = deduplicate(tried)
    looks = (
        inspect_server(
            _endpoint(place, environment), within_s=_patience_s(place), provider=place.provider
        )
        for place in places
    )
    return DiscoveredModels(
        servers=tuple(map(InspectedServer, places, await asyncio.gather(*looks))),
        clouds=tuple(keys),
        settings_file=environment.display_path(environment.user_settings_file),
        embedded=is_available(),
    )


class NamedModel(msgspec.Struct, frozen=True):
    """A model that somebody named, and where: a variable, or a settings file."""

    model: str
    where: str
    place: ServerAddress | None


def named_models(environment: Environment, layers: SettingsLayers) -> list[NamedModel]:
    """The models that are used where the command line names none: one, or those of a pool.

    Empty if it has to be found.
    """
    for name, where, trusted in (
        (environment.get("RETINUE_MODEL"), "RETINUE_MODEL", True),
        (layers.user.model, environment.display_path(environment.user_settings_file), True),
        (layers.project.model, PROJECT_FILE, False),
    ):
        if name is not None:
            pool = layers.user.pools.get(name)
            members = (name,) if pool is None else pool.endpoints
            where = where if pool is None else f"pools.{name}"
            full = [layers.user.models.get(member, member) for member in members]
            return [NamedModel(one, where, address_of(one, where, trusted=trusted)) for one in full]
    return []


def endpoint_at(
    url: str, environment: Environment, *, model: str = "", key: str | None, source: str
) -> Endpoint:
    """How to get to `url` from here. `source` is the variable that the key is, or would be, in."""
    from retinue.models.http.endpoint import Endpoint

    return Endpoint(
        base_url=url,
        model=model,
        api_key=key,
        key_source=source or None,
        proxy=environment.proxy_for(url),
        ca_file=environment.ca_file,
    )


def _endpoint(place: ServerAddress, environment: Environment) -> Endpoint:
    source = place.key_variable
    return endpoint_at(place.address, environment, key=environment.get(source), source=source)


def _patience_s(place: ServerAddress) -> float:
    if not place.named_by:
        return PROBE_S
    return CLOUD_S if place.cloud else NAMED_S
