"""`retinue doctor`: checks everything that a run depends on, and says how to fix problems.

Each check is a function in `CHECKS`; to add a check, add a function there.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import click
import msgspec

from retinue.config.environment import Environment
from retinue.config.model_providers import PROVIDER_APIS
from retinue.config.model_routes import ModelRoute, parse_route
from retinue.config.project_permissions import MCP_SERVER, ProjectPermissions, project_permissions
from retinue.config.roles import RoleCatalogue, load_roles
from retinue.config.server_addresses import (
    KEY_VARIABLES,
    key_variable,
    missing_variable,
    provider_url,
)
from retinue.config.settings import PROJECT_FILE, Settings, SettingsLayers
from retinue.config.settings_file import read_settings
from retinue.config.web_search import HOW_TO_SEARCH, search_settings
from retinue.discovery import NamedModel, discover, named_models
from retinue.domain.discovered_models import SHOWN, DiscoveredModels, InspectedServer, ServerAddress
from retinue.domain.plural import plural
from retinue.embedded.adapter import installed_adapter
from retinue.embedded.model import is_available, server_folder
from retinue.embedded.serving import running_server
from retinue.embedded.weights import WEIGHTS, cached_weights
from retinue.errors import ConfigError, RetinueError
from retinue.executables import find_program
from retinue.extras import EXTRAS, install_command, is_installed
from retinue.interfaces.cli.event_loop import run_async
from retinue.interfaces.cli.options import directory_option, json_flag
from retinue.interfaces.cli.terminal.output import print_json, print_wrapped
from retinue.interfaces.cli.terminal.progress import waiting_line
from retinue.project import DATABASE_FILE, STATE_DIR, has_journal, open_journal, project_root
from retinue.version import VERSION
from retinue.workspace.git import version_line


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """One result of a check. Only a problem prevents agents from working."""

    level: Level
    about: str
    text: str
    fix: str = msgspec.field(default="", name="way_out")


_ok = partial(Finding, Level.OK)
_note = partial(Finding, Level.NOTE)
_problem = partial(Finding, Level.PROBLEM)


@click.command()
@click.option("--probe", is_flag=True, help="Ask one model of each endpoint to call a tool.")
@directory_option
@json_flag("Print one JSON object per finding.")
def doctor(probe: bool, directory: str, as_json: bool) -> int:
    """Check settings, models, tools and sandbox, and say how to fix problems.

    The command changes nothing and prints no key. It calls no model, except with --probe: then each
    endpoint that your settings or keys name gets one request of about 200 tokens. It exits with 1
    if there is a problem.

    Example: retinue doctor
    """
    findings = run_async(_shown_checks(project_root(directory), Environment.current(), probe=probe))
    for finding in findings:
        if as_json:
            print_json(finding)
            continue
        print_wrapped(f"{finding.level:<8} {finding.about}: {finding.text}", hanging=9)
        if finding.fix:
            indented = finding.fix.replace("\n", "\n" + " " * 11)
            print_wrapped(f"{'':<8} → {indented}", hanging=2)
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    if not as_json:
        click.echo(f"\n{plural(problems, 'problem')}" if problems else "\nNo problems.")
    return 1 if problems else 0


async def _shown_checks(root: Path, environment: Environment, *, probe: bool) -> list[Finding]:
    """The findings. A terminal shows meanwhile what is checked."""
    async with waiting_line() as on_wait:
        return await _run_checks(root, environment, probe=probe, on_wait=on_wait)


async def _run_checks(
    root: Path, environment: Environment, *, probe: bool, on_wait: Callable[[str], None]
) -> list[Finding]:
    unreadable: list[Finding] = []
    layers = SettingsLayers(
        _settings(environment.user_settings_file, unreadable),
        _settings(root / PROJECT_FILE, unreadable),
        str(root),
    )
    named: list[NamedModel] = []
    discovered = DiscoveredModels()
    try:
        named = named_models(environment, layers)
        places = [model.place for model in named if model.place is not None]
        on_wait("asking the model servers")
        discovered = await discover(environment, layers, more=places, cloud=True)
    except ConfigError as error:
        unreadable.append(_problem("model", str(error)))
    models = [one for model in named for one in _named_model(model, discovered, environment)]
    if not named:
        # Unreadable settings may name a model.
        models = list(_found_model(discovered, may_be_named=bool(unreadable)))
    on_wait("asking a model of each endpoint")
    probes = await _probes(environment, layers, root, discovered) if probe else []
    on_wait("testing the sandbox")
    sandbox = await _sandbox(environment, layers.merged)
    return [
        *_programs(),
        *_settings_files(root, environment),
        *unreadable,
        *_agents(load_roles(layers, root, environment)),
        *_keys(environment, layers.user),
        *map(_server, discovered.servers),
        _embedded(environment),
        *models,
        *probes,
        *_tool_servers(project_permissions(layers, root, environment)),
        _web_search(layers.merged, environment),
        await _state(root, environment),
        *sandbox,
    ]


def _settings(path: Path, unreadable: list[Finding]) -> Settings:
    """The settings in a file; empty ones if it cannot be read."""
    try:
        return read_settings(path)
    except ConfigError as error:
        unreadable.append(_problem("settings", str(error)))
        return Settings()


def _programs() -> Iterator[Finding]:
    yield _ok(
        "retinue",
        f"{VERSION}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version},"
        f" {platform.system()} {platform.release()}",
    )
    for name, program, fix in (
        ("git", "git", "install it: children write in git worktrees"),
        ("ripgrep", "rg", "searches work without it, but slower"),
    ):
        path = find_program(program)
        if path is None:
            yield _note(name, "is not on the PATH", fix)
        else:
            version = version_line(path).removeprefix("git version ").removeprefix("ripgrep ")
            yield _ok(name, version or path)
    for extra in EXTRAS:
        # Settings that need one of these two say what is missing.
        if extra not in ("embedded", "postgres", "ray") and not is_installed(extra):
            yield _note("extras", f"{extra} is not installed", install_command(extra))


def _web_search(settings: Settings, environment: Environment) -> Finding:
    try:
        provider = search_settings(settings.web_search, environment)
    except ConfigError as error:
        return _problem("web search", str(error))
    if provider is None:
        return _note("web search", "no provider, so agents cannot search", HOW_TO_SEARCH)
    return _ok("web search", f"by {provider.provider}")


def _settings_files(root: Path, environment: Environment) -> Iterator[Finding]:
    for path in (environment.user_settings_file, root / PROJECT_FILE):
        there = "read" if path.is_file() else "does not exist, which is fine"
        yield _ok("settings", f"{environment.display_path(path)}: {there}")


def _agents(found: RoleCatalogue) -> Iterator[Finding]:
    for problem in found.problems:
        yield _note("agents", problem)
    for role in found.roles.values():
        for problem in role.problems:
            yield _note("agents", f"{role.source}: {problem}")


def _keys(environment: Environment, user: Settings) -> Iterator[Finding]:
    apis = [PROVIDER_APIS[provider] for provider in KEY_VARIABLES]
    names = dict.fromkeys(key_variable(api, environment) for api in apis)
    for name in filter(environment.get, names):
        yield _ok("keys", f"{name} is set")
    if unset := ", ".join(name for name in names if not environment.get(name)):
        yield _note("keys", f"not set: {unset}", "set one to use models of that provider")
    for address, server in user.servers.items():
        if (name := server.key_variable) and name not in names:
            is_set = environment.get(name) is not None
            state = f"{name} is {'set' if is_set else 'not set'}, the key of {address}"
            yield _ok("keys", state) if is_set else _note("keys", state, f"set {name}")


def _server(server: InspectedServer) -> Finding:
    place, inventory = server.place, server.inventory
    source = place.named_by or f"the default address of {place.title}"
    if inventory.models:
        took = "" if inventory.latency_s is None else f", {inventory.latency_s * 1000:.0f} ms"
        kind = inventory.server or ("" if place.named_by else place.title)
        serves = f"is {kind} and serves" if kind else "serves"
        return _ok(
            "servers",
            f"{inventory.address} ({source}) {serves}"
            f" {plural(len(inventory.models), 'model')}{took}",
        )
    if server.problem is None:
        return _note("servers", f"{inventory.address} ({source}): {inventory.problem}")
    return _note("servers", server.problem.rstrip("."))


def _found_model(found: DiscoveredModels, *, may_be_named: bool) -> Iterator[Finding]:
    """The model that a run uses if none is named."""
    if option := found.only_option:
        yield _ok("model", f"{option}, the only model that is served")
        for note in option.served.notes:
            yield _note("model", note)
    elif not may_be_named:
        first, *rest = found.explanation.splitlines()
        has_choice = found.options or found.clouds
        yield (_note if has_choice else _problem)("model", first, "\n".join(rest).strip())


def _named_model(
    named: NamedModel, found: DiscoveredModels, environment: Environment
) -> Iterator[Finding]:
    route, chosen = parse_route(named.model), f"{named.model} ({named.where})"
    server = next((s for s in found.servers if _serves(s.place, named, route)), None)
    if server is None:
        api = PROVIDER_APIS.get(route.provider)
        if api is not None and not route.endpoint and provider_url(api, environment) is None:
            variable = missing_variable(api, environment)
            yield _problem("model", f"{chosen} needs the address of {api.title}", f"set {variable}")
        elif key := KEY_VARIABLES.get(route.provider):
            yield _problem("model", f"{chosen} needs an API key", f"set {key}")
        else:
            yield _ok("model", chosen)
        return
    inventory = server.inventory
    served = inventory.find(route.model)
    if inventory.problem:
        yield _problem(
            "model",
            f"{chosen}: {inventory.problem}",
            "start that server, or choose another model with -m; `retinue models` lists them",
        )
    elif served is None:
        names = [one.model for one in inventory.models]
        close = get_close_matches(route.model, names, n=3, cutoff=0.5)
        fix = f"did you mean {' or '.join(close)}?" if close else ""
        served_names = ", ".join(names[:SHOWN]) or "nothing"
        yield _problem("model", f"{chosen} is not served there", fix or f"served: {served_names}")
    else:
        yield _ok("model", chosen)
        for note in served.notes:
            yield _note("model", note)


def _serves(place: ServerAddress, named: NamedModel, route: ModelRoute) -> bool:
    """Whether requests for the named model go to `place`."""
    if named.place is not None:
        return place == named.place
    api = PROVIDER_APIS.get(route.provider)
    return place.is_default and PROVIDER_APIS[place.provider] is api


async def _probes(
    environment: Environment, layers: SettingsLayers, root: Path, found: DiscoveredModels
) -> list[Finding]:
    """One request with a tool to a model of each endpoint."""
    from retinue.model_probe import probe_models  # The clients of models are slow to import.

    try:
        results = await probe_models(environment, layers, root, found)
    except ConfigError as error:
        return [_problem("probe", str(error))]
    if not results:
        return [_note("probe", "no endpoint is named", "name a model with -m or in your settings")]
    return [
        _ok("probe", f"{result.model} {result.text}")
        if result.ok
        else _problem("probe", f"{result.model}: {result.text}")
        for result in results
    ]


def _embedded(environment: Environment) -> Finding:
    if not is_available():
        return _note("embedded", "the embedded model is not installed", install_command("embedded"))
    folder, adapter = environment.embedded_dir, installed_adapter()
    if adapter is not None and (problem := adapter.problem()):
        return _problem("embedded", problem)
    weights, address = cached_weights(folder), running_server(server_folder(folder, adapter))
    if weights is None:
        size = WEIGHTS.wheel_bytes // 1_000_000
        where = f"its weights ({size} MB) are downloaded at its first use"
    else:
        where = f"its weights are in {environment.display_path(weights.parent)}"
    now = "is not running" if address is None else f"runs (process {address.pid})"
    if adapter is None:
        text = f"installed without its adapter, so it has no tools, and {now}; {where}"
        return _note("embedded", text, install_command("embedded"))
    return _ok("embedded", f"installed with its adapter, and {now}; {where}")


def _tool_servers(found: ProjectPermissions) -> Iterator[Finding]:
    """MCP servers, as far as they can be checked without starting them."""
    for server in found.servers:
        name = f"{server.name} ({server.source})"
        if server.url:
            yield _ok("mcp", f"{name} is at {urlsplit(server.url).netloc}")
        elif shutil.which(server.command[0], path=server.environment.get("PATH")) is None:
            yield _problem("mcp", f"{name}: command {server.command[0]!r} not found", "install it")
        else:
            yield _ok("mcp", f"{name} starts {server.command[0]}; `retinue tools` lists its tools")
    for request in found.denied:
        level = _problem if request in found.blocking else _note
        about = "mcp" if request.kind == MCP_SERVER else request.kind
        yield level(about, f"not trusted: {request}", "to allow it, run: retinue trust")
    for problem in found.problems:
        yield _problem("mcp", problem)


async def _state(root: Path, environment: Environment) -> Finding:
    path = root / STATE_DIR
    shown = environment.display_path(path)
    if path.is_symlink() or (path / DATABASE_FILE).is_symlink():
        return _problem("state", f"{shown} is or contains a symbolic link", "remove it")
    if not os.access(path if path.is_dir() else root, os.W_OK):
        return _problem("state", f"{shown} is not writable", "change its permissions, or use -C")
    if path.exists() and not path.is_dir():
        return _problem("state", f"{shown} is a file, not a directory", "rename it")
    try:
        if not await has_journal(root, environment):
            return _ok("state", f"{shown} is writable; it has no journal yet")
        async with open_journal(root) as store:
            runs = await store.runs(limit=1_000_000)
    except RetinueError as error:
        return _problem("state", str(error))
    return _ok("state", f"{shown} is writable; {plural(len(runs), 'run')} in its journal")


async def _sandbox(environment: Environment, settings: Settings) -> list[Finding]:
    if not settings.shell:
        return [_note("sandbox", "shell commands are disabled in the settings")]
    from retinue.sandbox.selection import FULL_TIER_HINT, select_sandbox

    choice = await select_sandbox(environment.for_commands(), cache=str(environment.cache_dir))
    rejected = "; ".join(choice.rejected)
    if choice.sandbox is None:
        text = f"none, so agents have no shell commands ({rejected})"
        unsafe = "Or use --unsafe-no-sandbox, which runs commands without a sandbox."
        return [_note("sandbox", text, f"{FULL_TIER_HINT}\n{unsafe}")]
    summary = f"{choice.tier}, by {choice.name}: {choice.enforces}"
    return [
        _ok("sandbox", summary)
        if choice.tier == "full"
        else _note("sandbox", f"{summary} ({rejected})", FULL_TIER_HINT),
        *(_note("sandbox", f"not enforced: {leak}") for leak in choice.leaks),
        *(_note("sandbox", f"not available: {lack}") for lack in choice.unsupported),
    ]
