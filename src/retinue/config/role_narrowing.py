"""A project's changes of a built-in role. Without the user's trust they only narrow the role."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from retinue.domain.contract import WorkspaceKind
from retinue.domain.role import Role
from retinue.domain.scope import Scope, contains, intersect
from retinue.domain.tool_names import ALL_MCP_TOOLS, READING_MCP_TOOLS, matches, select_names
from retinue.domain.web_hosts import intersect_hosts


def narrow_role(role: Role, base: Role, known_tools: Collection[str]) -> tuple[Role, list[str]]:
    """`role` without what `base` may not do, and what was taken away, as "use write_file"."""
    limits = {
        name: (value, most)
        for name in base.budget.__struct_fields__
        if (most := getattr(base.budget, name)) is not None
        and ((value := getattr(role.budget, name)) is None or value > most)
    }
    shared = role.workspace is WorkspaceKind.SHARED and base.workspace is not WorkspaceKind.SHARED
    narrowed = msgspec.structs.replace(
        role,
        tools=_narrow_tools(role.tools, base.tools),
        write_scope=intersect(role.write_scope, base.write_scope),
        spawns=tuple(name for name in role.spawns if name in base.spawns),
        web_hosts=_narrow_hosts(role.web_hosts, base.web_hosts),
        workspace=base.workspace if shared else role.workspace,
        budget=msgspec.structs.replace(
            role.budget, **{name: most for name, (_, most) in limits.items()}
        ),
    )
    wanted = known_tools if role.tools is None else role.tools
    used, unknown = select_names(wanted, known_tools)
    used |= {*unknown, *({READING_MCP_TOOLS} & {*wanted})}
    tools = sorted(name for name in used if not _covers(base.tools, name))
    globs = sorted(glob for glob in _globs(role.write_scope) if not _fits(glob, base.write_scope))
    spawns = [name for name in role.spawns if name not in base.spawns]
    taken = [
        *([f"use {', '.join(tools)}"] if tools else ()),
        *([f"write {', '.join(globs)}"] if globs else ()),
        *([f"spawn {', '.join(spawns)}"] if spawns else ()),
        *(["change your files without a copy"] if shared else ()),
        *(f"have {name} {value or 'unlimited'}" for name, (value, _) in limits.items()),
    ]
    return narrowed, taken


def _narrow_tools(
    tools: tuple[str, ...] | None, most: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    if tools is None or most is None:
        return most if tools is None else tools
    kept = [name for name in tools if _covers(most, name)]
    # A pattern that is wider than the role's tools stands for those of them that it matches.
    kept += [name for name in most if any(matches(pattern, name) for pattern in tools)]
    return tuple(dict.fromkeys(kept))


def _narrow_hosts(
    hosts: tuple[str, ...] | None, most: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    if hosts is None or most is None:
        return most if hosts is None else hosts
    return intersect_hosts(hosts, most)


def _covers(tools: tuple[str, ...] | None, name: str) -> bool:
    if tools is None or (name == READING_MCP_TOOLS and ALL_MCP_TOOLS in tools):
        return True
    return any(matches(pattern, name) for pattern in tools)


def _globs(scope: Scope) -> set[str]:
    return {glob for group in scope for glob in group} if scope else {"**"}


def _fits(glob: str, scope: Scope) -> bool:
    """Whether a glob seems to match only paths in `scope`, by an example.

    Only for what the user is shown: the narrowed scope is an exact intersection.
    """
    return contains(scope, glob.replace("**", "x").replace("*", "x").replace("?", "x"))
