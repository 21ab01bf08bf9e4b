"""Addresses of stores, as they may be shown."""

from __future__ import annotations

import re

HIDDEN = "***"
_ADDRESS = re.compile(r"(\w+://)([^/?#@]*@)?([\w.:,%\[\]-]*(?:/[\w.%-]*)?)(?:\?[^@]*)?")


def without_password(address: str) -> str:
    """An address without its user, password and options, any of which may be secret.

    An address of another form is not shown: its password may be anywhere in it.
    """
    found = _ADDRESS.fullmatch(address)
    return f"{found[1]}{'***@' if found[2] else ''}{found[3]}" if found else HIDDEN
