"""The program of a host process: runs agents for the process that started it."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import socket
import sys
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import msgspec

from retinue.agent_setup import (
    find_sandbox_here,
    protected_files,
    retinue_tools,
    user_rules,
)
from retinue.config.environment import Environment
from retinue.config.roles import is_project_role
from retinue.model_registry import ModelRegistry
from retinue.ports.sandbox import ProcessSandbox
from retinue.process_hosts import FOLDERS, TRANSFERS, HostOptions
from retinue.project import WORKTREES, user_file_tree
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.core.gc_tuning import relaxed_gc
from retinue.runtime.integration.tool_context import ToolContexts
from retinue.runtime.placement.connection import Connection, transfer_folder
from retinue.runtime.placement.host_agents import AgentHost
from retinue.runtime.placement.hosted_agent import HostServices
from retinue.runtime.placement.hosted_files import HostFiles
from retinue.runtime.placement.lease import Lease
from retinue.runtime.placement.messages import HostInfo, decode_command, encode
from retinue.tools.registry import Registry
from retinue.version import VERSION
from retinue.workspace.project_mirror import ProjectMirror, why_no_mirrors
from retinue.workspace.shared_disk import machine_id, shares_disk

MIRRORS = "projects"
"""Folder of the cache with the commits of projects of other machines."""


def main(fd: int) -> None:
    asyncio.run(_serve(socket.socket(fileno=fd)))


async def _serve(opened: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=opened)
    async with AsyncExitStack() as stack:
        stack.enter_context(relaxed_gc())
        environment = Environment.current()
        folder = stack.enter_context(transfer_folder(str(environment.cache_dir / TRANSFERS)))
        connection = Connection(reader, writer, folder)
        options = msgspec.json.decode(await connection.receive(), type=HostOptions)
        shared = shares_disk(options.machine, options.disk_tokens)
        if shared:
            others = {k: v for k, v in environment.variables.items() if k not in FOLDERS}
            environment = Environment(variables={**others, **options.folders})
        services = await _services(stack, options, environment, connection)
        sandbox = services.tool_contexts.sandbox
        info = HostInfo(
            retinue_version=VERSION,
            python=platform.python_version(),
            pid=os.getpid(),
            machine=machine_id(),
            shares_disk=shared,
            why_no_files=why_no_mirrors(),
            sandbox="" if sandbox is None else sandbox.tier,
            tools=tuple(services.tools.effects),
            cpus=os.cpu_count() or 1,
            load=os.getloadavg()[0],
        )
        # The lease begins before the run has heard of this host. Nothing here handles SIGALRM, so
        # the alarm ends a host that is blocked, and a frozen one as soon as it wakes up.
        set_alarm = partial(signal.setitimer, signal.ITIMER_REAL)
        lease = Lease(options.lease_s, end=_end_at_once, set_alarm=set_alarm)
        connection.send(encode(info))
        host = AgentHost(services, lease)
        await host.run(_receive(host, connection), _send(host, connection))


async def _receive(host: AgentHost, connection: Connection) -> None:
    with suppress(asyncio.IncompleteReadError, OSError):
        while True:
            host.handle(decode_command(await connection.receive()))
    # The run is gone. Another process may take it over at once, so nothing may run on here.
    _end_at_once("")


def _end_at_once(why: str) -> None:
    if why:
        print(why, file=sys.stderr, flush=True)
    os._exit(0)  # The guard ends commands.


async def _send(host: AgentHost, connection: Connection) -> None:
    after = 0
    with suppress(OSError):
        while True:
            items = await host.reports.poll(after)
            after = items[-1].number
            connection.send(encode(items))
            await connection.drain()


async def _services(
    stack: AsyncExitStack,
    options: HostOptions,
    environment: Environment,
    connection: Connection,
) -> HostServices:
    """Build the services that agents on a host need, from the settings that `retinue.open` read."""
    root, clock = Path(options.root), SystemClock()
    layers, roles = options.settings, options.roles
    settings = layers.merged
    find_sandbox = partial(
        find_sandbox_here,
        environment,
        unconfined=options.unsafe_no_sandbox,
        readable=[skill.folder for skill in options.skills.values() if not skill.of_project],
    )
    sandbox = await find_sandbox() if options.shell else None

    async def check_sandbox() -> ProcessSandbox | None:
        return sandbox or await find_sandbox()

    models = await stack.enter_async_context(ModelRegistry(environment, layers, root, {}, clock))
    if options.model:
        (models.use_trusted if options.is_trusted_model else models.use)(options.model)
    models.allow_endpoints(role.model for role in roles.values() if not is_project_role(role))
    tools = Registry(
        await retinue_tools(
            settings,
            roles,
            environment,
            skills=options.skills,
            test=options.test,
            web_hosts=options.web_hosts,
            shell=sandbox is not None,
            check_sandbox=check_sandbox,
            ask=options.asks,
        )
    )
    rules = user_rules(settings)
    protected = protected_files(
        root, environment, rules, writable_install=options.unsafe_writable_install
    )
    files = user_file_tree(root, environment, protected)
    open_mirror = partial(
        ProjectMirror,
        projects=str(environment.cache_dir / MIRRORS),
        worktrees=str(environment.cache_dir / WORKTREES),
        project=str(root),
        protected=protected,
    )
    return HostServices(
        models=models,
        take_slots_from=models.take_slots_from,
        tools=tools,
        tool_contexts=ToolContexts(
            effects=tools.effects,
            sandbox=sandbox,
            check_sandbox=check_sandbox,
            test=options.test,
            recorder_for=lambda _: None,
        ),
        project=files,
        open_tree=files.opened,
        files=HostFiles(open_mirror, connection),
        clock=clock,
        silence_s=settings.silence_s,
    )
