"""Finds models: inspects every address where one may be served, all at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from retinue.config.environment import Environment
from retinue.config.model_providers import PROVIDER_APIS
from retinue.config.model_table import complete_served, known_model
from retinue.config.server_addresses import (
    KeySource,
    address_of,
    cloud_providers,
    deduplicate,
    default_addresses,
    named_addresses,
    origin_of,
    own_url,
)
from retinue.config.settings import PROJECT_FILE, SettingsLayers
from retinue.domain.discovered_models import DiscoveredModels, InspectedServer, ServerAddress
from retinue.domain.server_info import ServerInventory
from retinue.embedded.model import is_available
from retinue.model_endpoints import endpoint_at

# How long an inspection may take. Trying default ports must not keep the user waiting; an address
# that the user named may be further away.
DEFAULT_PORT_TIMEOUT_S = 0.25
NAMED_TIMEOUT_S = 2.0
CLOUD_TIMEOUT_S = 5.0


async def discover(
    environment: Environment,
    layers: SettingsLayers,
    *,
    more: Iterable[ServerAddress] = (),
    cloud: bool = False,
) -> DiscoveredModels:
    """Inspect the servers that variables and settings name, the default ports here, and `more`.

    With `cloud`, the providers that the user has a key for are asked too, instead of only listed. A
    key is sent only to them and to the addresses that the user named for it.
    """
    # aiohttp costs a quarter of a second to import.
    from retinue.models.server_info.inventory import inspect_server

    keys = cloud_providers(environment)
    tried = [*more, *named_addresses(environment, layers.user)]
    tried += default_addresses() if layers.merged.discovery else []
    tried += keys if cloud else []
    places = deduplicate(tried)
    inspections = []
    for place in places:
        source = KeySource(
            variable=place.key_variable, command=place.key_command, header=place.key_header
        )
        endpoint = endpoint_at(place.address, environment, source, project=layers.directory)
        inspections.append(
            inspect_server(endpoint, timeout_s=_timeout_s(place), provider=place.provider)
        )
    inventories = await asyncio.gather(*inspections)
    return DiscoveredModels(
        servers=tuple(
            InspectedServer(place, _with_table(place, inventory, environment))
            for place, inventory in zip(places, inventories, strict=True)
        ),
        clouds=tuple(keys),
        settings_file=environment.display_path(environment.user_settings_file),
        embedded=is_available(),
    )


def _with_table(
    place: ServerAddress, inventory: ServerInventory, environment: Environment
) -> ServerInventory:
    """Add what the table of models knows, at a provider's own address."""
    api = PROVIDER_APIS[place.provider]
    own = own_url(api, environment)
    if own is None or origin_of(own) != origin_of(place.address):
        return inventory
    models = (
        served if (known := known_model(api.table, served.model)) is None
        else complete_served(served, known)
        for served in inventory.models
    )  # fmt: skip
    return msgspec.structs.replace(inventory, models=tuple(models))


class NamedModel(msgspec.Struct, frozen=True):
    """A model that a variable or a settings file names; `where` is its name."""

    model: str
    where: str
    place: ServerAddress | None


def named_models(environment: Environment, layers: SettingsLayers) -> list[NamedModel]:
    """The default model where the command line names none, or the models of the default pool.

    Empty if nothing names one and `discover` has to find it.
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
            user = layers.user if trusted else None
            places = (address_of(one, where, environment, user) for one in full)
            return [NamedModel(one, where, place) for one, place in zip(full, places, strict=True)]
    return []


def _timeout_s(place: ServerAddress) -> float:
    if not place.named_by:
        return DEFAULT_PORT_TIMEOUT_S
    return CLOUD_TIMEOUT_S if place.cloud else NAMED_TIMEOUT_S
