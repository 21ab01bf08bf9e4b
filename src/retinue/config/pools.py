"""Settings of model pools and of model servers, and their checks."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec


class PoolStrategy(StrEnum):
    """Which model a pool asks first: by free capacity, or the first with any in list order."""

    WEIGHTED = "weighted"
    ORDER = "order"


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models that can replace each other. `weights` has one entry for each of `endpoints`."""

    endpoints: tuple[str, ...]
    strategy: PoolStrategy = PoolStrategy.WEIGHTED
    weights: tuple[float, ...] = ()


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one model server. Agents wait `patience_s` for a server that is down."""

    slots: int | None = None
    patience_s: float = 120.0
    first_byte_timeout_s: float = 120.0
    idle_timeout_s: float = 120.0


def pool_problem(
    name: str, pool: PoolSettings, models: Mapping[str, str], pools: Collection[str]
) -> str | None:
    """What is wrong with a pool. `models` are the short names, `pools` the names of all pools."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        return "a name has letters, digits and _.- only."
    if name in models:
        return f"models.{name} has the same name; keep one."
    if not pool.endpoints:
        return 'endpoints must name at least one model: endpoints = ["openai:MODEL@http://…/v1"].'
    meant = [models.get(endpoint, endpoint) for endpoint in pool.endpoints]
    for place, endpoint in enumerate(pool.endpoints):
        if meant[place] in pools:
            return f"{endpoint!r} is a pool, and a pool lists models; name its models."
        if meant[place] in meant[:place]:
            return f"{endpoint!r} is listed twice; give it a weight of 2 instead."
    if pool.weights and len(pool.weights) != len(pool.endpoints):
        return f"there are {len(pool.endpoints)} endpoints and {len(pool.weights)} weights."
    if any(weight <= 0 for weight in pool.weights):
        return "a weight must be more than 0; remove a model that should not be asked."
    if pool.weights and pool.strategy is PoolStrategy.ORDER:
        return 'weights have no meaning with strategy = "order"; leave one of them out.'
    return None


def endpoint_problem(address: str, server: EndpointSettings) -> str | None:
    """What is wrong with the settings of a model server; None if nothing is."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
        return "is not the address of a server; write it like http://127.0.0.1:8080."
    for field in server.__struct_fields__:
        value = getattr(server, field)
        if value is not None and value <= 0:
            return f"{field} must be more than 0, not {value:g}."
    return None
