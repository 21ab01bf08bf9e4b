"""Paths in requests, made relative to the workspace as write scopes need them."""

from __future__ import annotations

from collections.abc import Iterable

from retinue.errors import UsageError
from retinue.ports.workspace import Workspace


def relative_paths(workspace: Workspace, paths: Iterable[str]) -> tuple[str, ...]:
    """`paths` relative to the workspace. Raises UsageError for a path outside of it.

    Models often write absolute paths, with the directory that their prompt names.
    """
    return tuple(_relative_path(workspace, path) for path in paths)


def _relative_path(workspace: Workspace, path: str) -> str:
    inside = workspace.inside(path.strip())
    if inside is None and ".." in path.split("/"):
        raise UsageError(f"{path!r} leads out of the directory; name paths inside of it.")
    return path if inside is None else inside
