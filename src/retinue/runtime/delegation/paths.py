"""Paths that somebody names for a child to keep to, in the spelling that scopes know."""

from __future__ import annotations

from collections.abc import Iterable

from retinue.errors import UsageError
from retinue.ports.workspace import Workspace


def named(workspace: Workspace, paths: Iterable[str]) -> tuple[str, ...]:
    """`paths` relative to the workspace. Raises UsageError for one that leads out of it.

    Models write the directory that they were told of in front, and no file has such a path here.
    """
    return tuple(_named(workspace, path) for path in paths)


def _named(workspace: Workspace, path: str) -> str:
    inside = workspace.inside(path.strip())
    if inside is None and ".." in path.split("/"):
        raise UsageError(f"{path!r} leads out of the directory; name paths inside of it.")
    return path if inside is None else inside
