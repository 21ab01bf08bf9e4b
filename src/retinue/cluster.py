"""The hosts that `cluster` asks for: processes of this machine, or nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from retinue.config.environment import Environment
from retinue.config.settings import ClusterSettings
from retinue.domain.cluster_address import local_hosts
from retinue.domain.plural import plural
from retinue.errors import RunError
from retinue.ports.clock import Clock
from retinue.ports.endpoint_slots import LendSlots
from retinue.process_hosts import HostOptions, process_host
from retinue.runtime.placement.host_choice import Room
from retinue.runtime.placement.hosts import Hosts, StartHost
from retinue.runtime.placement.lease import LEASE_S

OnWait = Callable[[str], None]


@asynccontextmanager
async def open_hosts(
    cluster: str,
    settings: ClusterSettings,
    options: HostOptions,
    environment: Environment,
    clock: Clock,
    lend: LendSlots,
    on_wait: OnWait | None,
) -> AsyncIterator[Hosts]:
    """Start the hosts, which run until the context ends. Raises UsageError and RunError."""
    # Processes of this machine share what it has.
    needs = {} if local_hosts(cluster) else settings.resources
    room = Room(children=settings.children_per_node, needs=needs)
    found = _found_hosts(
        cluster, settings, options, environment, clock, on_wait or (lambda _: None)
    )
    async with found as starts, Hosts(starts, clock, lend, room).opened() as hosts:
        yield hosts


@asynccontextmanager
async def _found_hosts(
    cluster: str,
    settings: ClusterSettings,
    options: HostOptions,
    environment: Environment,
    clock: Clock,
    on_wait: OnWait,
) -> AsyncIterator[Sequence[StartHost]]:
    """Functions that start hosts, each of them one host at a time."""
    if count := local_hosts(cluster):
        on_wait(f"starting {plural(count, 'host')}")
        yield [
            partial(process_host, f"local-{number}", options, environment)
            for number in range(1, count + 1)
        ]
        return
    from retinue.ray_cluster.hosts import RayCluster, require_ray, start_order

    require_ray()
    place = cluster_name(cluster)
    on_wait(f"joining {place}")
    order = start_order(settings, resources=_reserved(settings))
    leased = msgspec.structs.replace(options, lease_s=LEASE_S)
    async with RayCluster(cluster, environment, clock).opened() as ray:
        count = sum(node.takes_work(settings.labels) for node in ray.nodes)
        if not count:
            labels = ", ".join(f"{name}={value}" for name, value in settings.labels.items())
            needed = f"the labels {labels} and a CPU" if labels else "a CPU"
            raise RunError(f"No node of {place} takes work: none has {needed}.")
        on_wait(f"starting {plural(count, 'host')} on the nodes of {place}")
        yield [partial(ray.host, number, leased, order) for number in range(1, count + 1)]


def resource_notes(settings: ClusterSettings, roles: Iterable[str]) -> tuple[str, ...]:
    """Probable mistakes in the settings: roles that this project does not have."""
    unknown = sorted({*settings.resources}.difference(roles))
    return (f"[cluster.resources] has unknown roles: {', '.join(unknown)}",) if unknown else ()


def cluster_name(cluster: str) -> str:
    return "the Ray cluster" if cluster == "auto" else f"the Ray cluster {cluster}"


def _reserved(settings: ClusterSettings) -> dict[str, float | None]:
    """What a host reserves of its node: all that its children could take at the same time."""
    names = {name for amounts in settings.resources.values() for name in amounts}
    most: dict[str, float | None] = dict.fromkeys(sorted(names))
    if (children := settings.children_per_node) is not None:
        for name in most:
            taken = (amounts.get(name, 0) for amounts in settings.resources.values())
            most[name] = max(taken) * children
    return most
