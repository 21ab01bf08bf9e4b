"""What of a project's wishes may be had, by what the user has said to them.

Untrusted, a project narrows what the user allows, and its roles and files are words. Programs that
it starts and addresses that it sends prompts to need the user's yes.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from retinue.config.environment import Environment
from retinue.config.mcp_servers import ConfiguredServer, configured_servers
from retinue.config.model_routes import PROVIDER_APIS, parse_route
from retinue.config.settings import PROJECT_FILE, SettingsLayers
from retinue.config.trust import TrustRequest, TrustStore
from retinue.domain.mcp_server import McpServerSpec
from retinue.errors import ConfigError

MCP_SERVER = "MCP server"


class ProjectPermissions(msgspec.Struct, frozen=True, kw_only=True):
    """`servers` may be started. `requests` are all that the project asks for, `denied` those that
    the user has not said yes to, and `pending` those of them that nobody was asked about.
    `problems` tell why a server cannot be had whatever the user says, a line each.
    """

    servers: tuple[McpServerSpec, ...]
    requests: tuple[TrustRequest, ...]
    denied: tuple[TrustRequest, ...]
    pending: tuple[TrustRequest, ...]
    problems: tuple[str, ...]
    denied_model: TrustRequest | None
    """The project's model, where it may not be used."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is missing, and why: a line each, for whoever works without it."""
        names = [request.title for request in self.pending if request.kind == MCP_SERVER]
        if not names:
            return self.problems
        why = "this folder is not trusted; `retinue trust` allows it"
        return (*self.problems, f"without {', '.join(names)}: {why}")

    def check_model(self) -> None:
        """Raise ConfigError if it would take the project's model, which may not be used."""
        if self.denied_model is not None:
            raise ConfigError(
                f"{PROJECT_FILE} chooses the {self.denied_model.title}, and this folder is not"
                f" trusted: it {self.denied_model.effect}. `retinue trust` allows it; or choose a"
                " model with -m."
            )


def project_permissions(
    layers: SettingsLayers,
    project: Path,
    environment: Environment,
    *,
    trust: bool | None = None,
    model_is_chosen: bool = False,
) -> ProjectPermissions:
    """What may be had in a folder. `trust` is a word for this once, in the place of what is kept.

    `model_is_chosen`: by a flag, so that what the files say does not matter.
    """
    found = configured_servers(layers, project)
    decision = TrustStore(environment.trust_dir).decision(project)
    problems = list(found.problems)
    requests, denied = [], []

    def is_granted(request: TrustRequest) -> bool:
        requests.append(request)
        granted = request.digest in decision.trusted if trust is None else trust
        if not granted:
            denied.append(request)
        return granted

    servers = []
    for server in found.servers:
        if server.of_project and not is_granted(_server_request(server)):
            continue
        ready = server.ready(project, environment)
        if isinstance(ready, str):
            problems.append(f"without the MCP server {server.name} ({server.source}): {ready}")
        else:
            servers.append(ready)
    model = _model_request(layers)
    named = model_is_chosen or environment.get("RETINUE_MODEL") or layers.user.model
    denied_model = None if model is None or is_granted(model) or named else model
    pending = [
        request
        for request in denied
        if request.digest not in decision.refused and (request is not model or not named)
    ]
    return ProjectPermissions(
        servers=tuple(servers),
        requests=tuple(requests),
        denied=tuple(denied),
        pending=tuple(pending),
        problems=tuple(problems),
        denied_model=denied_model,
    )


def _server_request(server: ConfiguredServer) -> TrustRequest:
    effect = f"starts {server.shown}" if server.settings.url is None else f"asks {server.shown}"
    if server.variables:
        effect += f", and is given {', '.join(server.variables)}"
    return TrustRequest(MCP_SERVER, server.name, server.source, effect, server.identity)


def _model_request(layers: SettingsLayers) -> TrustRequest | None:
    """What it means to use the project's model; None if it means nothing to be asked about.

    A bare name is a model of an address that the user has chosen, one that the user's settings name
    is known, and what is said to a server on this machine stays here.
    """
    model, user = layers.project.model, layers.user
    if not model:
        return None
    try:
        route = parse_route(model)
        known = {_origin(parse_route(name).endpoint) for name in user.models.values()}
    except ConfigError:
        return None  # Whoever wants to use it will be told.
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
    import ipaddress  # Rarely needed, and it costs more than this whole module.

    host = urlsplit(address).hostname or ""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
