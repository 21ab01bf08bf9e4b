"""Normal form of paths inside a workspace. Works on text alone; the disk is not read."""

from __future__ import annotations

import posixpath
import re

STATE_FOLDER = ".retinue"
SKILLS_FOLDER = f"{STATE_FOLDER}/skills"
"""The part of the state folder that commands see: skills have scripts."""
PROTECTED_NAMES = frozenset({".git", STATE_FOLDER})
"""Names that no agent may write, at any depth: git runs what is in `.git`; the other is ours."""


def inside(path: str, root: str) -> str | None:
    """`path` relative to `root`, without `.`, `..` or doubled slashes; None if it lies outside.

    An absolute path must lie under `root`. The root itself is ".". Check this form against a write
    scope, and open this form.
    """
    if path and path[0] not in "/." and "/." not in path and "//" not in path and path[-1] != "/":
        return path  # Nearly all paths are in normal form already.
    if path.startswith("/"):
        below = _parts(path)
        base = _parts(root)
        if below is None or base is None or below[: len(base)] != base:
            return None
        return "/".join(below[len(base) :]) or "."
    parts = _parts(path)
    return None if parts is None else "/".join(parts) or "."


def is_project_file(path: str) -> bool:
    """Whether `path` is relative and names something below the project."""
    return not path.startswith("/") and inside(path, "/") not in (None, ".")


def is_below(path: str, other: str) -> bool:
    """Whether `path` is `other` or inside it."""
    return path == other or path.startswith(f"{other}/")


def simplify_path(path: str) -> str:
    """`path`, inside or outside, without `.`, doubled slashes, or `..` after a name."""
    return path and posixpath.normpath(re.sub("/+", "/", path))


def _parts(path: str) -> list[str] | None:
    parts: list[str] = []
    for name in path.split("/"):
        if name == "..":
            if not parts:
                return None
            parts.pop()
        elif name not in ("", "."):
            parts.append(name)
    return parts
