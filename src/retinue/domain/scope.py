"""Path scopes: which files an agent may write, and which agents may write at the same time.

A scope is a tuple of groups of globs. A path is inside if every group has a glob that matches it.
The intersection of two scopes is then all groups of both, which is exact for any globs; a single
glob that matches both cannot be computed in general. `ANYWHERE` has no groups; `NOWHERE` has one
empty group.
"""

from __future__ import annotations

import re
from functools import lru_cache

Scope = tuple[tuple[str, ...], ...]

ANYWHERE: Scope = ()
NOWHERE: Scope = ((),)


def scope(*globs: str) -> Scope:
    """The scope of paths that match any of `globs`. No globs means NOWHERE."""
    return canonical((globs,))


def intersect(a: Scope, b: Scope) -> Scope:
    return canonical(a + b)


def canonical(scope: Scope) -> Scope:
    """The unique form of a scope: sorted, no repeats, without groups that allow everything."""
    cleaned = {tuple(sorted({clean_glob(glob) for glob in group})) for group in scope}
    narrowing = sorted(group for group in cleaned if "**" not in group)
    return NOWHERE if () in narrowing else tuple(narrowing)


def contains(scope: Scope, path: str) -> bool:
    """Whether `path`, relative to the root, is inside. A path that leaves the root never is."""
    # `src/../x` would match `src`.
    if path.startswith("/") or ".." in path.split("/"):
        return False
    return all(any(_compiled(glob).fullmatch(path) for glob in group) for group in scope)


def clean_glob(glob: str) -> str:
    """The unique form of a glob: `src/` becomes `src/**`; `./x`, `/x` and `.//x` become `x`."""
    *above, last = (part.strip() for part in glob.split("/"))
    parts = [part for part in (*above, last) if part not in ("", ".")]
    if last == "" or not parts:
        parts.append("**")
    # `**/**` means the same as `**`, and costs the matcher much more.
    parts = [p for i, p in enumerate(parts) if p != "**" or parts[i - 1 : i] != ["**"]]
    return "/".join(parts)


@lru_cache(maxsize=4096)
def _compiled(glob: str) -> re.Pattern[str]:
    signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pattern = "".join(signs.get(token) or re.escape(token) for token in _tokens(glob))
    return re.compile(pattern + ("(?:/.*)?" if _covers_below(glob) else ""), re.DOTALL)


def _tokens(glob: str) -> list[str]:
    """A glob as git and editors read it: `*` stays in one folder, `**` crosses folders.

    The tokens are `**/`, `**`, `*`, `?` and single characters.
    """
    return re.findall(r"\*\*/?|.", glob, re.DOTALL)


def _covers_below(glob: str) -> bool:
    """A glob without wildcards also covers what lies below: `src/auth` covers the whole folder."""
    return "*" not in glob and "?" not in glob


def overlap(a: Scope, b: Scope) -> bool:
    """Whether a path may be inside both scopes. False is certain; True is a guess."""
    # One group of each side without a common path is enough for False. Whether all groups
    # together leave a common path is not examined.
    if () in (*a, *b):
        return False
    return all(
        any(globs_intersect(one, other) for one in mine for other in theirs)
        for mine in a
        for theirs in b
    )


# Beside the characters and wildcards of a glob: the next two labels may be left out.
_OPTIONAL = ""
_REPEATED = ("*", "**")


@lru_cache(maxsize=16_384)
def globs_intersect(a: str, b: str) -> bool:
    """Whether a path matches both globs: follows their labels side by side."""
    one, other = _labels(a), _labels(b)
    pending = [(0, 0)]
    seen = set(pending)
    while pending:
        i, j = pending.pop()
        if (i, j) == (len(one), len(other)):
            return True
        following = [(k, j) for k in _skips(one, i)] + [(i, m) for m in _skips(other, j)]
        if i < len(one) and j < len(other) and _share_character(one[i], other[j]):
            following.append((i + (one[i] not in _REPEATED), j + (other[j] not in _REPEATED)))
        pending += (pair for pair in following if pair not in seen)
        seen.update(following)
    return False


@lru_cache(maxsize=4096)
def _labels(glob: str) -> list[str]:
    """The labels that a path must consist of to match `glob`: one for a character or repetition."""
    labels: list[str] = []
    for token in _tokens(glob):
        labels += (_OPTIONAL, "**", "/") if token == "**/" else (token,)
    return [*labels, _OPTIONAL, "/", "**"] if _covers_below(glob) else labels


def _skips(labels: list[str], i: int) -> tuple[int, ...]:
    """Where a path may go on without a character for the label `i`."""
    if i < len(labels) and labels[i] == _OPTIONAL:
        return (i + 1, i + 3)
    return (i + 1,) if i < len(labels) and labels[i] in _REPEATED else ()


def _share_character(a: str, b: str) -> bool:
    """Whether some character fits both labels."""
    if _OPTIONAL in (a, b):
        return False
    if "**" in (a, b) or a == b:
        return True
    return not {"*", "?"}.isdisjoint((a, b)) and "/" not in (a, b)


class WriteLocks:
    """The write locks of one group of siblings: those whose write scopes overlap take turns.

    Each sibling requests its lock once, in the order in which siblings are created, and holds it
    until it is released. The answer names the earlier siblings that must release theirs first. So
    no sibling is overtaken by a conflicting one, and since each waits only for earlier ones, there
    is no deadlock.
    """

    def __init__(self) -> None:
        self._held: dict[str, Scope] = {}

    def request(self, name: str, scope: Scope) -> tuple[str, ...]:
        """Lock `scope` for `name`; returns the names that must release theirs first."""
        blockers = tuple(n for n, theirs in self._held.items() if overlap(scope, theirs))
        self._held[name] = scope
        return blockers

    def release(self, name: str) -> None:
        del self._held[name]
