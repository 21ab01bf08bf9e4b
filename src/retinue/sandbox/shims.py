"""Replaces the shims of asdf and mise on the PATH by the programs that they run.

A shim starts its manager, which reads settings in the user's home. The sandbox has another home, so
this module reads the managers' files and chooses the version of each tool.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

_TOOL_VERSIONS = ".tool-versions"
_MISE_FILES = ("mise.toml", ".mise.toml", ".config/mise.toml", "mise/config.toml")
_MISE_SETTINGS = ".config/mise/config.toml"
_MAX_FILE_BYTES = 65_536


def installs_of(shims: str) -> str | None:
    """The folder of the tools that the shims in `shims` run; None if they are no such shims."""
    installs = os.path.join(os.path.dirname(shims), "installs")
    return installs if os.path.basename(shims) == "shims" and os.path.isdir(installs) else None


def resolve_shims(path: str, directory: str, home: str) -> str:
    """`path`, a PATH, with the folders of programs instead of those of shims.

    Files in `directory` and above it choose the versions first, then those in `home`.
    """
    found: list[str] = []
    for entry in path.split(":"):
        installs = installs_of(entry)
        if installs is None:
            found.append(entry)
            continue
        # The manager on the PATH may belong to another home than HOME.
        data = os.path.dirname(installs)
        owner = data.removesuffix("/.asdf").removesuffix("/.local/share/mise")
        chosen = _chosen_versions(directory, (home, owner))
        for tool in _names(installs):
            folder = os.path.join(installs, tool)
            found += _program_folders(folder, chosen.get(tool) or chosen.get(f"core:{tool}"))
    return ":".join(found)


def _chosen_versions(directory: str, homes: tuple[str, ...]) -> dict[str, list[str]]:
    """Versions by tool. The first file that names a tool decides.

    The order is the directory, the folders above it, then the homes.
    """
    found: dict[str, list[str]] = {}
    folder = directory
    while True:
        for name in _MISE_FILES:
            _read_mise_file(os.path.join(folder, name), found)
        _read_tool_versions(os.path.join(folder, _TOOL_VERSIONS), found)
        if folder == os.path.dirname(folder):
            break
        folder = os.path.dirname(folder)
    for home in homes:
        _read_mise_file(os.path.join(home, _MISE_SETTINGS), found)
        _read_tool_versions(os.path.join(home, _TOOL_VERSIONS), found)
    return found


def _read_tool_versions(path: str, found: dict[str, list[str]]) -> None:
    for line in _read(path).splitlines():
        tool, *versions = line.partition("#")[0].split() or [""]
        if versions:
            found.setdefault(tool, versions)


def _read_mise_file(path: str, found: dict[str, list[str]]) -> None:
    text = _read(path)
    if not text:
        return
    import tomllib

    tools: Any = None
    with suppress(tomllib.TOMLDecodeError, RecursionError):
        tools = tomllib.loads(text).get("tools")
    for tool, wanted in tools.items() if isinstance(tools, dict) else ():
        versions = wanted if isinstance(wanted, list) else [wanted]
        names = [one.get("version") if isinstance(one, dict) else one for one in versions]
        found.setdefault(tool, [str(name) for name in names if name is not None])


def _read(path: str) -> str:
    """The text of a small regular file; "" for anything else. A project may put anything there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return file.read(_MAX_FILE_BYTES).decode("utf-8", "replace")


def _program_folders(folder: str, wanted: list[str] | None) -> Iterator[str]:
    """Folders with the programs of a tool, of the wanted versions or of the latest one."""
    installed = sorted(_names(folder), key=_by_number, reverse=True)
    for version in wanted or installed[:1]:
        # The project chooses the version: accept only names of installed ones, never a path.
        name = version.replace(":", "-")
        match = next((one for one in installed if one == name), None) or next(
            (one for one in installed if version == "latest" or one.startswith(f"{name}.")), None
        )
        if match is None:
            continue
        top = os.path.realpath(os.path.join(folder, match))
        inner = [os.path.join(top, "bin"), os.path.join(top, ".npm", "bin")]
        inner += (os.path.join(top, one, "bin") for one in _names(top))
        folders = [one for one in inner if os.path.isdir(one)]
        # A tool without such folders is a program in `top` itself.
        yield from folders or [top]


def _names(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return []


def _by_number(version: str) -> list[tuple[bool, int, str]]:
    """A key that sorts 3.9 before 3.11, and versions with letters before numbers."""
    parts = re.findall(r"\d+|[^\d.]+", version)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
