"""Permissions of a project: what it may use without trust, and what needs the user's trust.

Without trust a project can only narrow what the user allows and the built-in roles.
Programs that it starts, and addresses that it sends prompts to, need the user's approval; so does
a directory that contains the user's keys.
"""

from __future__ import annotations

import pwd
import shlex
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from retinue.config.environment import Environment
from retinue.config.hooks import HOOK, configured_hooks, hook_code, hook_request
from retinue.config.mcp_servers import ConfiguredServer, configured_servers
from retinue.config.model_providers import PROVIDER_APIS
from retinue.config.model_routes import parse_route
from retinue.config.roles import WIDENED_ROLE, load_roles
from retinue.config.server_code import code_digest
from retinue.config.settings import PROJECT_FILE, SettingsLayers
from retinue.config.skills_and_commands import (
    COMMANDS,
    SKILLS,
    SkillsAndCommands,
    load_skills_and_commands,
)
from retinue.config.trust import NOT_TRUSTED, TrustRequest, TrustStore
from retinue.domain.hook import HookSpec
from retinue.domain.mcp_server import McpServerSpec, Transport
from retinue.errors import ApprovalNeeded, ConfigError

MCP_SERVER = "MCP server"
_TEST_COMMAND = "test command"
_DIRECTORY = "directory"
_KEY_FOLDERS = (".ssh", ".gnupg", ".aws")


class ProjectPermissions(msgspec.Struct, frozen=True, kw_only=True):
    """The servers and hooks that a project may use.

    `servers` may be started, and `hooks` may run. `requests` is everything that the project asks
    for, `denied` what the user has not approved, and `pending` the part of it the user was not
    asked about yet. `problems` has a line for each server and hook that cannot be used even with
    the user's approval.
    """

    servers: tuple[McpServerSpec, ...]
    hooks: tuple[HookSpec, ...] = ()
    requests: tuple[TrustRequest, ...]
    denied: tuple[TrustRequest, ...]
    pending: tuple[TrustRequest, ...]
    problems: tuple[str, ...]
    test: str = ""
    """The test command: the user's, or the project's if it is trusted."""
    blocking: tuple[TrustRequest, ...]
    """Denied requests that stop a run: the directory, and the model if no other is chosen."""
    skills_and_commands: SkillsAndCommands
    """Skills and slash commands."""

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each thing that is missing in a run, and why."""
        titles: dict[str, list[str]] = {}
        for request in self.pending:
            titles.setdefault(request.kind, []).append(request.title)
        missing = ", ".join(titles.get(MCP_SERVER, ()))
        narrowed = ", ".join(titles.get(WIDENED_ROLE, ()))
        left_out = ", ".join([*titles.get(SKILLS, ()), *titles.get(COMMANDS, ())])
        return (
            *self.problems,
            *([f"without {missing}: {NOT_TRUSTED}"] if missing else ()),
            *([f"without {left_out}: {NOT_TRUSTED}"] if left_out else ()),
            *([f"without the project's hooks: {NOT_TRUSTED}"] if HOOK in titles else ()),
            *([f"without run_tests: {NOT_TRUSTED}"] if _TEST_COMMAND in titles else ()),
            *([f"only as retinue has it: {narrowed}: {NOT_TRUSTED}"] if narrowed else ()),
        )

    def check(self) -> None:
        """Raise ApprovalNeeded or ConfigError if a run needs what the user has not approved."""
        for request in self.blocking:
            if request.kind == _DIRECTORY:
                allowing = f"retinue trust {shlex.quote(request.name)}"
                raise ApprovalNeeded(
                    f"{request.name} is {request.source}: it {request.effect}. Work in a folder of"
                    f" it, with -C DIR; or allow it with `{allowing}`."
                )
            raise ConfigError(
                f"{PROJECT_FILE} chooses the {request.title}, and this folder is not trusted: it"
                f" {request.effect}. `retinue trust` allows it; or choose a model with -m."
            )


def project_permissions(
    layers: SettingsLayers,
    project: Path,
    environment: Environment,
    *,
    trust: bool | None = None,
    model_is_chosen: bool = False,
) -> ProjectPermissions:
    """Check a project against the user's trust. `trust` replaces the stored decision for this call.

    `model_is_chosen` says that a flag names the model, so that of the project is not used.
    """
    found = configured_servers(layers, project)
    store = TrustStore(environment.trust_dir)
    decision = store.decision(project)
    problems = list(found.problems)
    requests, denied = [], []

    def is_granted(request: TrustRequest) -> bool:
        requests.append(request)
        granted = request.digest in decision.trusted if trust is None else trust
        if not granted:
            denied.append(request)
        return granted

    directory = _directory_request(project, environment)
    if directory is not None:
        is_granted(directory)
    servers = []
    for server in found.servers:
        ready = server.ready(project, environment)
        if server.of_project:
            if isinstance(ready, McpServerSpec) and _covers_code(ready):
                code = code_digest(ready, project, store)
                # A cache that Python writes beside the code would count as changed code.
                variables = {**ready.environment, "PYTHONDONTWRITEBYTECODE": "1"}
                ready = msgspec.structs.replace(ready, code=code, environment=variables)
            if not is_granted(_server_request(server, ready)):
                continue
        if isinstance(ready, str):
            problems.append(f"without the MCP server {server.name} ({server.source}): {ready}")
        else:
            servers.append(ready)
    configured = configured_hooks(layers, project, environment)
    problems += configured.problems
    hooks = [h for h in configured.hooks if not h.of_project or is_granted(hook_request(h))]
    for role in load_roles(layers, project, environment).requests:
        is_granted(role)
    models = {name.casefold(): model for name, model in layers.user.models.items()}
    skills_and_commands = load_skills_and_commands(project, environment, is_granted, models)
    test = layers.user.test or layers.project.test
    if not layers.user.test and test:
        effect = "is run in the sandbox, without asking, when an agent calls run_tests"
        asked = TrustRequest(_TEST_COMMAND, test, PROJECT_FILE, effect, test.encode())
        test = test if is_granted(asked) else ""
    model = _model_request(layers)
    named = model_is_chosen or environment.get("RETINUE_MODEL") or layers.user.model
    if model is not None:
        is_granted(model)
    pending = [
        request
        for request in denied
        if request.digest not in decision.refused and (request is not model or not named)
    ]
    return ProjectPermissions(
        servers=tuple(servers),
        hooks=tuple(hooks),
        requests=tuple(requests),
        denied=tuple(denied),
        pending=tuple(pending),
        problems=tuple(problems),
        test=test,
        skills_and_commands=skills_and_commands,
        blocking=tuple(r for r in denied if r is directory or (r is model and not named)),
    )


def _directory_request(project: Path, environment: Environment) -> TrustRequest | None:
    """Request for a directory that contains a home or keys; None for any other directory."""
    homes = [environment.home]
    with suppress(KeyError, OSError):
        homes.append(Path(pwd.getpwuid(project.stat().st_uid).pw_dir))
    if any(home.resolve() == project for home in homes):
        what = "a home directory"
    elif project == Path("/") or environment.home.resolve().is_relative_to(project):
        what = "a directory with home directories"
    elif project.name in _KEY_FOLDERS:
        what = "a directory of keys"
    elif keys := [name for name in _KEY_FOLDERS if (project / name).is_dir()]:
        what = f"a directory with {' and '.join(keys)}"
    else:
        return None
    effect = "contains private files, which agents could read and change"
    return TrustRequest(_DIRECTORY, str(project), what, effect, b"")


def _covers_code(server: McpServerSpec) -> bool:
    """Whether trust in a server is trust in its code: in the sandbox, code alone does no harm."""
    return server.transport is Transport.STDIO and (not server.confined or server.network)


def changed_since_trust(server: McpServerSpec, project: Path, environment: Environment) -> bool:
    """Whether the code of a server is no longer the code that the user has trusted."""
    store = TrustStore(environment.trust_dir)
    return bool(server.code) and code_digest(server, project, store) != server.code


def is_hook_changed(hook: HookSpec, project: Path) -> bool:
    """Whether the files of a project's hook are no longer those that the user has trusted."""
    return hook_code(hook, project) != hook.code


def _server_request(server: ConfiguredServer, ready: McpServerSpec | str) -> TrustRequest:
    effect = f"starts {server.shown}" if server.settings.url is None else f"asks {server.shown}"
    content = server.identity
    if server.settings.url is None:
        network = "with" if server.settings.network else "without"
        where = f"in the sandbox, {network} network" if server.confined else "with all your rights"
        effect += f" {where}"
        if isinstance(ready, McpServerSpec) and ready.code:
            content += f"\0{where}\0{ready.code}".encode()
    if server.variables:
        effect += f", and is given {', '.join(server.variables)}"
    return TrustRequest(MCP_SERVER, server.name, server.source, effect, content)


def _model_request(layers: SettingsLayers) -> TrustRequest | None:
    """Request for the project's model; None if it needs no approval.

    It needs none if it has no address, if its address is in the user's settings, or if its server
    runs on this machine.
    """
    model, user = layers.project.model, layers.user
    if not model:
        return None
    try:
        route = parse_route(model)
        known = {_origin(parse_route(name).endpoint) for name in user.models.values()}
    except ConfigError:
        return None  # Using the model raises the error.
    known |= {_origin(address) for address in user.endpoints}
    if route.provider not in PROVIDER_APIS:
        effect = "is a script of the project, which then decides what agents do"
    elif (
        route.endpoint and _origin(route.endpoint) not in known and not _is_loopback(route.endpoint)
    ):
        effect = "is sent prompts, and so your files"
    else:
        return None
    return TrustRequest("model", model, PROJECT_FILE, effect, model.encode())


def _origin(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    return parts.scheme, parts.netloc


def _is_loopback(address: str) -> bool:
    import ipaddress  # Rarely needed, and slower to import than this whole module.

    host = urlsplit(address).hostname or ""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
