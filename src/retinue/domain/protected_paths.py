"""Paths that no agent may write: retinue's own files, and those that the user's rules deny."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterable

import msgspec

from retinue.domain.paths import is_below

START_UP_MODULES = ("sitecustomize", "usercustomize")
"""Modules that Python imports when it starts, from any folder on its path."""


class ProtectedPaths(msgspec.Struct, frozen=True):
    """Absolute paths that file tools, commands, merges and undo must not change or read.

    `paths` are folders, files and links; their parent folders are no links. Everything below a path
    is protected, also names that do not exist yet. The folders above a path must not be moved.
    `packages` are folders of installed packages, whose files may have other names (hard links).
    `rules` are patterns of paths relative to `project`; `*` stands for any characters. `unreadable`
    are patterns of paths that tools must not read: searches, the code index and git leave them out.
    """

    paths: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    project: str = ""
    rules: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def hides(self, root: str, path: str) -> bool:
        """Whether a rule forbids to read `path`, relative to `root`."""
        if not self.unreadable:
            return False
        from_project = posixpath.relpath(posixpath.join(root, path), self.project or root)
        return any(rule_matches(rule, from_project) for rule in self.unreadable)

    @property
    def has_rules_about_names(self) -> bool:
        """Whether no sandbox can enforce all rules for files that do not exist yet."""
        return any(denied_folder(rule) is None for rule in self.rules)

    def within(self, root: str) -> tuple[str, ...]:
        """The paths inside `root`, relative to it; only "." if the root is inside one of them."""
        if any(is_below(root, path) for path in self.paths):
            return (".",)
        below = [path.removeprefix(f"{root}/") for path in self.paths if is_below(path, root)]
        nested = (p for p in below if any(p != one and is_below(p, one) for one in below))
        return tuple(sorted(set(below).difference(nested)))

    def refusal(self, root: str, path: str) -> str:
        """Why `path`, relative to `root`, must not be changed, and the ways out; "" if it may."""
        if found := find_protected(path, self.within(root)):
            where = "this folder" if found == "." else f"'{found}'"
            why = f"{where} belongs to retinue"
            if is_start_up_module(found):
                why = "Python imports it when retinue starts"
            return (
                f"'{path}' is off limits: {why}, and agents must not change it. The user"
                " can install retinue outside the project (`uv tool install retinue`, or pipx), or"
                " start it with --unsafe-writable-install"
            )
        if not self.rules:
            return ""
        from_project = posixpath.relpath(posixpath.join(root, path), self.project or root)
        if any(rule_matches(rule, from_project) for rule in self.rules):
            return f"The user's rules forbid to change '{path}'"
        return ""


NOTHING_PROTECTED = ProtectedPaths()


def is_start_up_module(path: str) -> bool:
    """Whether a protected path is a file or folder of a module that Python imports at its start."""
    return posixpath.basename(path).partition(".")[0] in START_UP_MODULES


def find_protected(path: str, protected: Iterable[str]) -> str | None:
    """The first of `protected` that a change of `path` would affect; None if there is none.

    All are relative to one root. A change of a folder above a protected path affects it too. Case
    and Unicode forms are ignored, since some file systems ignore them.
    """
    name = _comparable(path)
    for one in protected:
        other = _comparable(one)
        if one == "." or name == "." or is_below(name, other) or is_below(other, name):
            return one
    return None


def rule_matches(rule: str, path: str) -> bool:
    """Whether a rule of the user denies `path`; both are relative to the project."""
    pattern = ".*".join(map(re.escape, _comparable(rule).split("*")))
    return re.fullmatch(pattern, _comparable(path), re.DOTALL) is not None


def denied_folder(rule: str) -> str | None:
    """The path that a rule denies with everything below it: `secrets` of `secrets/*`.

    None for a rule about names (`*.pem`), which no sandbox can enforce for new files.
    """
    literal = rule.removesuffix("/*")
    return None if "*" in literal else literal


def _comparable(path: str) -> str:
    return path.casefold() if path.isascii() else unicodedata.normalize("NFC", path).casefold()
