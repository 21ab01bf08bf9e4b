"""Computes the permissions of an agent: a root's from the user's mode, a child's from its parent's.

A child only gets what its parent has. Notes list the requests that were denied, and why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

from retinue.domain.agent_spec import RequestedPermissions
from retinue.domain.approval import Rules
from retinue.domain.contract import WorkspaceKind
from retinue.domain.grant import Grant, Mode, Network, intersect_grants
from retinue.domain.messages import Effect
from retinue.domain.role import Role
from retinue.domain.scope import ANYWHERE, NOWHERE, Scope, canonical, scope
from retinue.domain.skill import LOAD_SKILL
from retinue.domain.tool_aliases import tools_meant
from retinue.domain.tool_names import (
    ALL_MCP_TOOLS,
    READING_MCP_TOOLS,
    is_mcp_tool,
    select_names,
    server_of,
)
from retinue.domain.web_hosts import WEB_FETCH, intersect_hosts
from retinue.errors import ContractError

ASK_USER = "ask_user"
READ_FILE = "read_file"
RUN_COMMAND = "run_command"
RUN_TESTS = "run_tests"
COMMAND_TOOLS = frozenset({RUN_COMMAND, RUN_TESTS})
"""Tools that only a sandbox makes possible."""
RACE_AGENTS = "race_agents"
SPAWN_AGENT = "spawn_agent"
SPAWN_AWAIT = "spawn_await"
DELEGATION_BASICS = frozenset({SPAWN_AGENT, "agent_result"})
"""Tools of every agent that may spawn: to start a child, and to read a report that was cut."""
WEB_SEARCH = "web_search"
OPTIONAL_TOOLS: Mapping[str, str] = {
    RUN_COMMAND: "shell commands are turned off",
    RUN_TESTS: "there is no test command that agents may run here",
    WEB_FETCH: "no web_hosts are set",
    WEB_SEARCH: "no search provider is set",
    LOAD_SKILL: "there are no skills",
    ASK_USER: "a child never talks to the user",
}
"""Tools that not every set-up has, and why one is missing."""
NO_APPROVAL_EFFECTS = (Effect.READ, Effect.REMEMBER, Effect.DELEGATE, Effect.CHECK)
"""Effects that no mode asks a person about."""
WRITING_EFFECTS = (Effect.WRITE, Effect.EXECUTE)
COULD_NOT_WRITE = "could not write: needs --mode auto"
"""Note of a child whose role writes, but that may not write: no person could be asked."""

Effects = Mapping[str, Effect]
"""The effect of each tool, by its name."""


class Approvals(msgspec.Struct, frozen=True):
    """How a child can get tools that need a person's yes."""

    attended: bool = False
    """Whether a person can be asked to approve the contract of a child as a whole."""
    rules: Rules = Rules()
    """The user's rules: a child may make the calls that they allow."""


class Permissions(msgspec.Struct, frozen=True, gc=False):
    """What an agent may do, on which files, and what it was denied."""

    grant: Grant
    workspace: WorkspaceKind
    notes: tuple[str, ...] = ()


def root_grant(
    mode: Mode,
    effects: Effects,
    *,
    roles: tuple[str, ...],
    depth: int,
    web_hosts: tuple[str, ...] = (),
) -> Grant:
    """What a run's root may do in the user's mode."""
    allowed, ask = [], []
    for name, effect in effects.items():
        if mode is Mode.PLAN and effect is not Effect.READ:
            continue
        if mode.autonomous or effect in NO_APPROVAL_EFFECTS:
            allowed.append(name)
        else:
            ask.append(name)
    return Grant(
        allowed_tools=tuple(allowed),
        ask_tools=tuple(ask),
        mode=mode,
        network=Network.ALL,
        can_spawn_children=True,
        spawn_roles=roles,
        max_delegation_depth=depth,
        web_hosts=web_hosts,
    )


def root_permissions(grant: Grant, effects: Effects) -> Permissions:
    """All of `grant`, on the user's own files."""
    workspace = workspace_for(grant, effects, WorkspaceKind.SHARED)
    return Permissions(without_delegation(grant, effects), workspace)


def child_permissions(
    role: Role,
    requested: RequestedPermissions,
    parent: Grant,
    effects: Effects,
    approvals: Approvals = Approvals(),  # noqa: B008  (frozen)
) -> Permissions:
    """The part of the requested permissions that a child gets. Raises ContractError.

    If a person is there, this is what the child gets once they have approved its contract.
    """
    if not parent.can_spawn_children:
        raise ContractError(
            "This agent may not delegate (its contract does not allow it, or the depth limit is"
            " reached); do the work with the tools at hand."
        )
    if role.name not in parent.spawn_roles:
        raise ContractError(
            f"This agent may not spawn {role.name!r}; it may spawn:"
            f" {', '.join(parent.spawn_roles)}."
        )
    notes: list[str] = []
    mode = _mode(role, requested, parent, notes)
    spawns = role.spawns if mode is not Mode.PLAN and _may_delegate(requested, effects) else ()
    depth = parent.max_delegation_depth - 1
    delegates = bool(spawns and depth)
    tools = _tools(role, requested, parent, mode, effects, approvals, notes, delegates=delegates)
    grant = Grant(
        allowed_tools=tools.allowed,
        ask_tools=tools.by_rule,
        mode=mode,
        write_scope=_write_scope(role, requested),
        network=requested.network or Network.NONE,
        can_spawn_children=bool(spawns),
        spawn_roles=spawns,
        max_delegation_depth=depth,
        web_hosts=_web_hosts(role, requested, parent) if WEB_FETCH in tools.allowed else (),
        skills=_skills(role, requested),
    )
    grant = without_delegation(intersect_grants(_most_for_child(parent), grant), effects)
    kind = requested.workspace or role.workspace
    workspace = workspace_for(grant, effects, kind)
    if workspace is WorkspaceKind.READONLY and tools.unapproved:
        wanted = msgspec.structs.replace(grant, ask_tools=(*grant.ask_tools, *tools.unapproved))
        if workspace_for(wanted, effects, kind) is not WorkspaceKind.READONLY:
            notes.append(COULD_NOT_WRITE)
    return Permissions(grant, workspace, tuple(notes))


def without_delegation(grant: Grant, effects: Effects) -> Grant:
    """`grant` without the tools that spawn children, unless it allows children."""
    if grant.can_spawn_children:
        return grant
    kept = tuple(n for n in grant.allowed_tools if effects.get(n) is not Effect.DELEGATE)
    if kept == grant.allowed_tools:
        return grant
    return msgspec.structs.replace(grant, allowed_tools=kept)


def workspace_for(grant: Grant, effects: Effects, kind: WorkspaceKind | None) -> WorkspaceKind:
    """READONLY for an agent that cannot write; else what is requested, by default a copy."""
    tools = (*grant.allowed_tools, *grant.ask_tools)
    writes = any(effects.get(name, Effect.EXECUTE) in WRITING_EFFECTS for name in tools)
    if not writes or grant.write_scope == NOWHERE:
        return WorkspaceKind.READONLY
    return kind or WorkspaceKind.WORKTREE


@lru_cache(maxsize=64)
def _most_for_child(parent: Grant) -> Grant:
    """The most that a child of `parent` may have, except for the depth; siblings share it.

    `ask_tools` is empty: `_tools` decides which of the parent's `ask_tools` the child gets.
    """
    return msgspec.structs.replace(
        parent, allowed_tools=(*parent.allowed_tools, *parent.ask_tools), ask_tools=()
    )


def _may_delegate(requested: RequestedPermissions, effects: Effects) -> bool:
    """A list of tools is complete: if none of them delegates, the child cannot delegate."""
    if requested.tools is None:
        return True
    return any(effects.get(n) is Effect.DELEGATE for n in select_names(requested.tools, effects)[0])


def _mode(role: Role, requested: RequestedPermissions, parent: Grant, notes: list[str]) -> Mode:
    """The least of the parent's mode, the role's, and the requested one."""
    mode = parent.mode
    for asked in (role.mode, requested.mode):
        if asked is None:
            continue
        if asked.rank > parent.mode.rank:
            notes.append(f"mode {asked} became {parent.mode}: the parent has no more than that")
        mode = min(mode, asked, key=lambda m: m.rank)
    return mode


def unavailable_tools(unknown: Iterable[str], effects: Effects) -> list[str]:
    """Tools that some set-ups have, for names that no tool here has. Raises ContractError."""
    found: list[str] = []
    for name in unknown:
        if not (meant := tools_meant(name, OPTIONAL_TOOLS)):
            raise ContractError(f"Unknown tool {name!r}; there are: {', '.join(sorted(effects))}.")
        found += meant
    return found


class _Tools(NamedTuple):
    allowed: tuple[str, ...]
    by_rule: tuple[str, ...]
    """Tools of which the child may make the calls that the user's rules allow."""
    unapproved: tuple[str, ...]
    """Tools that its role or its spec names, and that need a person's yes."""


class _Denials:
    """Tools that a child does not get, with the reasons."""

    def __init__(self, wanted: Collection[str] | None) -> None:
        self._found: dict[tuple[str, str], list[str]] = {}
        self._named = None if wanted is None else [n for n in wanted if n != ALL_MCP_TOOLS]

    def add(self, name: str, why: str) -> None:
        if not is_mcp_tool(name):
            self._found[name, why] = [name]
        # A tool is not missed if it was only asked for by "all tools of all servers".
        elif self._named is None or select_names(self._named, (name,))[0]:
            self._found.setdefault((server_of(name), why), []).append(name)

    def notes(self) -> list[str]:
        """One line for all tools of an MCP server, which may have dozens."""
        return [
            f"without {first}{f' and {len(rest)} more of {server}' if rest else ''}: {why}"
            for (server, why), (first, *rest) in self._found.items()
        ]


def _tools(
    role: Role,
    requested: RequestedPermissions,
    parent: Grant,
    mode: Mode,
    effects: Effects,
    approvals: Approvals,
    notes: list[str],
    *,
    delegates: bool,
) -> _Tools:
    """The child's tools: those requested, else the role's, else all of the parent's."""
    offered = {*parent.allowed_tools, *parent.ask_tools}
    wanted = role.tools if requested.tools is None else requested.tools
    denials = _Denials(wanted)
    asked = _asked_tools(role, requested, offered, effects, denials, delegates=delegates)
    allowed, by_rule, unapproved = list[str](), list[str](), list[str]()
    is_confined = requested.directory is not None or _write_scope(role, requested) != ANYWHERE
    missing = sorted(asked - offered)
    # The roles name the web tools, which exist only where the user has configured them.
    if own := [n for n in missing if not is_mcp_tool(n) and n not in (WEB_FETCH, WEB_SEARCH)]:
        notes.append(f"without {', '.join(own)}: the parent does not have it")
    for name in filter(is_mcp_tool, missing):
        denials.add(name, "the parent does not have it")
    for name in sorted(asked & offered):
        effect = effects.get(name, Effect.EXECUTE)
        if name == ASK_USER:
            denials.add(name, "a child never talks to the user")
        elif name == WEB_FETCH and not _web_hosts(role, requested, parent):
            denials.add(name, "its web_hosts and its parent's have no host in common")
        elif effect is Effect.DELEGATE and not delegates:
            if wanted is not None:
                denials.add(name, f"{role.name} has no right to delegate")
        elif mode is Mode.PLAN and effect is not Effect.READ:
            denials.add(name, "plan mode only reads")
        elif effect is Effect.EXTERNAL and is_confined:
            denials.add(name, "it can act outside the scope of this child")
        elif name not in parent.ask_tools or mode.autonomous or approvals.attended:
            allowed.append(name)
        elif any(rule.covers_tool(name) for rule in approvals.rules.allow):
            by_rule.append(name)
        else:
            if wanted is not None:
                unapproved.append(name)
            denials.add(name, f"it needs a person's yes in {mode} mode; use mode auto")
    notes += denials.notes()
    return _Tools(tuple(allowed), tuple(by_rule), tuple(unapproved))


def _asked_tools(
    role: Role,
    requested: RequestedPermissions,
    offered: set[str],
    effects: Effects,
    denials: _Denials,
    *,
    delegates: bool,
) -> set[str]:
    """The tools that a child would get if its parent had them all. Raises ContractError."""
    wanted = role.tools if requested.tools is None else requested.tools
    asked = offered
    if wanted is not None:
        asked, unknown = select_names(wanted, effects)
        if unknown and requested.tools is not None:
            for name in unavailable_tools(unknown, effects):
                denials.add(name, OPTIONAL_TOOLS[name])
        if READING_MCP_TOOLS in wanted:
            mcp_tools = filter(is_mcp_tool, offered)
            asked = {*asked, *(name for name in mcp_tools if effects.get(name) is Effect.READ)}
    if _skills(role, requested):
        # A request that names skills means that they can be loaded.
        asked = {*asked, *({LOAD_SKILL} & offered)}
    if delegates:
        # A list of tools names the other delegation tools: their schemas are long.
        asked = {*asked, *(DELEGATION_BASICS & offered)}
    return asked


def _web_hosts(role: Role, requested: RequestedPermissions, parent: Grant) -> tuple[str, ...]:
    """The parent's hosts, narrowed by those of the role and of the request."""
    hosts = parent.web_hosts or ()
    for narrower in (role.web_hosts, requested.web_hosts):
        hosts = hosts if narrower is None else intersect_hosts(hosts, narrower)
    return hosts


def _skills(role: Role, requested: RequestedPermissions) -> tuple[str, ...] | msgspec.UnsetType:
    """The skills that the spec or the role names; both if both do."""
    if role.skills is None or requested.skills is None:
        named = role.skills if requested.skills is None else requested.skills
        return msgspec.UNSET if named is None else named
    return tuple(name for name in requested.skills if name in role.skills)


def _write_scope(role: Role, requested: RequestedPermissions) -> Scope:
    """The intersection of the role's write scope, the scope to keep to, and the paths to write."""
    if WorkspaceKind.READONLY in (requested.workspace, role.workspace):
        return NOWHERE
    keep_to = scope(*requested.scope) if requested.scope else ANYWHERE
    write = ANYWHERE if requested.write is None else scope(*requested.write)
    return canonical(role.write_scope + keep_to + write)
