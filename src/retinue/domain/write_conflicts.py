"""Which siblings may write at the same time: those whose write scopes overlap take turns.

Each sibling requests its lock once, in the order in which siblings are created, and holds it until
it is released. The answer names the earlier siblings that must release theirs first. So no sibling
is overtaken by a conflicting one, and since each waits only for earlier ones, there is no deadlock.
"""

from __future__ import annotations

from functools import lru_cache

from retinue.domain.scope import Scope


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
    return not any(_disjoint(mine, theirs) for mine in a for theirs in b)


def _disjoint(mine: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    return not any(globs_intersect(one, other) for one in mine for other in theirs)


@lru_cache(maxsize=16_384)
def globs_intersect(a: str, b: str) -> bool:
    """Whether a path matches both globs: runs their automata side by side."""
    one, other = _automaton(a), _automaton(b)
    pending = [(0, 0)]
    seen = set(pending)
    while pending:
        i, j = pending.pop()
        if i in one.accepting and j in other.accepting:
            return True
        following = [
            (k, m)
            for label, k in one.transitions[i]
            for other_label, m in other.transitions[j]
            if _share_character(label, other_label)
        ]
        following += [(k, j) for label, k in one.transitions[i] if label == _NOTHING]
        following += [(i, m) for label, m in other.transitions[j] if label == _NOTHING]
        for pair in following:
            if pair not in seen:
                seen.add(pair)
                pending.append(pair)
    return False


# Label of a transition: one character, or one of these.
_NOTHING = ""
_ANY = "any"
_NO_SLASH = "no slash"


def _share_character(a: str, b: str) -> bool:
    """Whether some character fits both labels."""
    if _NOTHING in (a, b):
        return False
    if _ANY in (a, b) or a == b:
        return True
    return _NO_SLASH in (a, b) and "/" not in (a, b)


class _Automaton:
    """A nondeterministic automaton over the characters of a path. State 0 is the first."""

    def __init__(self) -> None:
        self.transitions: list[list[tuple[str, int]]] = [[]]
        """For each state, (label, next state)."""
        self.accepting: set[int] = set()

    @property
    def last(self) -> int:
        return len(self.transitions) - 1

    def step(self, label: str) -> None:
        """Add a state that follows the last one after `label`."""
        self.transitions[-1].append((label, len(self.transitions)))
        self.transitions.append([])

    def repeat(self, label: str) -> None:
        """Add a state in which `label` may occur any number of times."""
        self.step(_NOTHING)
        self.transitions[-1].append((label, self.last))


@lru_cache(maxsize=4096)
def _automaton(glob: str) -> _Automaton:
    """The automaton of a glob, as `scope` reads it."""
    automaton = _Automaton()
    i = 0
    while i < len(glob):
        if glob.startswith("**/", i):
            start = automaton.last
            automaton.repeat(_ANY)
            automaton.step("/")
            automaton.transitions[start].append((_NOTHING, automaton.last))
            i += 3
        elif glob.startswith("**", i):
            automaton.repeat(_ANY)
            i += 2
        elif glob[i] == "*":
            automaton.repeat(_NO_SLASH)
            i += 1
        else:
            automaton.step(_NO_SLASH if glob[i] == "?" else glob[i])
            i += 1
    automaton.accepting.add(automaton.last)
    if not any(sign in glob for sign in "*?"):
        # A glob without wildcards also covers what lies below.
        automaton.step("/")
        automaton.repeat(_ANY)
        automaton.accepting.add(automaton.last)
    return automaton
