"""Where each setting comes from: a default, the user's file, the project's file, a variable."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from retinue.config.environment import Environment
from retinue.config.settings import (
    PROJECT_FILE,
    RUN_BUDGET,
    MergedSettings,
    Settings,
    narrow_settings,
)
from retinue.config.settings_file import load_settings, read_text
from retinue.domain.store_address import without_password

DEFAULT = "default"
STORE, STORE_VARIABLE = "store", "RETINUE_STORE"
VARIABLES = {"model": "RETINUE_MODEL", "mode": "RETINUE_MODE", STORE: STORE_VARIABLE}
"""Variables that override the settings files."""
READ_APART = ("hooks", "mcp", "test", "model", "sub_agents")
"""Settings of a project that are not in the merged ones. Most of them need the user's trust."""
TRUST_NOTE = "takes effect once you run `retinue trust`"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One value that is in effect."""

    key: str
    """In TOML's notation, such as `budget.max_turns`."""
    value: Any
    source: str
    """The file or the variable that sets it; "default" if none does."""
    note: str = ""
    """Why a value in a file has no effect, or none yet."""


def list_settings(environment: Environment, project: Path) -> list[Setting]:
    """Every setting that has a value, in the order of the documentation. Raises ConfigError."""
    layers = load_settings(environment, project)
    user_file = environment.user_settings_file
    user = dict(_flat(tomllib.loads(read_text(user_file))))
    theirs = dict(_flat(tomllib.loads(read_text(project / PROJECT_FILE))))
    theirs |= {STORE: without_password(str(theirs[STORE]))} if STORE in theirs else {}
    without_project = _values(narrow_settings(layers.user, Settings()))
    # Settings of the project that are not merged come last.
    values = {
        "model": None,
        **({STORE: None} if environment.get(STORE_VARIABLE) else {}),
    } | _values(layers.merged)
    values |= {key: None for key in theirs if key not in values}
    found = []
    for key, value in values.items():
        variable = VARIABLES.get(key, "")
        if (named := environment.get(variable)) is not None:
            value = without_password(named) if key == STORE else named
            found.append(Setting(key=key, value=value, source=variable))
        elif key in theirs and key not in user and key.partition(".")[0] in READ_APART:
            note = "" if key.startswith("sub_agents.") else TRUST_NOTE
            found.append(Setting(key=key, value=theirs[key], source=PROJECT_FILE, note=note))
        else:
            shown = environment.display_path(user_file)
            found.append(_with_source(key, value, without_project.get(key), user, theirs, shown))
    return found


def _with_source(
    key: str,
    value: Any,
    without_project: Any,
    user: Mapping[str, Any],
    theirs: Mapping[str, Any],
    user_file: str,
) -> Setting:
    by_user, by_project = key in user, key in theirs
    if value != without_project:
        both = by_user and isinstance(value, list)
        source = f"{user_file} and {PROJECT_FILE}" if both else PROJECT_FILE
        return Setting(key=key, value=value, source=source)
    note = ""
    if by_project and theirs[key] != value:
        note = f"{PROJECT_FILE} says {format_value(theirs[key])}, which has no effect"
    return Setting(key=key, value=value, source=user_file if by_user else DEFAULT, note=note)


def _values(settings: MergedSettings) -> dict[str, Any]:
    """The values of settings by key, without those that are not set or empty."""
    # Through JSON, which turns tuples into lists, as a settings file has them.
    data = msgspec.json.decode(msgspec.json.encode(settings))
    if settings.store is not None:
        data[STORE] = without_password(settings.store)
    data["budget"] = msgspec.to_builtins(settings.budget.applied_to(RUN_BUDGET))
    return {key: value for key, value in _flat(data) if value not in (None, "", {})}


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        key = prefix + (name if _BARE_KEY.fullmatch(name) else format_value(name))
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def format_value(value: Any) -> str:
    """A value as a settings file has it: JSON and TOML write these values alike."""
    return msgspec.json.encode(value).decode()
