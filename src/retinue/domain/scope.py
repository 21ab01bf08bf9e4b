"""Path scopes: which files an agent may write.

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
    pattern = "".join(signs.get(token) or re.escape(token) for token in tokens_of(glob))
    return re.compile(pattern + ("(?:/.*)?" if covers_below(glob) else ""), re.DOTALL)


def tokens_of(glob: str) -> list[str]:
    """A glob as git and editors read it: `*` stays in one folder, `**` crosses folders.

    The tokens are `**/`, `**`, `*`, `?` and single characters.
    """
    return re.findall(r"\*\*/?|.", glob, re.DOTALL)


def covers_below(glob: str) -> bool:
    """A glob without wildcards also covers what lies below: `src/auth` covers the whole folder."""
    return "*" not in glob and "?" not in glob
