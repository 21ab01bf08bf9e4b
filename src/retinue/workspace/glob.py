"""Globs for finding files: `*` and `?` stay in one folder, `**` crosses them, `{a,b}` is either."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from functools import lru_cache

_MAX_ALTERNATIVES = 64


@lru_cache(maxsize=256)
def matcher(glob: str) -> Callable[[str], bool]:
    """Does a path match? A glob without a slash is matched against the name, at any depth."""
    tests = [_matcher(one) for one in _alternatives(glob)]
    if len(tests) == 1:
        return tests[0]
    return lambda path: any(test(path) for test in tests)


def _matcher(glob: str) -> Callable[[str], bool]:
    while glob.startswith("./"):
        glob = glob[2:]
    glob = glob.lstrip("/")
    if glob.endswith("/"):
        glob += "**"
    parts = glob.split("/")
    if len(parts) == 1 and glob != "**":
        name = _name(glob)
        return lambda path: name(path[path.rfind("/") + 1 :]) is not None
    segments = [None if part == "**" else _name(part) for part in parts]
    return lambda path: _matches(segments, path.split("/"))


def _name(glob: str) -> Callable[[str], re.Match[str] | None]:
    # Its expressions never backtrack over more than one star, so no glob is slow.
    return re.compile(fnmatch.translate(glob)).match


def _matches(
    segments: Sequence[Callable[[str], object | None] | None], parts: Sequence[str]
) -> bool:
    """The usual wildcard walk: on a mismatch, the last `**` takes one folder more."""
    s = p = 0
    star, resume = -1, 0
    while p < len(parts):
        segment = segments[s] if s < len(segments) else _never
        if segment is None:
            star, resume = s, p
            s += 1
        elif segment(parts[p]) is not None:
            s += 1
            p += 1
        elif star >= 0:
            resume += 1
            s, p = star + 1, resume
        else:
            return False
    # A `**` at the end stands for at least one name: `src/**` is what is in src, not src.
    return s == len(segments)


def _never(_: str) -> None:
    return None


def _alternatives(glob: str) -> list[str]:
    """`a.{b,c}` as `a.b` and `a.c`; a brace that does not close is just a brace."""
    done: list[str] = []
    pending = [glob]
    while pending and len(done) + len(pending) <= _MAX_ALTERNATIVES:
        one = pending.pop(0)
        found = re.search(r"\{([^{}]*,[^{}]*)\}", one)
        if found is None:
            done.append(one)
            continue
        pending.extend(one[: found.start()] + c + one[found.end() :] for c in found[1].split(","))
    return done + pending
