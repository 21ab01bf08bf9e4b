"""The hosts that `cluster` asks for: processes of this machine, or nodes of a Ray cluster."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from retinue.config.environment import Environment
from retinue.errors import RunError, UsageError
from retinue.ports.clock import Clock
from retinue.process_hosts import HostOptions, process_host
from retinue.runtime.placement.hosts import StartHost
from retinue.runtime.placement.lease import LEASE_S

MAX_HOSTS = 256
_RAY_ADDRESS = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}")


def check_cluster(cluster: str) -> int:
    """How many processes `cluster` asks for; 0 for a Ray cluster. Raises UsageError."""
    kind, _, number = cluster.partition(":")
    if kind == "local" and number.isdecimal() and 1 <= int(number) <= MAX_HOSTS:
        return int(number)
    if cluster.startswith("ray://"):
        raise UsageError(
            f"{cluster!r} is an address of Ray Client, which retinue does not use: name the head as"
            " HOST:PORT, on a machine that has joined the cluster."
        )
    if kind == "local" or (cluster != "auto" and not _RAY_ADDRESS.fullmatch(cluster)):
        raise UsageError(
            f"Unknown cluster {cluster!r}; local:N runs children in N processes of this machine,"
            f" with N from 1 to {MAX_HOSTS}, auto on the Ray cluster that this machine has joined,"
            " and HOST:PORT on that with this head."
        )
    return 0


@asynccontextmanager
async def find_hosts(
    cluster: str,
    options: HostOptions,
    environment: Environment,
    clock: Clock,
    on_wait: Callable[[str], None] | None,
) -> AsyncIterator[Sequence[StartHost]]:
    """What starts the hosts, each once at a time. Raises UsageError and RunError."""
    wait = on_wait or (lambda _: None)
    if count := check_cluster(cluster):
        wait(f"starting {_hosts(count)}")
        yield [
            partial(process_host, f"local-{number}", options, environment)
            for number in range(1, count + 1)
        ]
        return
    from retinue.ray_cluster.hosts import RayCluster, require_ray, start_order

    require_ray()
    wait("joining the Ray cluster" if cluster == "auto" else f"joining the Ray cluster {cluster}")
    order = start_order(variables={}, resources={})
    leased = msgspec.structs.replace(options, lease_s=LEASE_S)
    async with RayCluster(cluster, environment, clock).opened() as ray:
        if not (count := len(ray.nodes)):
            raise RunError(f"No node of the Ray cluster {cluster} takes work: none has a CPU.")
        wait(f"starting {_hosts(count)} on the nodes of the Ray cluster")
        yield [partial(ray.host, number, leased, order) for number in range(1, count + 1)]


def _hosts(count: int) -> str:
    return f"{count} host{'' if count == 1 else 's'}"
