"""Reads settings files, and reports problems with their line and key."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from retinue.config.environment import Environment
from retinue.config.hooks import hook_problem
from retinue.config.settings import (
    PROJECT_FILE,
    BudgetSettings,
    ClusterSettings,
    EndpointSettings,
    McpServerSettings,
    PoolSettings,
    PoolStrategy,
    ProfileSettings,
    Settings,
    SettingsLayers,
)
from retinue.domain.approval import parse_rule
from retinue.domain.budget import Budget
from retinue.domain.cluster_address import local_hosts
from retinue.domain.contract import OnConflict, WorkspaceKind
from retinue.domain.foreign_names import our_name
from retinue.domain.grant import Mode
from retinue.domain.mcp_server import Transport
from retinue.domain.paths import is_project_file
from retinue.domain.result import OnChildFailure
from retinue.domain.sampling import Sampling
from retinue.errors import ConfigError, ContractError, UsageError

MAX_SERVER_TIMEOUT_S = 3_600
_MINIMUMS = {
    "max_concurrent": 1, "max_depth": 1, "silence_s": 1, "warn_at_calls": 1, "pause_at_calls": 1,
    "ask_above_tokens": 1, "notify_after_s": 0, "keep_journals_days": 0,
}  # fmt: skip


def load_settings(environment: Environment, project: Path) -> SettingsLayers:
    """Read the user's file and the project's."""
    return SettingsLayers(
        read_settings(environment.user_settings_file),
        read_settings(project / PROJECT_FILE),
        str(project),
    )


def read_settings(path: Path) -> Settings:
    """Read one settings file; a missing file sets nothing. ConfigError names the line and key."""
    return parse_settings(read_text(path), path)


def read_text(path: Path) -> str:
    """The text of a settings file; "" if there is none. Raises ConfigError."""
    try:
        return path.read_text("utf-8") if path.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error


def parse_settings(text: str, path: Path) -> Settings:
    """The settings in the text of a file. ConfigError names the path, the line and the key."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {_locate_syntax_error(str(error), text)}") from error
    except RecursionError:
        raise ConfigError(f"{path}: a value is nested too deeply.") from None
    try:
        settings = msgspec.convert(data, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_locate_type_error(str(error), data, text)}") from error
    for keys, problem in _problems(settings):
        line, key = _line_of(text, keys), ".".join(keys)
        raise ConfigError(f"{path}: line {line}, key {key}: {problem}")
    return settings


def _problems(settings: Settings) -> Iterator[tuple[tuple[str, ...], str]]:
    """Problems of settings whose types are right: the keys of the setting, and the problem."""
    budgets: dict[tuple[str, ...], BudgetSettings] = {("budget",): settings.budget}
    budgets["sub_agents", "budget"] = settings.sub_agents.budget
    budgets |= {("roles", name, "budget"): role.budget for name, role in settings.roles.items()}
    budgets |= {("profiles", name, "budget"): p.budget for name, p in settings.profiles.items()}
    for table, budget in budgets.items():
        try:
            Budget(**budget.given())
        except ContractError as error:
            yield (*table, str(error).split()[0]), str(error)
    samplings: dict[tuple[str, ...], Sampling] = {("sampling",): settings.sampling}
    samplings |= {("roles", name, "sampling"): r.sampling for name, r in settings.roles.items()}
    samplings |= {
        ("profiles", name, "sampling"): p.sampling for name, p in settings.profiles.items()
    }
    for keys, sampling in samplings.items():
        try:
            sampling.check()
        except ContractError as error:
            yield (*keys, str(error).split()[0]), str(error)
    found: dict[tuple[str, ...], str | None] = {
        ("profiles", name): _profile_problem(name, profile, settings)
        for name, profile in settings.profiles.items()
    }
    found |= {
        ("pools", name): _pool_problem(name, pool, settings.models, settings.pools)
        for name, pool in settings.pools.items()
    }
    found |= {
        ("servers", url): _endpoint_problem(url, one) for url, one in settings.servers.items()
    }
    found |= {("mcp", name): mcp_server_problem(name, one) for name, one in settings.mcp.items()}
    found |= {
        ("hooks", event): next(filter(None, (hook_problem(event, group) for group in groups)), None)
        for event, groups in settings.hooks.items()
    }
    for file in settings.sub_agents.bootstrap_files or ():
        if not is_project_file(file):
            found["sub_agents", "bootstrap_files"] = _not_a_project_file(file)
    yield from ((keys, problem) for keys, problem in found.items() if problem)
    for name, minimum in _MINIMUMS.items():
        value = getattr(settings, name)
        if value is not None and value < minimum:
            yield (name,), f"must be at least {minimum}, not {value}."
    yield from _cluster_problems(settings.cluster)
    if settings.ask_above_usd is not None and settings.ask_above_usd <= 0:
        yield ("ask_above_usd",), f"must be more than 0, not {settings.ask_above_usd}."
    for name in ("allow", "deny"):
        for text in getattr(settings, name):
            try:
                parse_rule(text)
            except ConfigError as error:
                yield (name,), str(error)
    if not is_project_file(settings.report_path):
        yield ("report_path",), f"must be a file inside the project, not {settings.report_path!r}."


def _cluster_problems(cluster: ClusterSettings) -> Iterator[tuple[tuple[str, ...], str]]:
    if cluster.address is not None:
        try:
            local_hosts(cluster.address)
        except UsageError as error:
            yield ("cluster", "address"), str(error)
    if cluster.children_per_node is not None and cluster.children_per_node < 1:
        yield (
            ("cluster", "children_per_node"),
            f"must be at least 1, not {cluster.children_per_node}.",
        )
    for role, amounts in cluster.resources.items():
        for name, amount in amounts.items():
            if not 0 < amount < math.inf:
                keys = ("cluster", "resources", role, name)
                yield keys, f"must be a number above 0, not {amount:g}."
    for name, value in cluster.environment.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or "\0" in value:
            yield ("cluster", "environment", name), "is not a variable that a process can have."


def _profile_problem(name: str, profile: ProfileSettings, settings: Settings) -> str | None:
    if not re.fullmatch(r"[A-Za-z0-9_.:-]+", name):
        return "a name has letters, digits and _.:- only."
    if name in settings.roles:
        return f"[roles.{name}] has the same name; keep one."
    if profile.model and profile.pool:
        return "`model` and `pool` mean the same; set one."
    files = (*(profile.bootstrap_files or ()), profile.system_prompt_file or "a file")
    for file in files:
        if not is_project_file(file):
            return _not_a_project_file(file)
    return None


def _not_a_project_file(file: str) -> str:
    return f"{file!r} must be a file inside the project, such as docs/agent.md."


def _pool_problem(
    name: str, pool: PoolSettings, models: Mapping[str, str], pools: Collection[str]
) -> str | None:
    """The problem of a pool, or None. `models` are short names, `pools` the names of all pools."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        return "a name has letters, digits and _.- only."
    if name in models:
        return f"models.{name} has the same name; keep one."
    if not pool.endpoints:
        return 'endpoints must name at least one model: endpoints = ["openai:MODEL@http://…/v1"].'
    meant = [models.get(endpoint, endpoint) for endpoint in pool.endpoints]
    for place, endpoint in enumerate(pool.endpoints):
        if meant[place] in pools:
            return f"{endpoint!r} is a pool, and a pool lists models; name its models."
        if meant[place] in meant[:place]:
            return f"{endpoint!r} is listed twice; give it a weight of 2 instead."
    if pool.weights and len(pool.weights) != len(pool.endpoints):
        return f"there are {len(pool.endpoints)} endpoints and {len(pool.weights)} weights."
    if any(weight <= 0 for weight in pool.weights):
        return "a weight must be more than 0; remove a model that should not be asked."
    if pool.weights and pool.strategy is PoolStrategy.ORDER:
        return 'weights have no meaning with strategy = "order"; leave one of them out.'
    return None


def _endpoint_problem(address: str, server: EndpointSettings) -> str | None:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
        return "is not the address of a server; write it like http://127.0.0.1:8080."
    for field in server.__struct_fields__:
        value = getattr(server, field)
        if type(value) in (int, float) and value <= 0:
            return f"{field} must be more than 0, not {value:g}."
    if server.key_variable and server.key_command:
        return "`key_variable` and `key_command` both name the key; set one."
    # The value is not shown: it may be the key.
    if server.key_variable and not re.fullmatch(r"[A-Za-z_]\w*", server.key_variable, re.ASCII):
        return "key_variable is the name of a variable, such as MY_API_KEY, and not the key."
    return None


def mcp_server_problem(name: str, server: McpServerSettings) -> str | None:
    """The problem of an MCP server's settings, or None."""
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
    """Add the line and the key to an error message of msgspec."""
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
        ours = our_name(unknown[1])
        what = f"unknown key {unknown[1]!r}" + (f"; retinue has {ours}" if ours else "")
    elif "enum value" in what:
        kinds: dict[str | int, type[StrEnum]] = {
            "type": Transport,
            "strategy": PoolStrategy,
            "workspace": WorkspaceKind,
            "on_conflict": OnConflict,
            "on_child_failure": OnChildFailure,
        }
        what += f"; there are: {', '.join(kinds.get(keys[-1], Mode))}"
    name = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return (
        f"line {_line_of(text, keys)}, key {name.lstrip('.') or '(top)'}:"
        f" {what[0].lower() + what[1:]}."
    )


def _invalid_entry(data: dict[str, Any], keys: Sequence[str | int]) -> list[str]:
    """Name of the invalid entry in a table of tables, which msgspec's message does not contain."""
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
    """First line of the statement that sets the last of `keys`."""
    # Only the parser knows every way to write a key (dotted, quoted, inline). So parse ever longer
    # prefixes: the statement that sets the key is the one after which the data has it.
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
