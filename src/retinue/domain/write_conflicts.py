"""Which siblings may write at the same time: those whose write scopes overlap take turns.

Each sibling requests its lock once, in the order in which siblings are created, and holds it until
it is released. The answer names the earlier siblings that must release theirs first. So no sibling
is overtaken by a conflicting one, and since each waits only for earlier ones, there is no deadlock.
"""

from __future__ import annotations

from functools import lru_cache

from retinue.domain.scope import Scope, covers_below, tokens_of


class WriteLocks:
    """The write locks of one group of siblings, by name, in the order of the requests."""

    def __init__(self) -> None:
        self._held: dict[str, Scope] = {}

    def request(self, name: str, scope: Scope) -> tuple[str, ...]:
        """Lock `scope` for `name`; returns the names that must release theirs first."""
        blockers = tuple(n for n, theirs in self._held.items() if overlap(scope, theirs))
        self._held[name] = scope
        return blockers

    def release(self, name: str) -> None:
        del self._held[name]


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
    """What a path must consist of to match `glob`, a label for each character or repetition."""
    labels: list[str] = []
    for token in tokens_of(glob):
        labels += (_OPTIONAL, "**", "/") if token == "**/" else (token,)
    return [*labels, _OPTIONAL, "/", "**"] if covers_below(glob) else labels


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
