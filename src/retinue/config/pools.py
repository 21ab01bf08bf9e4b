"""Pools of models, and what a user knows of the servers behind them, as the settings have it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec


class PoolStrategy(StrEnum):
    """Whom a pool asks first: the one with the most room, or the first in order that has any."""

    WEIGHTED = "weighted"
    ORDER = "order"


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models that can stand in for each other. `weights` go with `endpoints`, one for each."""

    endpoints: tuple[str, ...]
    strategy: PoolStrategy = PoolStrategy.WEIGHTED
    weights: tuple[float, ...] = ()


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the user knows of one server. `patience_s` is how long agents wait while it is gone."""

    slots: int | None = None
    patience_s: float = 120.0
    first_byte_timeout_s: float = 120.0
    idle_timeout_s: float = 120.0


def pool_problem(
    name: str, pool: PoolSettings, models: Mapping[str, str], pools: Collection[str]
) -> str | None:
    """What cannot be meant by it; `models` are the short names, `pools` those of all pools."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        return "a name has letters, digits and _.- only."
    if name in models:
        return f"models.{name} is there too; keep one."
    if not pool.endpoints:
        return 'endpoints must name a model at least: endpoints = ["openai:MODEL@http://…/v1"].'
    meant = [models.get(endpoint, endpoint) for endpoint in pool.endpoints]
    for place, endpoint in enumerate(pool.endpoints):
        if meant[place] in pools:
            return f"{endpoint!r} is a pool, and a pool holds models; name its models."
        if meant[place] in meant[:place]:
            return f"{endpoint!r} is there twice; give it a weight of 2 instead."
    if pool.weights and len(pool.weights) != len(pool.endpoints):
        return f"there are {len(pool.endpoints)} endpoints and {len(pool.weights)} weights."
    if any(weight <= 0 for weight in pool.weights):
        return "a weight must be more than 0; leave out what should not be asked."
    if pool.weights and pool.strategy is PoolStrategy.ORDER:
        return 'weights have no meaning with strategy = "order"; leave one of them out.'
    return None


def endpoint_problem(address: str, server: EndpointSettings) -> str | None:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
        return "is no address of a server; write it like http://127.0.0.1:8080."
    for field in server.__struct_fields__:
        value = getattr(server, field)
        if value is not None and value <= 0:
            return f"{field} must be more than 0, not {value:g}."
    return None
