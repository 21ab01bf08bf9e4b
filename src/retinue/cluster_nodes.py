"""The nodes of a cluster: what a host on each of them says, without a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import msgspec

from retinue.cluster import cluster_name
from retinue.config.environment import Environment
from retinue.config.settings import ClusterSettings, SettingsLayers
from retinue.domain.cluster_address import local_hosts
from retinue.ports.clock import Clock
from retinue.process_hosts import HostOptions, folders, process_host
from retinue.project import STATE_DIR, WORKTREES
from retinue.runtime.placement.host import Host, HostLost
from retinue.runtime.placement.lease import LEASE_S
from retinue.runtime.placement.messages import HostInfo
from retinue.workspace.shared_disk import disk_tokens, machine_id

THIS_MACHINE = "this machine"


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of a cluster. A node that takes no children has a `problem` and no `info`."""

    name: str
    address: str = ""
    resources: Mapping[str, float] = {}
    labels: Mapping[str, str] = {}
    info: HostInfo | None = None
    problem: str = ""

    def has_host(self, host: str) -> bool:
        """Whether the host that journals call `host` runs on this node."""
        _, _, node = host.partition("@")
        return self.name == (node or THIS_MACHINE)


async def list_nodes(
    cluster: str,
    layers: SettingsLayers,
    root: Path,
    environment: Environment,
    clock: Clock,
    on_wait: Callable[[str], None],
) -> list[ClusterNode]:
    """Ask a host on each node, and end it. Raises UsageError and RunError."""
    seen = [folder for folder in (root / STATE_DIR,) if folder.is_dir()]
    with disk_tokens((*seen, environment.cache_dir / WORKTREES)) as tokens:
        options = HostOptions(
            root=str(root),
            machine=machine_id(),
            disk_tokens=tokens,
            model="",
            is_trusted_model=False,
            settings=layers.for_hosts(),
            roles={},
            skills={},
            test="",
            web_hosts=(),
            shell=layers.merged.shell,
            asks=False,
            unsafe_no_sandbox=False,
            unsafe_writable_install=False,
            folders=folders(environment),
        )
        if local_hosts(cluster):
            on_wait("starting a host")
            start = partial(process_host, "local-1", options, environment)
            return [await _asked(start, ClusterNode(name=THIS_MACHINE))]
        settings = layers.merged.cluster
        return await _list_ray_nodes(cluster, settings, options, environment, clock, on_wait)


async def _list_ray_nodes(
    cluster: str,
    settings: ClusterSettings,
    options: HostOptions,
    environment: Environment,
    clock: Clock,
    on_wait: Callable[[str], None],
) -> list[ClusterNode]:
    from retinue.ray_cluster.hosts import RayCluster, require_ray, start_order

    require_ray()
    on_wait(f"joining {cluster_name(cluster)}")
    leased = msgspec.structs.replace(options, lease_s=LEASE_S)
    async with RayCluster(cluster, environment, clock).opened() as ray:
        on_wait(f"asking the nodes of {cluster_name(cluster)}")
        asked = []
        for number, node in enumerate(ray.nodes, 1):
            found = ClusterNode(
                name=node.name, address=node.address, resources=node.resources, labels=node.labels
            )
            if node.takes_work(settings.labels):
                # This host reserves nothing: runs may have taken everything.
                order = start_order(settings, resources={}, node=node.id)
                start = partial(ray.host, number, leased, order)
            else:
                why = "lacks labels of your settings" if node.resources.get("CPU") else "has no CPU"
                found = msgspec.structs.replace(found, problem=f"{why}, so it takes no children")
                start = None
            asked.append(_asked(start, found))
        return sorted(await asyncio.gather(*asked), key=lambda node: node.name)


async def _asked(
    start: Callable[[], AbstractAsyncContextManager[Host]] | None, node: ClusterNode
) -> ClusterNode:
    """The node with what a host on it says. The host has ended then."""
    if start is None:
        return node
    try:
        async with start() as host:
            node = msgspec.structs.replace(node, info=host.info)
            await host.end()
    except HostLost as error:
        _, _, why = str(error).partition(f"@{node.name} ")
        node = msgspec.structs.replace(node, problem=why or str(error))
    return node
