"""What an agent may do: its grant, and the access to files and networks that follows from it.

Grants combine only by intersection, so none exceeds its parent's.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from retinue.domain.scope import ANYWHERE, NOWHERE, Scope, canonical, contains, intersect
from retinue.domain.web_hosts import canonical_hosts, intersect_hosts


class _Ranked(StrEnum):
    """Values from least to most."""

    @property
    def rank(self) -> int:
        """Place of the value in the order, from 0."""
        return list(type(self)).index(self)


class Mode(_Ranked):
    """How much an agent may do without asking a person, from least to most.

    ```python
    assert retinue.Mode("auto") is retinue.Mode.AUTO
    assert retinue.Mode.AUTO.autonomous
    assert not retinue.Mode.NORMAL.autonomous
    ```
    """

    PLAN = "plan"
    NORMAL = "normal"
    AUTO = "auto"
    DANGEROUS = "dangerous"

    @property
    def autonomous(self) -> bool:
        """Whether tools that write or execute run without asking a person."""
        return self in (Mode.AUTO, Mode.DANGEROUS)


class Network(_Ranked):
    """Which network the commands of an agent can reach.

    ```python
    task = retinue.Task("tester", "Run the tests.", network=retinue.Network.LOOPBACK)
    ```
    """

    NONE = "none"
    LOOPBACK = "loopback"
    ALL = "all"


class Grant(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """Permissions of one agent. A tool that is in neither list is denied."""

    allowed_tools: tuple[str, ...] = ()
    """Tools that run without asking."""
    ask_tools: tuple[str, ...] = ()
    """Tools that run after a person's yes."""
    mode: Mode = Mode.NORMAL
    write_scope: tuple[tuple[str, ...], ...] = ANYWHERE
    network: Network = Network.NONE
    can_spawn_children: bool = False
    spawn_roles: tuple[str, ...] = ()
    """Roles and profiles of the children that the agent may spawn."""
    max_delegation_depth: int = 0
    """Generations that the agent may have below it."""
    web_hosts: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Hosts that the agent may fetch from. Not encoded if there are none, as in early contracts."""
    skills: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """The only skills that the agent may load. Not encoded if it may load all."""

    def __post_init__(self) -> None:
        # Equal permissions must have equal fields: the canonical bytes of a contract depend on it.
        allowed = set(self.allowed_tools)
        spawns = self.can_spawn_children and self.max_delegation_depth > 0 and self.spawn_roles
        for name, value in (
            ("allowed_tools", tuple(sorted(allowed))),
            ("ask_tools", tuple(sorted(set(self.ask_tools) - allowed))),
            ("write_scope", canonical(self.write_scope)),
            ("can_spawn_children", bool(spawns)),
            ("spawn_roles", tuple(sorted(set(self.spawn_roles))) if spawns else ()),
            ("max_delegation_depth", self.max_delegation_depth if spawns else 0),
            ("web_hosts", canonical_hosts(self.web_hosts or ()) or msgspec.UNSET),
        ):
            msgspec.structs.force_setattr(self, name, value)
        if self.skills is not msgspec.UNSET:
            msgspec.structs.force_setattr(self, "skills", tuple(sorted(set(self.skills))))

    def may_load(self, skill: str) -> bool:
        return self.skills is msgspec.UNSET or skill in self.skills


def intersect_grants(a: Grant, b: Grant) -> Grant:
    """The widest grant that neither `a` nor `b` exceeds."""
    offered = {*a.allowed_tools, *a.ask_tools} & {*b.allowed_tools, *b.ask_tools}
    freely = set(a.allowed_tools) & set(b.allowed_tools)
    return Grant(
        allowed_tools=tuple(freely),
        ask_tools=tuple(offered - freely),
        mode=min(a.mode, b.mode, key=lambda m: m.rank),
        write_scope=intersect(a.write_scope, b.write_scope),
        network=min(a.network, b.network, key=lambda n: n.rank),
        can_spawn_children=a.can_spawn_children and b.can_spawn_children,
        spawn_roles=tuple(set(a.spawn_roles) & set(b.spawn_roles)),
        max_delegation_depth=min(a.max_delegation_depth, b.max_delegation_depth),
        web_hosts=intersect_hosts(a.web_hosts or (), b.web_hosts or ()),
        skills=a.skills if b.skills is msgspec.UNSET else tuple(filter(a.may_load, b.skills)),
    )


class Access(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What an agent may read and write below `root`, and which network it may use.

    Everything below `root` may be read. `write_scope` lists the paths that may be written,
    relative to `root`. `readable` lists folders elsewhere that commands need to read, such as
    the object folders that a copy of a repository borrows from. `mount_point` is the path at
    which commands see the root: for a copy, the path of the original. `shared_folders` are
    folders of the original, relative to it, that the copy lacks (`node_modules`, `.venv`).
    `read_only` are paths below the root that must not be changed, whatever the scope. A file in
    the workspace must not be changed either if it is also a file of `packages` (a hard link).
    `denied` are the user's rules: patterns of paths that begin with `denied_prefix`, the root
    relative to the project.
    """

    root: str
    write_scope: Scope
    network: Network = Network.NONE
    readable: tuple[str, ...] = ()
    mount_point: str = ""
    shared_folders: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    denied_prefix: str = ""

    @property
    def closed_paths(self) -> list[str]:
        """The absolute paths of `read_only`."""
        return [f"{self.root}/{path}" for path in self.read_only]

    def may_write(self, path: str) -> bool:
        return contains(self.write_scope, path)

    def __str__(self) -> str:
        """One line for a person who is asked to approve something."""
        if self.write_scope == ANYWHERE:
            writes = "writes anywhere in the workspace"
        elif self.write_scope == NOWHERE:
            writes = "writes nothing"
        else:
            writes = "writes " + " and of that ".join(map(", ".join, self.write_scope))
        network_texts = {Network.NONE: "no network", Network.LOOPBACK: "its own loopback"}
        return f"{writes}, {network_texts.get(self.network, 'full network')}"
