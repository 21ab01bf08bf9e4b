"""The composition root: the only place that builds the object graph."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from retinue.config.environment import Environment
from retinue.config.project_permissions import MCP_SERVER, project_permissions
from retinue.config.roles import LEAD_ROLE, is_project_role, load_roles
from retinue.config.settings import (
    MAX_CONCURRENT,
    MAX_DEPTH,
    PAUSE_AT_CALLS,
    SILENCE_S,
    WARN_AT_CALLS,
    Settings,
)
from retinue.config.settings_file import load_settings
from retinue.config.trust import TrustRequest
from retinue.config.user_key import UserKey
from retinue.discovery import discover
from retinue.domain.approval import Rules, rule
from retinue.domain.budget import Limits, as_limits
from retinue.domain.contract import OnConflict
from retinue.domain.discovered_models import DiscoveredModels
from retinue.domain.events import Event
from retinue.domain.grant import Mode
from retinue.domain.mcp_server import McpServerSpec
from retinue.domain.role import Role
from retinue.errors import ConfigError, UsageError
from retinue.model_registry import ModelRegistry, redaction_of
from retinue.ports.clock import Clock
from retinue.ports.listeners import Listeners
from retinue.ports.model import Model
from retinue.ports.person import Approve, Ask, ChooseModel, Person, refuse_unattended
from retinue.ports.sandbox import Sandbox
from retinue.ports.tool import Tool
from retinue.project import (
    STATE_DIR,
    open_memory_store,
    open_run_locks,
    open_store,
    project,
    state_directory,
    user_file_tree,
)
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.core.gc_tuning import relaxed_gc
from retinue.runtime.history.result_cache import Cache
from retinue.runtime.policy import Breaker, Policy
from retinue.runtime.runtime import Runtime
from retinue.runtime.services import Services, Storage
from retinue.store.reports import FileReports
from retinue.tools.ask_user import ask_user
from retinue.tools.builtin import CACHEABLE_TOOLS, builtin_tools
from retinue.tools.delegation import delegation_tools
from retinue.tools.registry import Registry

if TYPE_CHECKING:
    from retinue.models.replay.recorder import Recorder
    from retinue.tools.mcp.servers import ServerTools


@asynccontextmanager
async def open_runtime(
    directory: str | Path = ".",
    *,
    model: str | Model | None = None,
    models: Mapping[str, Model] | None = None,
    mode: Mode | str | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
    tools: Iterable[Tool] = (),
    max_concurrent: int | None = None,
    cache: bool | None = None,
    checks: Iterable[str] = (),
    on_conflict: OnConflict | str | None = None,
    shell: bool = True,
    unsafe_no_sandbox: bool = False,
    trust: bool | None = None,
    approve: Approve = refuse_unattended,
    ask: Ask | None = None,
    choose: ChooseModel | None = None,
    record: str | Path | None = None,
    on_event: Callable[[Event], None] | None = None,
    on_text: Callable[[str], None] | None = None,
    on_partial: Callable[[str, str, str], None] | None = None,
    on_wait: Callable[[str], None] | None = None,
    clock: Clock | None = None,
    environment: Environment | None = None,
) -> AsyncIterator[Runtime]:
    """Open a project for agents to work in.

    `model` is a name such as "openai:qwen3@http://127.0.0.1:8080/v1", or a Model; `models` are more
    of them, by name. Where nothing names a model, the servers of this machine are looked at: the
    only one that is served is used, and of several `choose` has to choose. `mode` is how much may
    happen without a person's word: plan, normal, auto or dangerous. `limits` replaces single limits
    of the run as a whole, which the settings hold; a `Budget` replaces them all. `max_concurrent`
    is how many children of one parent run at a time. `cache=False` never uses an earlier result; a
    Model given as an object has no name that would mean the same next time, so for it that is the
    default. `checks` are commands that must succeed on what a child has made before it is
    integrated, and `on_conflict` ("fail" or "resolve") is what becomes of a child whose work
    contradicts a sibling's. `record` is a file, as seen from the directory, to write the traffic of
    all models to; the model "replay:FILE" serves it back, in the place of all of them. Neither uses
    earlier results. There are shell commands where a sandbox holds, or with `unsafe_no_sandbox`;
    `shell=False` leaves them out. `trust` says whether the project's own MCP servers and model may
    be used; left out, what the user has decided by `retinue trust` holds. `on_wait` is told what
    the opening waits for, where that may take a while.

    `on_event` is given every event as it happens, `on_text` the words of a root's model as they
    arrive, and `on_partial` those of a child's, after the ids of its run and of the child.
    """
    root, clock = project(directory), clock or SystemClock()
    environment = environment or Environment.current()
    layers = load_settings(environment.user_settings_file, root)
    settings = layers.merged
    permitted = project_permissions(
        layers, root, environment, trust=trust, model_is_chosen=model is not None
    )
    permitted.check_model()
    sandbox = None
    if settings.shell and shell:
        sandbox = await _sandbox(environment, unconfined=unsafe_no_sandbox)

    async def confine() -> Sandbox | None:
        return sandbox or await _sandbox(environment, unconfined=unsafe_no_sandbox)

    named = model is None or isinstance(model, str)
    reuse = settings.cache and (named if cache is None else cache) and record is None
    more_tools = tuple(tools)
    roles = load_roles(
        layers,
        root,
        environment.home,
        config_home=environment.config_home,
        tools=[tool.spec.name for tool in more_tools],
        servers=[server.name for server in permitted.servers],
    ).roles
    recorder = None if record is None else _recorder(root / record, root, environment, clock)
    async with ModelRegistry(
        environment, layers, root, models or {}, clock, recorder
    ) as model_registry:
        name = model_registry.choose_default(model, settings)
        notes: tuple[str, ...] = ()
        if name is None:
            name, notes = await _found(model_registry, await discover(environment, layers), choose)
        await model_registry.start_embedded(name, on_wait)
        policy = Policy(
            directory=str(root),
            model=name,
            mode=_mode(mode, environment, settings),
            budget=as_limits(limits).applied_to(settings.budget.applied_to(LEAD_ROLE.budget)),
            max_depth=settings.max_depth or MAX_DEPTH,
            max_concurrent=max_concurrent or settings.max_concurrent or MAX_CONCURRENT,
            silence_s=settings.silence_s or SILENCE_S,
            breaker=Breaker(
                warn_at=settings.warn_at_calls or WARN_AT_CALLS,
                pause_at=settings.pause_at_calls or PAUSE_AT_CALLS,
            ),
            rules=Rules(
                allow=tuple(map(rule, settings.allow)),
                deny=tuple(map(rule, settings.deny)),
            ),
            lead=LEAD_ROLE,
            delegation=settings.delegation,
            checks=(*settings.checks, *checks),
            on_conflict=OnConflict(on_conflict or settings.on_conflict or OnConflict.FAIL),
            report_path_pattern=settings.report_path,
            notes=notes,
        )
        # Roles of the project may name an endpoint; only the user's may make one known.
        model_registry.allow_endpoints(
            role.model for role in roles.values() if not is_project_role(role)
        )
        if policy.budget.max_cost_usd is not None:
            for name in model_registry.members(policy.model):
                if model_registry.price(name) is None:
                    raise ConfigError(
                        f"max_cost_usd is set, and nobody knows what {name} costs; write its price"
                        f' into your settings: [prices."{name}"] with input and output.'
                    )
        # In plan mode nothing else of a server could be used.
        usable = [s for s in permitted.servers if policy.mode is not Mode.PLAN or s.may_read]
        async with (
            _offered(usable, root, environment, clock, on_wait=on_wait) as offered,
            open_store(root) as store,
            open_memory_store(root, clock) as memory_store,
        ):
            missing = (*permitted.notes, *(line for one in offered if (line := one.note)))
            if sandbox is not None and sandbox.tier == "reduced":
                missing = (
                    "sandbox: reduced; `retinue doctor` tells what it does not hold",
                    *missing,
                )
            policy = msgspec.structs.replace(policy, notes=(*policy.notes, *missing))
            more_tools += tuple(tool for one in offered for tool in one.tools)
            found = _tools(roles, more_tools, settings, shell=sandbox is not None, ask=ask)
            registry = Registry(found)
            file_tree = user_file_tree(root, environment)
            policy = msgspec.structs.replace(
                policy, notes=(*policy.notes, *await file_tree.recovery_notes())
            )
            with relaxed_gc(), closing(FileReports(root)) as reports:
                services = Services(
                    policy=policy,
                    clock=clock,
                    models=model_registry,
                    tools=registry,
                    roles=roles,
                    storage=Storage(
                        store=store,
                        run_locks=open_run_locks(root),
                        memory_store=memory_store,
                        reports=reports,
                    ),
                    cache=Cache(
                        store,
                        registry,
                        CACHEABLE_TOOLS if reuse and not model_registry.replaying else None,
                    ),
                    file_tree=file_tree,
                    history=file_tree,
                    sandbox=sandbox,
                    confine=confine,
                    person=Person(approve=approve, ask=ask, choose_model=choose),
                    listeners=Listeners(
                        on_event=on_event,
                        on_text=on_text,
                        on_child_text=on_partial,
                        on_wait=on_wait,
                    ),
                    sign_run=UserKey(environment.state_dir / "key").sign,
                )
                async with Runtime(services) as runtime:
                    yield runtime


async def _found(
    model_registry: ModelRegistry, discovery: DiscoveredModels, choose: ChooseModel | None
) -> tuple[str, tuple[str, ...]]:
    """The model to use when nobody named one, and what the user should know about that."""
    option = discovery.only_option
    if option is not None:
        return model_registry.use(option.name), (f"no model was named: using {option}",)
    if choose is None or not discovery.options:
        raise ConfigError(discovery.explanation)
    name = await choose(discovery)
    # One of the list was found, not named: it is asked, and sent no key.
    listed = any(option.name == name for option in discovery.options)
    return model_registry.use(name) if listed else model_registry.use_trusted(name), ()


def _tools(
    roles: Mapping[str, Role],
    more: Iterable[Tool],
    settings: Settings,
    *,
    shell: bool,
    ask: Ask | None,
) -> list[Tool]:
    """The tools there are. One that cannot work here is not offered: it would cost tokens."""
    found = [*builtin_tools(shell=shell), *more]
    if settings.delegation:
        found += delegation_tools(roles)
    if ask is not None:
        found.append(ask_user)
    return found


@asynccontextmanager
async def _offered(
    servers: Sequence[McpServerSpec],
    root: Path,
    environment: Environment,
    clock: Clock,
    *,
    refresh: bool = False,
    on_wait: Callable[[str], None] | None = None,
) -> AsyncIterator[Sequence[ServerTools]]:
    """What MCP servers offer, for as long as this is open; `refresh` asks all of them."""
    if not servers:
        yield ()
        return
    from retinue.tools.mcp.servers import McpServers

    logs, cache = state_directory(root) / "mcp", environment.cache_dir / "mcp"
    async with McpServers(servers, cache=cache, logs=logs, clock=clock) as opened:
        if on_wait is not None and (names := opened.servers_to_start(refresh=refresh)):
            on_wait(f"starting MCP servers to see what they offer: {', '.join(names)}")
        yield await opened.list_tools(refresh=refresh)


class Inspection(msgspec.Struct, frozen=True):
    """The tools of a project: those that come with retinue, and what each MCP server offers.

    `untrusted` are the servers that the project brings and the user has not said yes to;
    `problems` tell why another cannot be had.
    """

    tools: tuple[Tool, ...]
    offered: tuple[ServerTools, ...]
    untrusted: tuple[TrustRequest, ...]
    problems: tuple[str, ...]


async def inspect_tools(
    directory: str | Path = ".",
    *,
    on_wait: Callable[[str], None] | None = None,
    environment: Environment | None = None,
) -> Inspection:
    """Start the MCP servers of a project that may be started, and tell what they offer."""
    root, environment = project(directory), environment or Environment.current()
    found = project_permissions(
        load_settings(environment.user_settings_file, root), root, environment
    )
    async with _offered(
        found.servers, root, environment, SystemClock(), refresh=True, on_wait=on_wait
    ) as offered:
        untrusted = tuple(request for request in found.denied if request.kind == MCP_SERVER)
        return Inspection(builtin_tools(), tuple(offered), untrusted, found.problems)


def _recorder(path: Path, root: Path, environment: Environment, clock: Clock) -> Recorder:
    from retinue.models.replay.recorder import Recorder

    path = Path(os.path.abspath(path))
    if path.is_relative_to(root) and not path.is_relative_to(state_directory(root)):
        raise UsageError(
            f"Cannot record to {str(path)!r}: agents would see it grow, and a replay would see it"
            f" otherwise. Name one outside of the project, or {STATE_DIR}/{path.name}."
        )
    return Recorder(path, redaction=redaction_of(root, environment), clock=clock)


async def _sandbox(environment: Environment, *, unconfined: bool) -> Sandbox | None:
    """What commands are confined by: the best that holds; nothing only if the user says so."""
    if unconfined:
        from retinue.sandbox.unconfined import Unconfined

        return Unconfined(environment.for_commands())
    from retinue.sandbox.selection import select_sandbox

    return (
        await select_sandbox(environment.for_commands(), cache=str(environment.cache_dir))
    ).sandbox


def _mode(chosen: Mode | str | None, environment: Environment, settings: Settings) -> Mode:
    name = chosen or environment.get("RETINUE_MODE") or settings.mode or Mode.NORMAL
    try:
        return Mode(name)
    except ValueError:
        raise UsageError(f"Unknown mode {name!r}; there are: {', '.join(Mode)}.") from None
