"""Settings: the user's file, then the project's, then the environment, then flags.

A project's file can narrow what the user allows and never widen it: a repository that somebody
cloned must not be able to give itself rights.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec

from retinue.domain.budget import Budget
from retinue.domain.grant import Mode
from retinue.errors import ConfigError, ContractError

PROJECT_FILE = "retinue.toml"


class BudgetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A budget of which only some limits are set."""

    max_tool_calls: int | None = None
    max_turns: int | None = None
    max_tokens: int | None = None
    max_context_tokens: int | None = None
    timeout_s: float | None = None
    max_cost_usd: float | None = None
    max_retries: int | None = None

    def chosen(self) -> dict[str, int | float]:
        return {f: v for f in self.__struct_fields__ if (v := getattr(self, f)) is not None}


class RoleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    description: str = ""
    instructions: str = ""
    tools: tuple[str, ...] | None = None
    write: tuple[str, ...] | None = None
    spawns: tuple[str, ...] | None = None
    model: str | None = None
    budget: BudgetSettings = BudgetSettings()


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`budget` is for the run as a whole."""

    model: str | None = None
    mode: Mode | None = None
    max_concurrent: int | None = None
    max_depth: int | None = None
    budget: BudgetSettings = BudgetSettings()
    roles: dict[str, RoleSettings] = {}


class Layers(msgspec.Struct, frozen=True):
    """The user's settings and the project's, kept apart: they are not trusted alike."""

    user: Settings
    project: Settings

    @property
    def merged(self) -> Settings:
        return narrowed(self.user, self.project)


def load(user_file: Path, project: Path) -> Layers:
    project_file = project / PROJECT_FILE
    return Layers(
        read(user_file) if user_file.is_file() else Settings(),
        read(project_file) if project_file.is_file() else Settings(),
    )


def read(path: Path) -> Settings:
    """One settings file. What is wrong with it is told with its line and its key."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {_toml_place(str(error))}") from error
    try:
        settings = msgspec.convert(data, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_place(str(error), text)}") from error
    _check(settings, path, text)
    return settings


def narrowed(user: Settings, project: Settings) -> Settings:
    """`user` with what the project asks for, where that takes something away."""
    mode = user.mode
    if project.mode is not None:
        mode = min(user.mode or Mode.NORMAL, project.mode, key=lambda m: m.rank)
    mine, theirs = user.budget.chosen(), project.budget.chosen()
    lower = {k: min(v, mine.get(k, v)) for k, v in theirs.items()}
    return Settings(
        model=user.model or project.model,
        mode=mode,
        max_concurrent=_least(user.max_concurrent, project.max_concurrent),
        max_depth=_least(user.max_depth, project.max_depth),
        budget=BudgetSettings(**(mine | lower)),  # type: ignore[arg-type]
        # Roles give no rights (a contract is the intersection with the parent's), so a project may
        # bring its own.
        roles=project.roles | user.roles,
    )


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _check(settings: Settings, path: Path, text: str) -> None:
    tables = {"budget": settings.budget}
    tables |= {f"roles.{name}.budget": role.budget for name, role in settings.roles.items()}
    for table, chosen in tables.items():
        try:
            Budget(**chosen.chosen())  # type: ignore[arg-type]
        except ContractError as error:
            key = str(error).split()[0]
            raise ConfigError(
                f"{path}: line {_line_of(text, f'{table}.{key}'.split('.'))},"
                f" key {table}.{key}: {error}"
            ) from error
    for name in ("max_concurrent", "max_depth"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigError(
                f"{path}: line {_line_of(text, [name])}, key {name}: must be at least 1,"
                f" not {value}."
            )


def _toml_place(message: str) -> str:
    found = re.search(r"\(at line (\d+), column (\d+)\)", message)
    if found is None:
        return f"{message}."
    what = message[: found.start()].strip()
    return f"line {found[1]}, column {found[2]}: {what}."


def _place(message: str, text: str) -> str:
    """msgspec's message, with the line and the key it speaks of."""
    found = re.search(r" - at `\$\.?(.*)`$", message)
    what = message[: found.start()] if found else message
    keys = [k for k in re.split(r"\.|\[\.\.\.\]|\[(\d+)\]", found[1] if found else "") if k]
    unknown = re.search(r"unknown field `(.*)`", what)
    if unknown:
        keys.append(unknown[1])
        what = f"unknown key {unknown[1]!r}"
    if "[...]" in (found[1] if found else ""):
        # msgspec leaves the key of a mapping out; the bad one has the last key somewhere below.
        keys = keys[-1:] if unknown or len(keys) > 1 else keys
    line = _line_of(text, keys)
    return f"line {line}, key {'.'.join(keys) or '(top)'}: {what[0].lower() + what[1:]}."


def _line_of(text: str, keys: list[str]) -> int:
    """The line where the last of `keys` is set, in the table of those before it if it has one."""
    if not keys:
        return 1
    *tables, key = keys
    header, best, current = ".".join(tables), 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if table := re.match(r"\[+\s*([^\]]+?)\s*\]+", stripped):
            current = re.sub(r"\s*\.\s*", ".", table[1]).replace('"', "")
            if current == ".".join(keys) and not best:
                best = number
        elif re.match(rf"\"?{re.escape(key)}\"?\s*[=.]", stripped):
            if current == header:
                return number
            best = best or number
    return best or 1
