"""What an agent may read, write and connect to; file tools and commands both ask here."""

from __future__ import annotations

import msgspec

from retinue.domain.grant import Network
from retinue.domain.scope import ANYWHERE, NOWHERE, Scope, contains


class Access(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What an agent may read and write below `root`, and which network it may use.

    Everything below `root` may be read. `write_scope` lists the paths that may be written, relative
    to `root`. `readable` lists folders elsewhere that commands need to read, such as the object
    folders that a copy of a repository borrows from. `mount_point` is the path at which commands
    see the root: for a copy, the path of the original. `shared_folders` are folders of the
    original, relative to it, that the copy lacks (`node_modules`, `.venv`).
    """

    root: str
    write_scope: Scope
    network: Network = Network.NONE
    readable: tuple[str, ...] = ()
    mount_point: str = ""
    shared_folders: tuple[str, ...] = ()

    def may_write(self, path: str) -> bool:
        """Whether `path`, relative to the root, may be written."""
        return contains(self.write_scope, path)

    def __str__(self) -> str:
        """One line for a person who is asked to approve something."""
        if self.write_scope == ANYWHERE:
            writes = "writes anywhere in the workspace"
        elif self.write_scope == NOWHERE:
            writes = "writes nothing"
        else:
            writes = "writes " + " and of that ".join(map(", ".join, self.write_scope))
        away = {Network.NONE: "no network", Network.LOOPBACK: "its own loopback"}
        return f"{writes}, {away.get(self.network, 'all of the network')}"
