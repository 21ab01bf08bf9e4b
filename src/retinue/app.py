"""The composition root: `retinue.open` builds the object graph, and nothing else does."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec

from retinue.agent_setup import (
    find_sandbox_here,
    protected_files,
    retinue_tools,
    rule_notes,
    select_roles,
    skill_tools,
    user_rules,
    web_tools,
)
from retinue.config.environment import Environment
from retinue.config.mcp_servers import add_servers
from retinue.config.project_permissions import (
    MCP_SERVER,
    changed_since_trust,
    is_hook_changed,
    project_permissions,
)
from retinue.config.roles import LEAD_ROLE, is_project_role, load_roles
from retinue.config.settings import MergedSettings
from retinue.config.settings_file import load_settings
from retinue.config.telemetry import read_telemetry_settings
from retinue.config.trust import TrustRequest
from retinue.discovery import discover
from retinue.domain.budget import BUDGET_SCALES, LimitOptions, Limits, as_limits
from retinue.domain.cluster_address import NO_CLUSTER, local_hosts
from retinue.domain.contract import OnConflict
from retinue.domain.discovered_models import DiscoveredModels
from retinue.domain.grant import Mode
from retinue.domain.hook import HookSpec
from retinue.domain.mcp_server import McpServerSpec
from retinue.domain.protected_paths import ProtectedPaths
from retinue.domain.sampling import Sampling
from retinue.domain.web_hosts import canonical_hosts
from retinue.errors import ConfigError, UsageError
from retinue.executables import path_outside
from retinue.extras import is_installed, missing_message
from retinue.hooks.runner import HookRunner
from retinue.model_registry import ModelRegistry, redaction_of
from retinue.ports.clock import Clock
from retinue.ports.model import Model, check_model
from retinue.ports.person import ChooseModel, Listeners, Person
from retinue.ports.sandbox import ProcessSandbox
from retinue.ports.telemetry import NoTelemetry, Telemetry
from retinue.ports.tool import Tool
from retinue.project import (
    STATE_DIR,
    WORKTREES,
    make_state_dir,
    open_memory_store,
    open_run_locks,
    open_store,
    project_root,
    refuse_links,
    user_file_tree,
)
from retinue.runtime.agent.runner import LocalRunner, Runner
from retinue.runtime.core.clock import SystemClock
from retinue.runtime.core.gc_tuning import relaxed_gc
from retinue.runtime.history.result_cache import ResultCache
from retinue.runtime.policy import Breaker, Policy
from retinue.runtime.runtime import Runtime
from retinue.runtime.services import Services, Storage
from retinue.store.reports import FileReports
from retinue.tools.builtin import CACHEABLE_TOOLS, builtin_tools
from retinue.tools.function import FunctionTool
from retinue.tools.registry import Registry

if TYPE_CHECKING:
    from retinue.models.replay.recorder import Recorder
    from retinue.tools.mcp.servers import ServerTools


REDUCED_SANDBOX = "sandbox: reduced; `retinue doctor` lists what it does not prevent"


class OpenOptions(TypedDict, total=False):
    """The options of `retinue.open`, for calls that open a runtime themselves.

    ```python
    options: retinue.OpenOptions = {"model": ScriptedModel([say("Hi.")]), "mode": "plan"}
    assert retinue.run_sync("Greet me.", **options).response == "Hi."
    ```
    """

    model: str | Model | None
    models: Mapping[str, Model] | None
    mode: Mode | str | None
    limits: Limits | LimitOptions | None
    budget: Literal["tight", "normal", "generous"] | None
    sampling: Sampling | None
    max_concurrent: int | None
    tools: Iterable[FunctionTool[..., Any]]
    mcp_servers: Mapping[str, Mapping[str, Any]] | None
    roles: Iterable[str] | None
    checks: Iterable[str]
    on_conflict: OnConflict | str | None
    cache: bool | None
    record: str | Path | None
    web_hosts: Iterable[str] | None
    shell: bool
    unsafe_no_sandbox: bool
    unsafe_writable_install: bool
    trust: bool | None
    person: Person | None
    listeners: Listeners | None
    clock: Clock | None
    environment: Environment | None
    cluster: str | None


@asynccontextmanager
async def open_runtime(
    directory: str | Path = ".",
    *,
    model: str | Model | None = None,
    models: Mapping[str, Model] | None = None,
    mode: Mode | str | None = None,
    limits: Limits | LimitOptions | None = None,
    budget: Literal["tight", "normal", "generous"] | None = None,
    sampling: Sampling | None = None,
    max_concurrent: int | None = None,
    tools: Iterable[FunctionTool[..., Any]] = (),
    mcp_servers: Mapping[str, Mapping[str, Any]] | None = None,
    roles: Iterable[str] | None = None,
    checks: Iterable[str] = (),
    on_conflict: OnConflict | str | None = None,
    cache: bool | None = None,
    record: str | Path | None = None,
    web_hosts: Iterable[str] | None = None,
    shell: bool = True,
    unsafe_no_sandbox: bool = False,
    unsafe_writable_install: bool = False,
    trust: bool | None = None,
    person: Person | None = None,
    listeners: Listeners | None = None,
    clock: Clock | None = None,
    environment: Environment | None = None,
    cluster: str | None = None,
) -> AsyncIterator[Runtime]:
    """Open a project for agents to work in. Arguments that are left out come from the settings.

    - `model`: a name such as "openai:qwen3@http://127.0.0.1:8080/v1", or a Model. If nothing names
      a model, retinue asks the servers of this machine: if they serve one model, it is used; if
      several, `person` chooses one. `models`: further models by name, for roles and tasks.
    - `mode`: how much agents may do without asking: plan, normal, auto or dangerous.
    - `limits`: of each run as a whole, such as `Limits(max_tokens=500_000)`, or a dict.
    - `budget`: "tight" halves the limits of settings and roles, "generous" multiplies them by 4.
      `limits` and the limits of a task stay as they are.
    - `sampling`: settings of the default model, such as `Sampling(temperature=0.2)`; those of a
      role or a task count for more.
    - `max_concurrent`: children of one parent that run at a time.
    - `tools`: more tools, made with `@retinue.tool`.
    - `mcp_servers`: more MCP servers by name, as entries of `.mcp.json`. They count as the user's
      own: they run outside of the sandbox, unless the user's settings say otherwise.
    - `roles`: the only roles that children may have; by default all that are configured.
    - `checks`: commands that must succeed on a child's work before it is merged.
    - `on_conflict`: a child whose work conflicts with a sibling's fails ("fail"), or another child
      resolves the conflict ("resolve").
    - `cache`: whether the result of an identical earlier child is used. The default is False for a
      Model that is an object: it has no name that means the same next time.
    - `record`: file to record all model traffic to, relative to the directory. The model
      "replay:FILE" plays it back. Neither uses the cache.
    - `web_hosts`: hosts that agents may fetch from, instead of those in the settings.
    - `shell`: False takes shell commands away from agents. With True they also need a sandbox,
      unless `unsafe_no_sandbox` is set.
    - `unsafe_writable_install`: True lets agents write retinue's own files, if it is installed
      inside the directory. Your own modules there are never protected.
    - `trust`: whether the project's own MCP servers and model may be used, its changes that widen
      a built-in role, and the directory itself if it is a home or has keys. By default the user's
      `retinue trust` decides.
    - `person`: how to access the user. `listeners`: callbacks that follow what happens.
    - `cluster`: "local:4" runs children in 4 processes of this machine, "auto" and "HOST:PORT" on
      the nodes of a Ray cluster. Those that need something of your program run in it: tools and
      models that are objects, output types, MCP servers. "off" ignores an address in the settings,
      which counts only for a model that other processes can ask.
    - `clock` and `environment`: time, and the user's variables and folders; for tests.

    ```python
    async with retinue.open(".", model=ScriptedModel([say("It shortens links.")])) as rt:
        run = await rt.run("What does this project do?")
        assert run.response == "It shortens links."
    ```
    """
    for given in (
        *([] if model is None or isinstance(model, str) else [model]),
        *(models or {}).values(),
    ):
        check_model(given)
    root, person, listeners = project_root(directory), person or Person(), listeners or Listeners()
    if max_concurrent is not None and max_concurrent < 1:
        raise UsageError(f"max_concurrent must be at least 1, not {max_concurrent}.")
    local_hosts(cluster or NO_CLUSTER)
    clock, environment = clock or SystemClock(), environment or Environment.current()
    layers = add_servers(load_settings(environment, root), mcp_servers or {})
    settings = layers.merged
    hosts = settings.web_hosts if web_hosts is None else canonical_hosts(web_hosts)
    permissions = project_permissions(
        layers, root, environment, trust=trust, model_is_chosen=model is not None
    )
    permissions.check()
    skills = permissions.skills_and_commands.skills
    find_sandbox = partial(
        find_sandbox_here,
        environment,
        unconfined=unsafe_no_sandbox,
        # Scripts of the user's skills lie outside of the project.
        readable=[skill.folder for skill in skills.values() if not skill.of_project],
    )
    sandbox = await find_sandbox() if settings.shell and shell else None

    async def check_sandbox() -> ProcessSandbox | None:
        return sandbox or await find_sandbox()

    own_tools: tuple[Tool, ...] = tuple(tools)
    configured = load_roles(
        layers,
        root,
        environment,
        tools=[tool.spec.name for tool in (*own_tools, *skill_tools(skills))],
        servers=[server.name for server in permissions.servers],
        trust=trust,
    ).roles
    scale = _scale(budget)
    allowed = {
        name: msgspec.structs.replace(role, budget=role.budget.scaled(scale))
        for name, role in select_roles(configured, roles).items()
    }
    recorder = None if record is None else _recorder(root / record, root, environment, clock)
    async with AsyncExitStack() as stack:
        registry = await stack.enter_async_context(
            ModelRegistry(environment, layers, root, models or {}, clock, recorder)
        )
        model_name = registry.choose_default(model, settings)
        model_notes: tuple[str, ...] = ()
        if model_name is None:
            found = await discover(environment, layers)
            model_name, model_notes = await _choose_found(registry, found, person.choose_model)
        await registry.start_embedded(model_name, listeners.on_wait)
        policy = Policy(
            directory=str(root),
            model=model_name,
            mode=_mode(mode, environment, settings),
            budget=as_limits(limits).applied_to(
                settings.budget.applied_to(LEAD_ROLE.budget).scaled(scale)
            ),
            sampling=settings.sampling if sampling is None else sampling.over(settings.sampling),
            max_depth=settings.max_depth,
            max_concurrent=max_concurrent or settings.max_concurrent,
            silence_s=settings.silence_s,
            breaker=Breaker(
                warn_at=round(settings.warn_at_calls * scale),
                pause_at=round(settings.pause_at_calls * scale),
            ),
            rules=user_rules(settings),
            attended=person.attended,
            lead=LEAD_ROLE,
            delegation=settings.delegation,
            checks=(*settings.checks, *checks),
            test=permissions.test,
            on_conflict=OnConflict(on_conflict or settings.on_conflict),
            on_child_failure=settings.on_child_failure,
            report_path_pattern=settings.report_path,
            web_hosts=hosts,
        )
        # A role of the project may name an endpoint, but only the user's roles allow new ones.
        registry.allow_endpoints(
            role.model for role in allowed.values() if not is_project_role(role)
        )
        if policy.budget.max_cost_usd is not None:
            await _check_prices(registry, model_name)
        # In plan mode, only tools that read can be used.
        servers = [s for s in permissions.servers if policy.mode is not Mode.PLAN or s.may_read]
        mcp_tools = await stack.enter_async_context(
            _mcp_tools(servers, root, environment, clock, check_sandbox, on_wait=listeners.on_wait)
        )
        store = await stack.enter_async_context(open_store(root, environment))
        memory_store = await stack.enter_async_context(open_memory_store(root, clock, environment))
        own_tools += tuple(tool for server in mcp_tools for tool in server.tools)
        builtin = await retinue_tools(
            settings,
            allowed,
            environment,
            skills=skills,
            test=permissions.test,
            web_hosts=hosts,
            shell=sandbox is not None,
            check_sandbox=check_sandbox,
            ask=person.ask is not None,
        )
        tool_registry = Registry((*builtin, *own_tools))
        protected = protected_files(
            root, environment, policy.rules, writable_install=unsafe_writable_install
        )
        file_tree = user_file_tree(root, environment, protected)
        telemetry, telemetry_notes = await _open_telemetry(stack, root, environment)
        notes = (
            *model_notes,
            *([REDUCED_SANDBOX] if sandbox is not None and sandbox.tier == "reduced" else ()),
            *_installation_notes(protected, root),
            *permissions.notes,
            *rule_notes(policy.rules, tool_registry.effects),
            *(server.note for server in mcp_tools if server.note),
            *await file_tree.recovery_notes(),
            *telemetry_notes,
        )
        if cache is None:
            cache = model is None or isinstance(model, str)
        cached = cache and settings.cache and record is None and not registry.replaying
        hooks = _hook_runner(permissions.hooks, root, environment, check_sandbox)
        stack.push_async_callback(hooks.end_sessions)
        stack.enter_context(relaxed_gc())
        runner: Runner = LocalRunner()
        if cluster is None and registry.is_served(model_name):
            cluster = settings.cluster.address
        if cluster not in (None, NO_CLUSTER):
            from retinue.cluster import open_hosts, resource_notes
            from retinue.process_hosts import HostOptions, folders
            from retinue.runtime.placement.remote_runner import RemoteRunner
            from retinue.workspace.shared_disk import disk_tokens, machine_id

            notes += resource_notes(settings.cluster, allowed)
            seen = (make_state_dir(root), environment.cache_dir / WORKTREES)
            host_options = HostOptions(
                root=str(root),
                machine=machine_id(),
                disk_tokens=stack.enter_context(disk_tokens(seen)),
                model=model_name,
                is_trusted_model=isinstance(model, str),
                settings=layers.for_hosts(),
                roles=allowed,
                skills=skills,
                test=permissions.test,
                web_hosts=hosts,
                shell=settings.shell and shell,
                asks=person.ask is not None,
                unsafe_no_sandbox=unsafe_no_sandbox,
                unsafe_writable_install=unsafe_writable_install,
                folders=folders(environment),
            )
            opening = open_hosts(
                cluster,
                settings.cluster,
                host_options,
                environment,
                clock,
                registry.lend_slots,
                listeners.on_wait,
            )
            running = await stack.enter_async_context(opening)
            runner = RemoteRunner(running, store, file_tree, is_served=registry.is_served)
        reports = await stack.enter_async_context(aclosing(FileReports(root)))
        services = Services(
            policy=msgspec.structs.replace(policy, notes=notes),
            clock=clock,
            models=registry,
            tools=tool_registry,
            roles=allowed,
            commands=permissions.skills_and_commands.commands,
            storage=Storage(
                store=store,
                run_locks=open_run_locks(root, environment),
                memory_store=memory_store,
                reports=reports,
            ),
            cache=ResultCache(store, tool_registry, CACHEABLE_TOOLS if cached else None),
            file_tree=file_tree,
            history=file_tree,
            sandbox=sandbox,
            check_sandbox=check_sandbox,
            person=person,
            listeners=listeners,
            hooks=hooks,
            telemetry=telemetry,
            runner=runner,
        )
        yield await stack.enter_async_context(Runtime(services))


async def cancel_suspended(
    directory: str | Path,
    run_id: str,
    agent_id: str,
    *,
    person: Person | None = None,
    environment: Environment | None = None,
) -> None:
    """Cancel a run that no process works on, or one of its agents. Raises RunError.

    No model is asked, so the run's own need not be configured.
    """
    from retinue.models.scripted.model import ScriptedModel

    async with open_runtime(
        directory, model=ScriptedModel(()), shell=False, person=person, environment=environment
    ) as runtime:
        await runtime.cancel_suspended(run_id, agent_id)


async def _open_telemetry(
    stack: AsyncExitStack, root: Path, environment: Environment
) -> tuple[Telemetry, tuple[str, ...]]:
    """Where events are reported until `stack` ends, and why not if the user asked for more."""
    wanted = read_telemetry_settings(environment)
    problem = wanted.problem
    if wanted.enabled and not is_installed("otel"):
        problem = missing_message("otel", "OTEL_… variables are set, but telemetry").rstrip(".")
    if not wanted.enabled or problem:
        return NoTelemetry(wanted.caller), (problem,) if problem else ()
    from retinue.telemetry_process import telemetry_process

    opening = telemetry_process(root, environment, wanted)
    try:
        return await stack.enter_async_context(opening), ()
    except OSError as error:
        note = f"telemetry is off: its process cannot be started ({error.strerror})"
        return NoTelemetry(wanted.caller), (note,)


def _hook_runner(
    specs: Sequence[HookSpec],
    root: Path,
    environment: Environment,
    find_sandbox: Callable[[], Awaitable[ProcessSandbox | None]],
) -> HookRunner:
    variables = dict(environment.variables)
    if "PATH" in variables:
        # An agent could write a program into the project's virtual environment.
        home = str(environment.home)
        variables["PATH"] = path_outside(str(root), variables["PATH"], home=home)
    return HookRunner(
        specs,
        project=str(root),
        variables=variables,
        confined_variables=environment.for_commands(),
        find_sandbox=find_sandbox,
        is_changed=partial(is_hook_changed, project=root),
    )


async def _choose_found(
    registry: ModelRegistry, found: DiscoveredModels, choose_model: ChooseModel | None
) -> tuple[str, tuple[str, ...]]:
    """The model to use if none is named, and what the user should know about the choice."""
    option = found.only_option
    if option is not None:
        return registry.use(option.name), (f"no model was named: using {option}",)
    if choose_model is None or not found.options:
        raise ConfigError(found.explanation)
    name = await choose_model(found)
    # A model of the list was found, not named by the user: its server is sent no key.
    listed = any(option.name == name for option in found.options)
    return registry.use(name) if listed else registry.use_trusted(name), ()


async def _check_prices(registry: ModelRegistry, model: str) -> None:
    """Raise ConfigError if the cost of a model, or of a member of a pool, cannot be counted."""
    for name in registry.members(model):
        if registry.price(name) is None:
            await registry.served(name)  # The server may know.
        if registry.price(name) is None:
            raise ConfigError(
                f"max_cost_usd is set, but the price of {name} is unknown; add it to your"
                f' settings: [prices."{name}"] with input and output.'
            )


@asynccontextmanager
async def _mcp_tools(
    servers: Sequence[McpServerSpec],
    root: Path,
    environment: Environment,
    clock: Clock,
    find_sandbox: Callable[[], Awaitable[ProcessSandbox | None]],
    *,
    refresh: bool = False,
    on_wait: Callable[[str], None] | None = None,
) -> AsyncIterator[Sequence[ServerTools]]:
    """The tools of MCP servers, which run while this is open; `refresh` ignores cached lists."""
    if not servers:
        yield ()
        return
    from retinue.tools.mcp.process import ServerStarter
    from retinue.tools.mcp.servers import McpServers

    starter = ServerStarter(
        project=str(root),
        sandbox=await find_sandbox() if any(server.confined for server in servers) else None,
        is_changed=partial(changed_since_trust, project=root, environment=environment),
    )
    logs, cache = make_state_dir(root) / "mcp", environment.cache_dir / "mcp"
    async with McpServers(servers, cache=cache, logs=logs, clock=clock, starter=starter) as opened:
        if on_wait is not None and (names := opened.servers_to_start(refresh=refresh)):
            on_wait(f"starting MCP servers to see what they offer: {', '.join(names)}")
        yield await opened.list_tools(refresh=refresh)


class Inspection(msgspec.Struct, frozen=True):
    """The tools of a project."""

    tools: tuple[Tool, ...]
    """Built-in tools."""
    servers: tuple[ServerTools, ...]
    """The tools that each MCP server offers."""
    untrusted: tuple[TrustRequest, ...]
    """Servers that the project brings and the user has not trusted."""
    problems: tuple[str, ...]
    """Why another server cannot be used, a line each."""


async def inspect_tools(directory: str | Path, *, on_wait: Callable[[str], None]) -> Inspection:
    """Start the MCP servers that the user allows, and list their tools."""
    root, environment = project_root(directory), Environment.current()
    layers = load_settings(environment, root)
    found = project_permissions(layers, root, environment)
    tools = (*builtin_tools(), *web_tools(layers.merged, layers.merged.web_hosts, environment))
    async with _mcp_tools(
        found.servers,
        root,
        environment,
        SystemClock(),
        partial(find_sandbox_here, environment, unconfined=False),
        refresh=True,
        on_wait=on_wait,
    ) as servers:
        untrusted = tuple(request for request in found.denied if request.kind == MCP_SERVER)
        return Inspection(tools, tuple(servers), untrusted, found.problems)


def _recorder(path: Path, root: Path, environment: Environment, clock: Clock) -> Recorder:
    from retinue.models.replay.recorder import Recorder

    path = Path(os.path.abspath(path))
    if path.is_relative_to(root) and not path.is_relative_to(make_state_dir(root)):
        raise UsageError(
            f"Cannot record to {str(path)!r}: agents would see the file change, and a replay would"
            f" not match. Name a file outside the project, or {STATE_DIR}/{path.name}."
        )
    refuse_links(root, path)
    return Recorder(path, redaction=redaction_of(root, environment), clock=clock)


def _installation_notes(protected: ProtectedPaths, root: Path) -> list[str]:
    """A note about files of retinue inside the project, which agents cannot write."""
    paths = ", ".join(protected.within(str(root)))
    return [f"retinue's own files are here, so agents cannot write {paths}"] if paths else []


def _scale(budget: str | None) -> float:
    try:
        return BUDGET_SCALES[budget or "normal"]
    except KeyError:
        names = ", ".join(BUDGET_SCALES)
        raise UsageError(f"Unknown budget {budget!r}; there are: {names}.") from None


def _mode(chosen: Mode | str | None, environment: Environment, settings: MergedSettings) -> Mode:
    name = chosen or environment.get("RETINUE_MODE") or settings.mode
    try:
        return Mode(name)
    except ValueError:
        raise UsageError(f"Unknown mode {name!r}; there are: {', '.join(Mode)}.") from None
