"""Which program is meant by a name.

What agents may write must not decide that: with the environment of a project active, the first
folder on the PATH is one of the project's, and whoever can write there could have us run anything.
"""

from __future__ import annotations

import os
import shutil

_SYSTEM = (
    "/usr/local/bin",
    "/usr/bin",
    "/bin",
    "/opt/homebrew/bin",
    "/opt/local/bin",
    "/run/current-system/sw/bin",
)


def program(name: str, *, path: str | None = None) -> str | None:
    """The path of a program, by the folders on the PATH (or `path`): the system's own come first.

    Those of a project count for nothing: relative ones, those below the current directory, of a
    virtual environment, or in `node_modules`.
    """
    entries = os.get_exec_path() if path is None else path.split(os.pathsep)
    system = [entry for entry in entries if entry in _SYSTEM]
    others = [entry for entry in entries if entry not in _SYSTEM]
    return _in(system, name) or _in([e for e in others if not _is_a_project_s(e)], name)


def _in(folders: list[str], name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join(folders)) if folders else None


def _is_a_project_s(entry: str) -> bool:
    if not os.path.isabs(entry):
        return True
    here, real = os.path.realpath(os.curdir), os.path.realpath(entry)
    return (
        os.path.commonpath((here, real)) == here != os.sep
        or "node_modules" in real.split(os.sep)
        or os.path.exists(os.path.join(os.path.dirname(real), "pyvenv.cfg"))
    )
