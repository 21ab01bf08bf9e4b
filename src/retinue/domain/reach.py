"""How far the hands of an agent reach: the one place that decides, for file tools and commands."""

from __future__ import annotations

import msgspec

from retinue.domain.grant import Network
from retinue.domain.scope import ANYWHERE, NOWHERE, Groups, contains


class Reach(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What may be touched below `root`, and whether anything may be sent away from there.

    All below `root` may be read. `write_scope` are the paths, relative to it, that may be written.
    `readable` are folders elsewhere that what is there is made of, such as the objects that a copy
    of a repository borrows. `seen_at` is where commands are to find the root, for a copy the place
    of the original, and `lent` are folders of the original, relative to it, that the copy has not.
    """

    root: str
    write_scope: Groups
    network: Network = Network.NONE
    readable: tuple[str, ...] = ()
    seen_at: str = ""
    lent: tuple[str, ...] = ()

    def may_write(self, path: str) -> bool:
        """May `path`, relative to the root, be written?"""
        return contains(self.write_scope, path)

    def __str__(self) -> str:
        """As a person would like to read it, before saying yes to something."""
        if self.write_scope == ANYWHERE:
            writes = "writes anywhere in the workspace"
        elif self.write_scope == NOWHERE:
            writes = "writes nothing"
        else:
            writes = "writes " + " and of that ".join(map(", ".join, self.write_scope))
        away = {Network.NONE: "no network", Network.LOOPBACK: "its own loopback"}
        return f"{writes}, {away.get(self.network, 'all of the network')}"
