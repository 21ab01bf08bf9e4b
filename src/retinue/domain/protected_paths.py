"""Paths that no agent may write, because retinue or Python loads and runs what is in them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

import msgspec


class ProtectedPaths(msgspec.Struct, frozen=True):
    """Absolute paths that file tools, commands, merges and undo must not change.

    `paths` are folders, files and links; no link leads to one of them. Everything below a path is
    protected, also names that do not exist yet. The folders that lead to a path must not be moved.
    `packages` are folders of installed packages, whose files may have other names (hard links).
    """

    paths: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    def within(self, root: str) -> tuple[str, ...]:
        """The paths inside `root`, relative to it; only "." if the root is inside one of them."""
        if any(_is_below(root, path) for path in self.paths):
            return (".",)
        below = [path.removeprefix(f"{root}/") for path in self.paths if _is_below(path, root)]
        nested = (p for p in below if any(p != one and _is_below(p, one) for one in below))
        return tuple(sorted(set(below).difference(nested)))


NOTHING_PROTECTED = ProtectedPaths()


def find_protected(path: str, protected: Iterable[str]) -> str | None:
    """The first of `protected` that a change of `path` would affect; None if there is none.

    All are relative to one root. A change of a folder above a protected path affects it too. Case
    and Unicode forms are ignored, since some file systems ignore them.
    """
    name = _comparable(path)
    for one in protected:
        other = _comparable(one)
        if one == "." or name == "." or _is_below(name, other) or _is_below(other, name):
            return one
    return None


def refusal(path: str, protected: str) -> str:
    """Why `path` cannot be changed, and the ways out."""
    where = "this folder" if protected == "." else f"'{protected}'"
    return (
        f"'{path}' is off limits: retinue runs from {where}, and agents must not change that."
        " The user can install retinue outside the project (`uv tool install retinue`, or pipx),"
        " or start it with --unsafe-writable-install"
    )


def _is_below(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}/")


def _comparable(path: str) -> str:
    return path.casefold() if path.isascii() else unicodedata.normalize("NFC", path).casefold()
