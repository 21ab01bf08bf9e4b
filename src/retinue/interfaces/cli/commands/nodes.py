"""`retinue nodes`: lists the machines of a cluster, and the children that run there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from retinue.cluster_nodes import ClusterNode, list_nodes
from retinue.config.environment import Environment
from retinue.config.settings_file import load_settings
from retinue.domain.cluster_address import NO_CLUSTER
from retinue.domain.run_state import fold
from retinue.errors import UsageError
from retinue.interfaces.cli.event_loop import async_command
from retinue.interfaces.cli.options import cluster_option, directory_option, json_objects_option
from retinue.interfaces.cli.terminal.output import print_json, print_line, print_table
from retinue.interfaces.cli.terminal.progress import waiting_line
from retinue.project import has_journal, open_journal, open_run_locks, project_root
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.history.audit import read_all

MAX_RUNS = 1_000


class PlacedChild(msgspec.Struct, frozen=True):
    """A child of a run of this directory that is on a host."""

    run: str
    agent: str
    path: str
    host: str


@click.command()
@directory_option
@cluster_option
@json_objects_option
@async_command
async def nodes(directory: str, cluster: str | None, as_json: bool) -> int:
    """List the nodes of a cluster, with what limits them and the children that run there.

    A host is started on each node and asked. CHILDREN counts those of this directory's runs. LOAD
    is the load of the last minute, and the number of CPUs. SANDBOX is full or reduced; without one,
    a node takes no commands. FILES says whether the node sees the files of this machine or gets
    copies. Exits with 1 if no node takes children.

    Example: retinue nodes --cluster auto

    Example: retinue nodes --cluster 10.0.0.1:6379 --json
    """
    environment, root = Environment.current(), project_root(directory)
    layers = load_settings(environment, root)
    cluster = cluster or layers.merged.cluster.address or NO_CLUSTER
    if cluster == NO_CLUSTER:
        raise UsageError(
            "No cluster is named: use --cluster auto, --cluster HOST:PORT of the head, or"
            " `address` in [cluster] of your settings."
        )
    async with waiting_line() as on_wait:
        found = await list_nodes(cluster, layers, root, environment, SystemClock(), on_wait)
    children = await _children(directory)
    if as_json:
        print_json(*(_fields(node, _of(node, children)) for node in found))
    else:
        _print(found, children)
    return int(all(node.info is None for node in found))


async def _children(directory: str) -> list[PlacedChild]:
    """The children on hosts, of all runs at work."""
    if not await has_journal(directory):
        return []
    is_active = open_run_locks(directory).is_held
    found = []
    async with open_journal(directory) as store:
        for row in await store.runs(limit=MAX_RUNS):
            if row.status is None and is_active(row.id):
                agents = fold(await read_all(store, row.id)).agents.values()
                found += [
                    PlacedChild(row.id, agent.id, agent.path, agent.host)
                    for agent in agents
                    if agent.host and agent.closed_at is None
                ]
    return found


def _of(node: ClusterNode, children: Sequence[PlacedChild]) -> list[PlacedChild]:
    return [child for child in children if node.has_host(child.host)]


def _fields(node: ClusterNode, children: Sequence[PlacedChild]) -> dict[str, Any]:
    info = {} if node.info is None else msgspec.structs.asdict(node.info)
    for name in ("pid", "machine"):
        info.pop(name, None)
    return {
        "name": node.name,
        "address": node.address,
        "resources": node.resources,
        "labels": node.labels,
        "takes_children": node.info is not None,
        "problem": node.problem,
        **info,
        "children": children,
    }


def _print(found: Sequence[ClusterNode], children: Sequence[PlacedChild]) -> None:
    print_table(
        ("NODE", "CHILDREN", "LOAD", "VERSION", "SANDBOX", "FILES", "NOTE"),
        [_row(node, len(_of(node, children))) for node in found],
    )
    placed = [(node, child) for node in found for child in _of(node, children)]
    for node, child in placed:
        print_line(f"{child.path} of run {child.run} is on {node.name} ({child.agent})")
    if others := len(children) - len(placed):
        print_line(f"{others:,} more run on hosts that are not listed.")


def _row(node: ClusterNode, children: int) -> tuple[str, ...]:
    info = node.info
    if info is None:
        return node.name, str(children), "-", "-", "-", "-", node.problem
    files = "this machine's" if info.shares_disk else "none" if info.why_no_files else "copies"
    notes = [
        "" if info.sandbox else "takes no commands: it has no sandbox",
        "" if info.shares_disk else info.why_no_files,
    ]
    return (
        node.name,
        str(children),
        f"{info.load:.1f} of {info.cpus}",
        info.retinue_version,
        info.sandbox or "none",
        files,
        "; ".join(filter(None, notes)),
    )
