"""What an agent may do. Grants only combine by intersection: no child is wider than its parent."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from retinue.domain.scope import ANYWHERE, canonical, intersect


class Mode(StrEnum):
    """How much happens without a person's word, from least to most."""

    PLAN = "plan"
    NORMAL = "normal"
    AUTO = "auto"
    DANGEROUS = "dangerous"

    @property
    def rank(self) -> int:
        return _MODES.index(self)

    @property
    def autonomous(self) -> bool:
        """Whether tools that write or execute run without asking a person."""
        return self in (Mode.AUTO, Mode.DANGEROUS)


_MODES = [Mode.PLAN, Mode.NORMAL, Mode.AUTO, Mode.DANGEROUS]


class Network(StrEnum):
    NONE = "none"
    LOOPBACK = "loopback"
    ALL = "all"

    @property
    def rank(self) -> int:
        return _NETWORKS.index(self)


_NETWORKS = [Network.NONE, Network.LOOPBACK, Network.ALL]


class Grant(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """`allowed_tools` run freely, `ask_tools` after a person's yes; any other tool is denied.

    `spawn_roles` are the roles (or profiles) it may give work to; none means that it cannot
    delegate. `max_delegation_depth` counts the generations it may have below it.
    """

    allowed_tools: tuple[str, ...] = ()
    ask_tools: tuple[str, ...] = ()
    mode: Mode = Mode.NORMAL
    write_scope: tuple[tuple[str, ...], ...] = ANYWHERE
    network: Network = Network.NONE
    can_spawn_children: bool = False
    spawn_roles: tuple[str, ...] = ()
    max_delegation_depth: int = 0

    def __post_init__(self) -> None:
        # One spelling for one meaning: the canonical bytes of a contract depend on it.
        allowed = set(self.allowed_tools)
        spawns = self.can_spawn_children and self.max_delegation_depth > 0 and self.spawn_roles
        for name, value in (
            ("allowed_tools", tuple(sorted(allowed))),
            ("ask_tools", tuple(sorted(set(self.ask_tools) - allowed))),
            ("write_scope", canonical(self.write_scope)),
            ("can_spawn_children", bool(spawns)),
            ("spawn_roles", tuple(sorted(set(self.spawn_roles))) if spawns else ()),
            ("max_delegation_depth", self.max_delegation_depth if spawns else 0),
        ):
            msgspec.structs.force_setattr(self, name, value)


def narrow(a: Grant, b: Grant) -> Grant:
    """The widest grant that is no wider than `a` and no wider than `b`."""
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
    )
