"""Finds executables on the PATH without trusting folders that agents can write.

With a project's virtual environment active, the first folder on the PATH belongs to the project. An
agent that writes a `git` there could make retinue run anything.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

HELPER_PROGRAMS = ("git", "rg", "bwrap")
"""The programs that retinue itself starts."""
_SYSTEM_FOLDERS = (
    "/usr/local/bin",
    "/usr/bin",
    "/bin",
    "/opt/homebrew/bin",
    "/opt/local/bin",
    "/run/current-system/sw/bin",
)


def find_program(name: str, *, path: str | None = None) -> str | None:
    """Return the path of the executable `name` on `path` (default: the PATH), system folders first.

    Folders that a project controls are skipped: relative ones, those below the current directory or
    an opened project, those of a virtual environment, and `node_modules`. Each program is looked up
    once, so that one that is made later is not found.
    """
    folders = os.get_exec_path() if path is None else path.split(os.pathsep)
    # A process may open hundreds of projects, so each folder is not compared with each project.
    projects = {os.path.realpath(os.curdir), *_projects} - {os.sep}
    outside = [f for f in folders if f in _SYSTEM_FOLDERS or projects.isdisjoint(_parents(f))]
    return _find(name, tuple(outside))


_projects: set[str] = set()
"""Directories whose agents this process runs. A global variable, because the PATH is one too."""


def exclude_project(project: str) -> None:
    """From now on, find no program inside `project`, wherever the process was started."""
    _projects.add(os.path.realpath(project))


def path_outside(project: str, path: str, *, home: str) -> str:
    """`path`, a PATH, without relative folders and those inside `project`, also behind links.

    A project that contains the home contains the user's programs as well; these stay.
    """
    inside = os.path.realpath(project).rstrip("/") + "/"
    if f"{os.path.realpath(home)}/".startswith(inside):
        return path
    return os.pathsep.join(
        folder
        for folder in path.split(os.pathsep)
        if os.path.isabs(folder)
        and not any(
            f"{place}/".startswith(inside)
            for place in (os.path.abspath(folder), os.path.realpath(folder))
        )
    )


@cache
def _parents(folder: str) -> frozenset[str]:
    """`folder` and the folders that it is in, both as it is spelled and where its links lead."""
    places = (Path(os.path.abspath(folder)), Path(os.path.realpath(folder)))
    return frozenset(str(parent) for place in places for parent in (place, *place.parents))


@cache
def _find(name: str, folders: tuple[str, ...]) -> str | None:
    system = [folder for folder in folders if folder in _SYSTEM_FOLDERS]
    others = [folder for folder in folders if folder not in _SYSTEM_FOLDERS]
    return _which(name, system) or _which(name, [f for f in others if not _is_controlled(f)])


def _which(name: str, folders: list[str]) -> str | None:
    return shutil.which(name, path=os.pathsep.join(folders)) if folders else None


def _is_controlled(folder: str) -> bool:
    if not os.path.isabs(folder):
        return True
    real = os.path.realpath(folder)
    return "node_modules" in real.split(os.sep) or os.path.exists(
        os.path.join(os.path.dirname(real), "pyvenv.cfg")
    )
