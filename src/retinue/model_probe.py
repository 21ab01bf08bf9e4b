"""Asks models to call a tool, to see whether their endpoints, keys and names work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from retinue.config.environment import Environment
from retinue.config.model_providers import PROVIDER_APIS
from retinue.config.model_routes import parse_route
from retinue.config.settings import SettingsLayers
from retinue.domain.discovered_models import DiscoveredModels
from retinue.domain.messages import Request, ToolSpec, UserMessage
from retinue.errors import ConfigError, ModelError
from retinue.model_registry import ModelRegistry
from retinue.runtime.core.clock import SystemClock

PROBE_TIMEOUT_S = 120.0
_PING = ToolSpec(
    "ping",
    "Answers a ping.",
    msgspec.Raw(
        b'{"type":"object","properties":{"word":{"type":"string"}},"required":["word"],'
        b'"additionalProperties":false}'
    ),
)
# Room for a model that thinks before it calls.
_REQUEST = Request(
    messages=(UserMessage("Call the tool ping with the word pong. Write nothing else."),),
    tools=(_PING,),
    max_output_tokens=2_048,
)


class ProbeResult(msgspec.Struct, frozen=True):
    """The outcome of one request. `text` follows the model's name."""

    model: str
    ok: bool
    text: str
    answered: bool = True
    """Whether the model answered at all, with a call of the tool or without one."""


async def probe_model(
    environment: Environment, layers: SettingsLayers, root: Path, name: str
) -> ProbeResult:
    """Ask one model. One that runs in this process is only looked up, and not asked."""
    async with ModelRegistry(environment, layers, root, {}, SystemClock()) as registry:
        try:
            registry.use_trusted(name)
        except ConfigError as error:
            return ProbeResult(name, False, str(error), answered=False)
        pool = layers.user.pools.get(name)
        members = (name,) if pool is None else pool.endpoints
        for member in members:
            if parse_route(layers.user.models.get(member, member)).provider in PROVIDER_APIS:
                return await _probe(registry, name)
    return ProbeResult(name, True, "found")


async def probe_models(
    environment: Environment, layers: SettingsLayers, root: Path, found: DiscoveredModels
) -> list[ProbeResult]:
    """Ask one model of each endpoint that the user's settings or keys name."""
    async with ModelRegistry(environment, layers, root, {}, SystemClock()) as registry:
        names: dict[object, str] = {}
        for name in _named_models(environment, layers):
            route = parse_route(name)
            if route.provider in PROVIDER_APIS:
                names.setdefault((route.provider, route.endpoint), name)
        for server in found.servers:
            place = server.place
            is_listed = server.inventory.find(place.example.partition(":")[2]) is not None
            if place.cloud and is_listed:
                names.setdefault((place.provider, ""), place.example)
        probes = (_probe(registry, name) for name in names.values())
        return list(await asyncio.gather(*probes))


def _named_models(environment: Environment, layers: SettingsLayers) -> Iterator[str]:
    """The full names of the models that the user names; members instead of pools."""
    user = layers.user
    agents = (*user.roles.values(), *user.profiles.values())
    named = [environment.get("RETINUE_MODEL"), user.model, *user.models.values()]
    named += [member for pool in user.pools.values() for member in pool.endpoints]
    named += [agent.model for agent in agents]
    for name in named:
        if name and name not in user.pools:
            yield user.models.get(name, name)


async def _probe(registry: ModelRegistry, name: str) -> ProbeResult:
    started_at = time.perf_counter()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reply = await registry.get(name).reply(_REQUEST)
    except (ModelError, ConfigError) as error:
        return ProbeResult(name, False, str(error), answered=False)
    except TimeoutError:
        return ProbeResult(name, False, f"no reply within {PROBE_TIMEOUT_S:g} s", answered=False)
    took_s, usage = time.perf_counter() - started_at, reply.usage
    if not any(call.name == _PING.name for call in reply.message.calls):
        return ProbeResult(
            name,
            False,
            "it answered without calling the tool; choose a model that can use tools."
            " `retinue models` lists them",
        )
    price = registry.price(name)
    cost = "" if price is None else f", ${price.add_cost(usage).cost_usd:.4f}"
    return ProbeResult(name, True, f"called a tool, {took_s:.1f}s, {usage.tokens:,} tokens{cost}")
