"""MCP servers that are configured: in the user's settings, in retinue.toml and in .mcp.json.

Nothing is started here. `source` separates the servers of the user from those of the project, which
run only after the user has trusted the folder, and by default in the sandbox.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from retinue.config.agent_folders import read_text
from retinue.config.environment import Environment
from retinue.config.settings import PROJECT_FILE, McpServerSettings, SettingsLayers
from retinue.config.settings_file import mcp_server_problem
from retinue.domain.mcp_server import CALL_TIMEOUT_S, START_TIMEOUT_S, McpServerSpec, Transport
from retinue.domain.tool_names import server_slug
from retinue.errors import ConfigError
from retinue.executables import path_outside

MCP_FILE = ".mcp.json"
PROJECT_VARIABLE = "RETINUE_PROJECT"
USER_SETTINGS = "settings"

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
# Names of transports in the files of other programs.
_TRANSPORT_ALIASES = {
    "streamable-http": "http",
    "streamableHttp": "http",
    "streamable_http": "http",
}
_ENTRY_FIELDS = ("command", "args", "env", "cwd", "url", "headers")


class ConfiguredServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server as it is configured. `${…}` variables are not replaced yet."""

    name: str
    source: str
    settings: McpServerSettings

    @property
    def of_project(self) -> bool:
        return self.source != USER_SETTINGS

    @property
    def confined(self) -> bool:
        """Whether it is a program that runs in the sandbox."""
        wanted = self.settings.sandbox
        return self.settings.url is None and (self.of_project if wanted is None else wanted)

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables whose values the server gets."""
        return tuple(sorted({found[1] for found in self._found()} - {PROJECT_VARIABLE}))

    @property
    def identity(self) -> bytes:
        """Bytes that identify what the server does. The user's choices about it are not part."""
        own = self.settings
        what = (self._argv, sorted(own.env.items()), own.cwd, own.url, own.type)
        return msgspec.json.encode((self.name, *what, sorted(own.headers.items())))

    @property
    def shown(self) -> str:
        """The command or address as it is configured."""
        return self.settings.url or " ".join(self._argv)

    @property
    def _argv(self) -> tuple[str, ...]:
        command = self.settings.command
        return () if command is None else (command, *self.settings.args)

    def ready(self, project: Path, environment: Environment) -> McpServerSpec | str:
        """Replace the variables. Return the server, or the reason that it cannot be used."""
        known = {**environment.variables, PROJECT_VARIABLE: str(project)}
        for variable in self._found():
            if variable[2] is None and not known.get(variable[1]):
                return f"it needs the variable {variable[1]}, which is not set"

        def fill(text: str) -> str:
            return _VARIABLE.sub(lambda found: known.get(found[1]) or found[2] or "", text)

        settings = self.settings
        # In a project's folder, `npx` and `python -m` may find a program of the project.
        usual = str(project) if self.of_project else str(environment.home)
        variables = environment.for_mcp_servers()
        if not self.of_project and "PATH" in variables:
            # An agent could write a program into the project's virtual environment.
            home = str(environment.home)
            variables["PATH"] = path_outside(str(project), variables["PATH"], home=home)
        url = fill(settings.url or "")
        if url and not url.startswith(("http://", "https://")):
            return "its url is not a web address"
        return McpServerSpec(
            name=self.name,
            source=self.source,
            transport=settings.type or (Transport.HTTP if url else Transport.STDIO),
            command=tuple(map(fill, self._argv)),
            environment=variables | {k: fill(v) for k, v in settings.env.items()},
            directory=usual if settings.cwd is None else str(project / fill(settings.cwd)),
            url=url,
            headers={k: fill(v) for k, v in settings.headers.items()},
            proxy=environment.proxy_for(url) if url else None,
            ca_file=environment.ca_file,
            tools=("*",) if settings.tools is None else settings.tools,
            read=settings.read,
            trust_hints=settings.trust_hints,
            confined=self.confined,
            network=settings.network,
            timeout_s=settings.timeout_s or CALL_TIMEOUT_S,
            start_timeout_s=settings.start_timeout_s or START_TIMEOUT_S,
        )

    def _found(self) -> Iterator[re.Match[str]]:
        settings = self.settings
        texts = (*self._argv, settings.cwd or "", settings.url or "")
        for text in (*texts, *settings.env.values(), *settings.headers.values()):
            yield from _VARIABLE.finditer(text)


class ServerConfiguration(msgspec.Struct, frozen=True):
    """Configured servers by name, and a line for each entry that is not usable."""

    servers: tuple[ConfiguredServer, ...]
    problems: tuple[str, ...] = ()


def configured_servers(layers: SettingsLayers, project: Path) -> ServerConfiguration:
    """Return the servers that are configured and enabled.

    If two have the same name, the user's wins over the project's, and retinue.toml over .mcp.json.
    So does one whose tools would have the same names: the user's rules for `mcp__NAME__*` would
    hold for the tools of a stranger. An entry of the user without `command` and `url` applies to
    the project's server of that name.
    """
    problems: list[str] = []
    found: dict[str, ConfiguredServer] = {}
    choices: dict[str, McpServerSettings] = {}
    for name, settings in layers.user.mcp.items():
        if settings.command is None and settings.url is None:
            choices[name] = settings
        else:
            found[name] = ConfiguredServer(name=name, source=USER_SETTINGS, settings=settings)
    from_file, wrong = _read_mcp_file(project)
    problems += wrong
    for source, configured in ((PROJECT_FILE, layers.project.mcp), (MCP_FILE, from_file)):
        earlier = list(found)
        for name, settings in configured.items():
            like = next((one for one in earlier if server_slug(one) == server_slug(name)), None)
            if like is not None:
                which = "one" if like == name else f"{like}, whose tools have the same names"
                problems.append(
                    f"{source}: MCP server {name}: left out, because {found[like].source} has"
                    f" {which}"
                )
            elif settings.command is None and settings.url is None:
                problems.append(f"{source}: MCP server {name}: it has neither command nor url")
            else:
                chosen = _with_user_choices(settings, choices.pop(name, McpServerSettings()))
                found[name] = ConfiguredServer(name=name, source=source, settings=chosen)
    problems += [
        f"settings: MCP server {name}: it has neither command nor url, and the project brings none"
        for name in choices
    ]
    kept = [found[name] for name in sorted(found) if found[name].settings.enabled]
    return ServerConfiguration(tuple(kept), tuple(problems))


def add_servers(layers: SettingsLayers, servers: Mapping[str, Mapping[str, Any]]) -> SettingsLayers:
    """Add servers, which are written as entries of `.mcp.json`, to the user's own.

    If the user's settings have a server of the same name, they take precedence. Raises
    ConfigError.
    """
    mine = dict(layers.user.mcp)
    for name, entry in servers.items():
        parsed = _parse_entry(entry)
        problem = parsed if isinstance(parsed, str) else mcp_server_problem(name, parsed)
        if isinstance(parsed, str) or problem is not None:
            raise ConfigError(f"MCP server {name!r}: {problem}")
        chosen = mine.get(name, McpServerSettings())
        if chosen.command is None and chosen.url is None:
            mine[name] = _with_user_choices(parsed, chosen)
    return msgspec.structs.replace(layers, user=msgspec.structs.replace(layers.user, mcp=mine))


def _with_user_choices(theirs: McpServerSettings, mine: McpServerSettings) -> McpServerSettings:
    """A project's server with the user's choices. Only the user decides which tools are safe."""
    return msgspec.structs.replace(
        theirs,
        tools=theirs.tools if mine.tools is None else mine.tools,
        read=mine.read,
        trust_hints=mine.trust_hints,
        sandbox=mine.sandbox,
        network=mine.network,
        timeout_s=mine.timeout_s or theirs.timeout_s,
        start_timeout_s=mine.start_timeout_s or theirs.start_timeout_s,
        enabled=theirs.enabled and mine.enabled,
    )


def _read_mcp_file(project: Path) -> tuple[dict[str, McpServerSettings], list[str]]:
    """Servers of `.mcp.json`, and its problems. An invalid entry does not affect the others."""
    path = project / MCP_FILE
    if not os.path.lexists(path):
        return {}, []
    text, problem = read_text(path, project)
    if problem:
        return {}, [f"{MCP_FILE}: {problem}"]
    try:
        data = msgspec.json.decode(text.lstrip("\ufeff"))
        entries = data["mcpServers"]
    except msgspec.DecodeError as error:
        return {}, [f"{MCP_FILE}: not valid JSON ({error})"]
    except RecursionError:
        return {}, [f"{MCP_FILE}: nested too deeply"]
    except (KeyError, TypeError):
        entries = None
    if not isinstance(entries, dict):
        return {}, [f'{MCP_FILE}: it has no object "mcpServers"']
    found: dict[str, McpServerSettings] = {}
    problems: list[str] = []
    for name, entry in entries.items():
        settings = _parse_entry(entry)
        wrong = settings if isinstance(settings, str) else mcp_server_problem(name, settings)
        if not isinstance(settings, str) and wrong is None:
            found[name] = settings
        else:
            shown = "".join(letter for letter in name[:60] if letter.isprintable())
            problems.append(f"{MCP_FILE}: MCP server {shown}: {wrong}")
    return found, problems


def _parse_entry(entry: Any) -> McpServerSettings | str:
    if not isinstance(entry, Mapping):
        return "it is not an object"
    fields = {key: entry[key] for key in _ENTRY_FIELDS if entry.get(key) is not None}
    if "httpUrl" in entry:  # Gemini's key; there, `url` means type sse.
        fields["url"] = entry["httpUrl"]
    if kind := entry.get("type", entry.get("transport")):
        fields["type"] = _TRANSPORT_ALIASES.get(str(kind), kind)
    fields["enabled"] = entry.get("disabled") is not True and entry.get("enabled") is not False
    try:
        return msgspec.convert(fields, McpServerSettings)
    except msgspec.ValidationError as error:
        return f"{error}"
