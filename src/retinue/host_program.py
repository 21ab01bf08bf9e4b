"""The program of a host process: runs agents for the process that started it."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from retinue.agent_setup import (
    find_sandbox_here,
    protected_files,
    retinue_tools,
    select_roles,
    skill_tools,
    user_rules,
)
from retinue.config.environment import Environment
from retinue.config.project_permissions import project_permissions
from retinue.config.roles import is_project_role, load_roles
from retinue.config.settings_file import load_settings
from retinue.model_registry import ModelRegistry
from retinue.ports.sandbox import ProcessSandbox
from retinue.process_hosts import HostOptions, frame, read_frame
from retinue.project import user_file_tree
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.core.gc_tuning import relaxed_gc
from retinue.runtime.integration.tool_context import ToolContexts
from retinue.runtime.placement.host_agents import AgentHost, HostServices
from retinue.runtime.placement.messages import HostInfo, decode_command, encode
from retinue.tools.registry import Registry
from retinue.version import VERSION
from retinue.workspace.shared_disk import machine_id, shares_disk


def main(fd: int, options: dict[str, Any]) -> None:
    given = msgspec.convert(options, type=HostOptions)
    asyncio.run(_serve(socket.socket(fileno=fd), given))


async def _serve(connection: socket.socket, options: HostOptions) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    async with AsyncExitStack() as stack:
        stack.enter_context(relaxed_gc())
        services = await _services(stack, options)
        sandbox = services.tool_contexts.sandbox
        info = HostInfo(
            retinue_version=VERSION,
            python=platform.python_version(),
            pid=os.getpid(),
            machine=machine_id(),
            shares_disk=shares_disk(options.machine, options.disk_tokens),
            sandbox="" if sandbox is None else sandbox.tier,
            tools=tuple(services.tools.effects),
        )
        writer.write(frame(encode(info)))
        host = AgentHost(services)
        await host.run(_receive(host, reader), _send(host, writer))


async def _receive(host: AgentHost, reader: asyncio.StreamReader) -> None:
    with suppress(asyncio.IncompleteReadError, OSError):
        while True:
            host.handle(decode_command(await read_frame(reader)))
    # The run is gone. Another process may take it over at once, so nothing may run on here.
    os._exit(0)


async def _send(host: AgentHost, writer: asyncio.StreamWriter) -> None:
    after = 0
    with suppress(OSError):
        while True:
            items = await host.poll(after)
            after = items[-1].number
            writer.write(frame(encode(items)))
            await writer.drain()


async def _services(stack: AsyncExitStack, options: HostOptions) -> HostServices:
    """What `retinue.open` makes of the same settings, as far as agents on a host need it."""
    root, environment, clock = Path(options.root), Environment.current(), SystemClock()
    layers = load_settings(environment, root)
    settings = layers.merged
    permissions = project_permissions(
        layers, root, environment, trust=options.trust, model_is_chosen=options.is_trusted_model
    )
    skills = permissions.skills_and_commands.skills
    find_sandbox = partial(
        find_sandbox_here,
        environment,
        unconfined=options.unsafe_no_sandbox,
        readable=[skill.folder for skill in skills.values() if not skill.of_project],
    )
    sandbox = await find_sandbox() if options.shell else None

    async def check_sandbox() -> ProcessSandbox | None:
        return sandbox or await find_sandbox()

    configured = load_roles(
        layers,
        root,
        environment,
        tools=[*options.role_tools, *(tool.spec.name for tool in skill_tools(permissions))],
        servers=options.servers,
        trust=options.trust,
    ).roles
    roles = select_roles(configured, options.roles)
    models = await stack.enter_async_context(ModelRegistry(environment, layers, root, {}, clock))
    (models.use_trusted if options.is_trusted_model else models.use)(options.model)
    models.allow_endpoints(role.model for role in roles.values() if not is_project_role(role))
    tools = Registry(
        await retinue_tools(
            settings,
            permissions,
            roles,
            environment,
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
    return HostServices(
        models=models,
        set_slots=models.set_slots,
        tools=tools,
        tool_contexts=ToolContexts(
            effects=tools.effects,
            sandbox=sandbox,
            check_sandbox=check_sandbox,
            test=permissions.test,
            recorder_for=lambda _: None,
        ),
        project=files,
        open_tree=files.opened,
        clock=clock,
        silence_s=settings.silence_s,
    )
