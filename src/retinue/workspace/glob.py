"""Globs for paths: `*` and `?` match within one folder, `**` across folders, `{a,b}` either."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from functools import lru_cache

_MAX_ALTERNATIVES = 64


@lru_cache(maxsize=256)
def matcher(glob: str) -> Callable[[str], bool]:
    """A function that tests a path. A glob without a slash matches the file name at any depth."""
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
    # The translated expressions backtrack over one star at most, so no glob is slow.
    return re.compile(fnmatch.translate(glob)).match


def _matches(
    segments: Sequence[Callable[[str], object | None] | None], parts: Sequence[str]
) -> bool:
    """Wildcard matching: on a mismatch, the last `**` takes one more folder."""
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
    # A `**` at the end matches at least one name: `src/**` matches what is in src, not src.
    return s == len(segments)


def _never(_: str) -> None:
    return None


def _alternatives(glob: str) -> list[str]:
    """Expand `a.{b,c}` into `a.b` and `a.c`; an unclosed brace is a plain character."""
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
