"""Hosts that an agent may fetch from: `docs.python.org`, `*.readthedocs.io`, `a.example:8080`, `*`.

A name without a port means the usual ports, 80 and 443; with a port, that port alone. `*.a.b` means
every name below `a.b`, and not `a.b` itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from retinue.errors import ConfigError

WEB_FETCH = "web_fetch"
"""The tool that fetches from them."""
USUAL_PORTS = (80, 443)
ANY_HOST = "*"
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_PATTERN = re.compile(rf"(?:\*|(?:\*\.)?{_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:.]+\])(?::[0-9]{{1,5}})?")


def canonical_hosts(patterns: Iterable[str]) -> tuple[str, ...]:
    """The patterns sorted, without those that another one covers. Raises ConfigError."""
    plain = {_checked(pattern) for pattern in patterns}
    return tuple(
        sorted(one for one in plain if not any(one != p and _covers(p, one) for p in plain))
    )


def intersect_hosts(a: Iterable[str], b: Iterable[str]) -> tuple[str, ...]:
    """Patterns for the hosts that both have."""
    b = tuple(b)
    narrower = (
        mine if _covers(theirs, mine) else theirs
        for mine in a
        for theirs in b
        if _covers(mine, theirs) or _covers(theirs, mine)
    )
    return canonical_hosts(narrower)


def allows_host(patterns: Iterable[str], host: str, port: int) -> bool:
    """Whether one of the patterns means this host and port."""
    names = [f"{host}:{port}", *([host] if port in USUAL_PORTS else [])]
    return any(_covers(pattern, name) for pattern in patterns for name in names)


def web_host(address: str) -> str:
    """The host of an address, as patterns and rules name it; "" if it is no address."""
    try:
        parts = urlsplit(address if "://" in address else f"https://{address}")
        port = parts.port
    except ValueError:
        return ""
    host = (parts.hostname or "").rstrip(".")
    named = f"[{host}]" if ":" in host else host
    return named if port is None or port in USUAL_PORTS else f"{named}:{port}"


def _checked(pattern: str) -> str:
    plain = pattern.strip().lower().rstrip(".")
    if not _PATTERN.fullmatch(plain):
        raise ConfigError(
            f"{pattern!r} is no host; write a name such as docs.python.org, *.readthedocs.io or"
            " example.com:8080, without https:// and without a path."
        )
    return plain


def _covers(wide: str, narrow: str) -> bool:
    """Whether every host that `narrow` means is one that `wide` means."""
    (name, port), (inner, inner_port) = _split(wide), _split(narrow)
    if port != inner_port:
        return False
    if name in (ANY_HOST, inner):
        return True
    return name.startswith("*.") and inner.removeprefix("*").endswith(name[1:])


def _split(pattern: str) -> tuple[str, str]:
    name, colon, port = pattern.rpartition(":")
    return (name, port) if colon and "]" not in port else (pattern, "")
