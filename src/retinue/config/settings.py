"""Settings: the user's file, then the project's, then the environment, then flags.

A project's file can narrow what the user allows and never widen it: a repository that somebody
cloned must not be able to give itself rights.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from retinue.config.pools import (
    EndpointSettings,
    PoolSettings,
    PoolStrategy,
    endpoint_problem,
    pool_problem,
)
from retinue.domain.approval import rule
from retinue.domain.budget import Budget, Limits
from retinue.domain.contract import REPORT_PATH_PATTERN, OnConflict, WorkspaceKind
from retinue.domain.grant import Mode
from retinue.domain.mcp_server import Transport
from retinue.domain.paths import inside
from retinue.domain.price import Price
from retinue.errors import ConfigError, ContractError

T = TypeVar("T", int, float)

PROJECT_FILE = "retinue.toml"

# What holds for a run where nobody says anything else.
RUN_BUDGET = Budget(
    max_tool_calls=100,
    max_turns=200,
    max_tokens=None,
    max_context_tokens=32_768,
    timeout_s=3_600,
    max_retries=0,
)
MAX_CONCURRENT = 3
SILENCE_S = 120.0
WARN_AT_CALLS = 60
PAUSE_AT_CALLS = 80
ASK_ABOVE_TOKENS = 5_000_000
ASK_ABOVE_USD = 1.0
MAX_DEPTH = 2
MAX_SERVER_TIMEOUT_S = 3_600


class BudgetSettings(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits that a settings file names; a name that is none of them is an error."""


class RoleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    description: str = ""
    instructions: str = ""
    tools: tuple[str, ...] | None = None
    write: tuple[str, ...] | None = None
    workspace: WorkspaceKind | None = None
    spawns: tuple[str, ...] | None = None
    model: str | None = None
    budget: BudgetSettings = BudgetSettings()


class ProfileSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sub-agent of the user's own. What is left out of it is as for any child.

    Its prompt is made of `bootstrap_files`, then `system_prompt_file`, both of them files of the
    project, then `system_prompt`. `pool` is another word for `model`.
    """

    description: str = ""
    system_prompt: str = ""
    system_prompt_file: str | None = None
    bootstrap_files: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    model: str | None = None
    pool: str | None = None
    mode: Mode | None = None
    write: tuple[str, ...] | None = None
    workspace: WorkspaceKind | None = None
    spawns: tuple[str, ...] | None = None
    budget: BudgetSettings = BudgetSettings()


class McpServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server: a `command` with `args`, `env` and `cwd`, or a `url` with `headers`.

    `${NAME}` is a variable of the user's, `${RETINUE_PROJECT}` the project. A server of the user's
    runs in the home directory where `cwd`, from the project on, says nothing else.

    With neither, the rest holds for a server of that name that the project brings. `tools` are the
    tools to offer, `read` those that change nothing; both may be patterns. `trust_hints` believes
    what the server itself says of that. `read` and `trust_hints` count in the user's file only.
    """

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    type: Transport | None = None
    headers: dict[str, str] = {}
    tools: tuple[str, ...] | None = None
    read: tuple[str, ...] = ()
    trust_hints: bool = False
    timeout_s: float | None = None
    start_timeout_s: float | None = None
    enabled: bool = True


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`budget` is for the run as a whole. `models` are short names for models."""

    model: str | None = None
    mode: Mode | None = None
    max_concurrent: int | None = None
    max_depth: int | None = None
    budget: BudgetSettings = BudgetSettings()
    roles: dict[str, RoleSettings] = {}
    profiles: dict[str, ProfileSettings] = {}
    models: dict[str, str] = {}
    endpoints: tuple[str, ...] = ()
    """Addresses that models may be routed to by name, and that are sent the user's key."""
    pools: dict[str, PoolSettings] = {}
    servers: dict[str, EndpointSettings] = {}
    """Servers of models by address, such as http://127.0.0.1:8080."""
    prices: dict[str, Price] = {}
    """By model name, in US dollars per million tokens."""
    mcp: dict[str, McpServerSettings] = {}
    delegation: bool = True
    allow: tuple[str, ...] = ()
    """What needs no yes, as in `run_command(git log *)`."""
    deny: tuple[str, ...] = ()
    """What is never done. It goes before `allow`."""
    shell: bool = True
    """Whether agents may have shell commands at all."""
    cache: bool = True
    discovery: bool = True
    """Whether the usual ports of this machine are tried when no model is named."""
    silence_s: float | None = None
    warn_at_calls: int | None = None
    pause_at_calls: int | None = None
    ask_above_tokens: int | None = None
    """A plan or a fan-out that will likely use more is asked about first."""
    ask_above_usd: float | None = None
    report_path: str = REPORT_PATH_PATTERN
    notify_after_s: float = 20.0
    """After how long the end of a command, or a question, is worth a bell; 0 is never."""
    keep_journals_days: float = 180.0
    """How old the journal of a run must be for `retinue clean` to leave only its outcome."""
    checks: tuple[str, ...] = ()
    """Commands that must succeed on what a child has made, before that is integrated."""
    on_conflict: OnConflict | None = None


class SettingsLayers(msgspec.Struct, frozen=True):
    """The user's settings and the project's, kept apart: they are not trusted alike."""

    user: Settings
    project: Settings

    @property
    def merged(self) -> Settings:
        return narrow_settings(self.user, self.project)


def load_settings(user_file: Path, project: Path) -> SettingsLayers:
    project_file = project / PROJECT_FILE
    return SettingsLayers(
        read_settings(user_file) if user_file.is_file() else Settings(),
        read_settings(project_file) if project_file.is_file() else Settings(),
    )


def read_settings(path: Path) -> Settings:
    """One settings file. What is wrong with it is told with its line and its key."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {_locate_syntax_error(str(error), text)}") from error
    try:
        settings = msgspec.convert(data, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_locate_type_error(str(error), data, text)}") from error
    _check(settings, path, text)
    return settings


def narrow_settings(user: Settings, project: Settings) -> Settings:
    """`user` with what the project asks for, where that takes something away."""
    mode = user.mode
    if project.mode is not None:
        mode = min(user.mode or Mode.NORMAL, project.mode, key=lambda m: m.rank)
    mine, theirs = user.budget.given(), project.budget.given()
    lower = {k: _lower(v, mine.get(k, getattr(RUN_BUDGET, k))) for k, v in theirs.items()}
    return Settings(
        model=user.model or project.model,
        mode=mode,
        max_concurrent=_lower(user.max_concurrent or MAX_CONCURRENT, project.max_concurrent),
        max_depth=_lower(user.max_depth or MAX_DEPTH, project.max_depth),
        budget=BudgetSettings(**(mine | lower)),
        # Roles give no rights (a contract is the intersection with the parent's), so a project may
        # bring its own.
        roles=project.roles | user.roles,
        profiles=project.profiles | user.profiles,
        # A project that could say what `sonnet` is could have the user's work sent elsewhere.
        models=user.models,
        endpoints=user.endpoints,
        pools=user.pools,
        servers=user.servers,
        prices=user.prices,
        # A server is a program that runs as the user; `config.mcp_servers` tracks its source.
        mcp=user.mcp,
        delegation=user.delegation and project.delegation,
        # A project may forbid, and not allow.
        allow=user.allow,
        deny=(*user.deny, *project.deny),
        shell=user.shell and project.shell,
        cache=user.cache and project.cache,
        discovery=user.discovery and project.discovery,
        silence_s=_lower(user.silence_s or SILENCE_S, project.silence_s),
        warn_at_calls=_lower(user.warn_at_calls or WARN_AT_CALLS, project.warn_at_calls),
        pause_at_calls=_lower(user.pause_at_calls or PAUSE_AT_CALLS, project.pause_at_calls),
        ask_above_tokens=_lower(
            user.ask_above_tokens or ASK_ABOVE_TOKENS, project.ask_above_tokens
        ),
        ask_above_usd=_lower(user.ask_above_usd or ASK_ABOVE_USD, project.ask_above_usd),
        report_path=user.report_path,
        notify_after_s=user.notify_after_s,
        # What the user wants to be able to prove is no matter of a project.
        keep_journals_days=user.keep_journals_days,
        # More checks let less through.
        checks=tuple(dict.fromkeys((*user.checks, *project.checks))),
        on_conflict=user.on_conflict or project.on_conflict,
    )


def _lower(a: T | None, b: T | None) -> T | None:
    """The smaller one; None is no limit."""
    return b if a is None else a if b is None else min(a, b)


def _check(settings: Settings, path: Path, text: str) -> None:
    tables: dict[tuple[str, ...], BudgetSettings] = {("budget",): settings.budget}
    tables |= {("roles", name, "budget"): role.budget for name, role in settings.roles.items()}
    tables |= {("profiles", name, "budget"): p.budget for name, p in settings.profiles.items()}
    for table, chosen in tables.items():
        try:
            Budget(**chosen.given())
        except ContractError as error:
            key = str(error).split()[0]
            raise ConfigError(
                f"{path}: line {_line_of(text, (*table, key))},"
                f" key {'.'.join((*table, key))}: {error}"
            ) from error
    for name, profile in settings.profiles.items():
        if problem := _profile_problem(name, profile, settings):
            line = _line_of(text, ["profiles", name])
            raise ConfigError(f"{path}: line {line}, key profiles.{name}: {problem}")
    for name, pool in settings.pools.items():
        if problem := pool_problem(name, pool, settings.models, settings.pools):
            line = _line_of(text, ["pools", name])
            raise ConfigError(f"{path}: line {line}, key pools.{name}: {problem}")
    for address, endpoint in settings.servers.items():
        if problem := endpoint_problem(address, endpoint):
            line = _line_of(text, ["servers", address])
            raise ConfigError(f"{path}: line {line}, key servers.{address}: {problem}")
    for name, server in settings.mcp.items():
        if problem := mcp_server_problem(name, server):
            line = _line_of(text, ["mcp", name])
            raise ConfigError(f"{path}: line {line}, key mcp.{name}: {problem}")
    if settings.ask_above_usd is not None and settings.ask_above_usd <= 0:
        raise ConfigError(
            f"{path}: line {_line_of(text, ['ask_above_usd'])}, key ask_above_usd: must be more"
            f" than 0, not {settings.ask_above_usd}."
        )
    counts = ("max_concurrent", "max_depth", "silence_s", "warn_at_calls", "pause_at_calls")
    for name in (*counts, "ask_above_tokens"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigError(
                f"{path}: line {_line_of(text, [name])}, key {name}: must be at least 1,"
                f" not {value}."
            )
    for name in ("notify_after_s", "keep_journals_days"):
        value = getattr(settings, name)
        if value < 0:
            raise ConfigError(
                f"{path}: line {_line_of(text, [name])}, key {name}: must be at least 0,"
                f" not {value}."
            )
    for name in ("allow", "deny"):
        for text_of_rule in getattr(settings, name):
            try:
                rule(text_of_rule)
            except ConfigError as error:
                line = _line_of(text, [name])
                raise ConfigError(f"{path}: line {line}, key {name}: {error}") from error
    if inside(settings.report_path, "/") in (None, ".") or settings.report_path.startswith("/"):
        raise ConfigError(
            f"{path}: line {_line_of(text, ['report_path'])}, key report_path: must be a file"
            f" inside the project, not {settings.report_path!r}."
        )


def _profile_problem(name: str, profile: ProfileSettings, settings: Settings) -> str | None:
    if not re.fullmatch(r"[A-Za-z0-9_.:-]+", name):
        return "a name has letters, digits and _.:- only."
    if name in settings.roles:
        return f"[roles.{name}] is there too; keep one."
    if profile.model and profile.pool:
        return "`model` and `pool` mean the same; set one."
    files = (*(profile.bootstrap_files or ()), profile.system_prompt_file or "a file")
    for file in files:
        if file.startswith("/") or inside(file, "/") in (None, "."):
            return f"{file!r} must be a file inside the project, such as docs/agent.md."
    return None


def mcp_server_problem(name: str, server: McpServerSettings) -> str | None:
    """Why no server can be made of it; None if one can."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", name):
        return "a name has 1 to 40 letters, digits and _.- only."
    if server.command is not None and server.url is not None:
        return "`command` starts a server and `url` names one that runs; set one."
    if server.command == "" or server.url == "":
        return "`command` and `url` must not be empty."
    if server.type is Transport.STDIO and server.url is not None:
        return "a server of type stdio has a `command`, not a `url`."
    if server.type not in (None, Transport.STDIO) and server.command is not None:
        return f"a server of type {server.type} has a `url`, not a `command`."
    for key in ("timeout_s", "start_timeout_s"):
        value = getattr(server, key)
        if value is not None and not 0 < value <= MAX_SERVER_TIMEOUT_S:
            return f"{key} must be more than 0 and at most {MAX_SERVER_TIMEOUT_S:,}, not {value:g}."
    return None


def _locate_syntax_error(message: str, text: str) -> str:
    found = re.search(r"\(at (?:line (\d+), column (\d+)|end of document)\)", message)
    if found is None:
        return f"{message}."
    lines = text.rstrip().split("\n")
    line, column = found[1] or len(lines), found[2] or len(lines[-1]) + 1
    return f"line {line}, column {column}: {message[: found.start()].strip()}."


def _locate_type_error(message: str, data: dict[str, Any], text: str) -> str:
    """msgspec's message, with the line and the key it speaks of."""
    found = re.search(r" - at `\$\.?(.*)`$", message)
    what = message[: found.start()] if found else message
    keys: list[str | int] = []
    for part in re.findall(r"\[\.\.\.\]|\[\d+\]|[^.\[\]]+", found[1] if found else ""):
        if part == "[...]":
            keys += _invalid_entry(data, keys)
        else:
            keys.append(int(part[1:-1]) if part.startswith("[") else part)
    if unknown := re.search(r"unknown field `(.*)`", what):
        keys.append(unknown[1])
        what = f"unknown key {unknown[1]!r}"
    elif "enum value" in what:
        kinds: dict[str | int, type[StrEnum]] = {
            "type": Transport,
            "strategy": PoolStrategy,
            "workspace": WorkspaceKind,
            "on_conflict": OnConflict,
        }
        what += f"; there are: {', '.join(kinds.get(keys[-1], Mode))}"
    name = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return (
        f"line {_line_of(text, keys)}, key {name.lstrip('.') or '(top)'}:"
        f" {what[0].lower() + what[1:]}."
    )


def _invalid_entry(data: dict[str, Any], keys: Sequence[str | int]) -> list[str]:
    """The name of the bad one in a table of tables, which msgspec leaves out."""
    table: Any = data
    for key in keys:
        table = table[key]
    for name, value in table.items():
        alone: dict[Any, Any] = {name: value}
        for key in reversed(keys):
            alone = {key: alone}
        try:
            msgspec.convert(alone, Settings)
        except msgspec.ValidationError:
            return [name]
    return []


def _line_of(text: str, keys: Sequence[str | int]) -> int:
    """The line where the statement begins that sets the last of `keys`."""
    # Every way to write a key (dotted, quoted, inline) and every string that looks like one is
    # known to the parser: the statement is the one after which the parser has the key.
    lines = text.replace("\r\n", "\n").split("\n")
    start = 1
    for end in range(1, len(lines) + 1):
        try:
            data = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        if _has_key(data, keys):
            return start
        start = end + 1
    return 1


def _has_key(data: Any, keys: Sequence[str | int]) -> bool:
    for key in keys:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return False
    return True
