"""Keeps folders of the workspace out of `sys.path`, since agents can write modules there."""

from __future__ import annotations

import os
import sys

PACKAGE = os.path.dirname(os.path.abspath(__file__))
"""The folder of the package retinue."""


def leave_out_of_imports(workspace: str) -> None:
    """Remove the folders inside `workspace` from `sys.path`, except those of the installation.

    Only for the command, which imports nothing of the user. Programs that use the library may
    import modules of the workspace.
    """
    workspace = os.path.realpath(workspace)
    sys.path[:] = [entry for entry in sys.path if not _is_foreign(entry, workspace)]


def is_strictly_inside(path: str, folder: str) -> bool:
    """Whether `path`, with its links resolved, is below `folder`, which has no links."""
    real = os.path.realpath(path)
    return real != folder and real.startswith(f"{folder.rstrip('/')}/")


def standard_library() -> str:
    return os.path.dirname(os.path.abspath(os.__file__))


def _is_foreign(entry: str, workspace: str) -> bool:
    # With `/` as the workspace every folder is inside it, so only `/` itself is left out.
    if workspace == os.sep or not is_strictly_inside(entry, workspace):
        return os.path.realpath(entry) == workspace
    own = [os.path.dirname(PACKAGE), standard_library()]
    own += [p for p in (sys.prefix, sys.base_prefix) if is_strictly_inside(p, workspace)]
    real = f"{os.path.realpath(entry)}/"
    return not any(real.startswith(f"{os.path.realpath(folder)}/") for folder in own)
