"""Which permissions a child gets: from its parent's grant, its role and what is requested."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.agent_spec import RequestedPermissions
from retinue.domain.approval import Rules, parse_rule
from retinue.domain.budget import Budget
from retinue.domain.contract import WorkspaceKind
from retinue.domain.grant import Grant, Mode, Network
from retinue.domain.messages import Effect
from retinue.domain.permissions import (
    COULD_NOT_WRITE,
    Approvals,
    Permissions,
    child_permissions,
    root_grant,
    without_delegation,
)
from retinue.domain.role import Role
from retinue.domain.scope import NOWHERE, contains, scope
from retinue.errors import ContractError

EFFECTS = {
    "ask_user": Effect.READ,
    "look": Effect.READ,
    "search": Effect.READ,
    "note": Effect.REMEMBER,
    "write": Effect.WRITE,
    "shell": Effect.EXECUTE,
    "spawn_agent": Effect.DELEGATE,
    "wait": Effect.DELEGATE,
}
ALL = tuple(EFFECTS)
ROLES = ("boss", "maker", "reader", "viewer")

READER = Role(name="reader", description="", instructions="Read.", tools=("look", "search", "note"))
MAKER = Role(
    name="maker",
    description="",
    instructions="Make.",
    tools=("look", "write", "shell"),
    spawns=("reader",),
    budget=Budget(max_tool_calls=30, max_context_tokens=20_000),
)
VIEWER = Role(name="viewer", description="", instructions="View.", mode=Mode.PLAN)
ANYTHING = Role(name="boss", description="", instructions="Do.")


def root(mode: Mode, **fields: Any) -> Grant:
    return msgspec.structs.replace(root_grant(mode, EFFECTS, roles=ROLES, depth=2), **fields)


def permitted(role: Role, parent: Grant, **requested: Any) -> Permissions:
    return child_permissions(role, RequestedPermissions(**requested), parent, EFFECTS)


def yes(tool: str, mode: str = "normal") -> str:
    return f"without {tool}: it needs a person's yes in {mode} mode; use mode auto"


# Tools and mode. Columns: parent's mode, role, spec, tools, mode, notes.

TABLE: list[tuple[str, Mode, Role, dict[str, Any], str, Mode, list[str]]] = [
    (
        "what is asked about is not given in normal mode",
        Mode.NORMAL,
        MAKER,
        {},
        "look spawn_agent",
        Mode.NORMAL,
        [yes("shell"), yes("write"), COULD_NOT_WRITE],
    ),
    (
        "it is given freely under auto",
        Mode.AUTO,
        MAKER,
        {},
        "look shell spawn_agent write",
        Mode.AUTO,
        [],
    ),
    (
        "and under dangerous",
        Mode.DANGEROUS,
        MAKER,
        {},
        "look shell spawn_agent write",
        Mode.DANGEROUS,
        [],
    ),
    (
        "plan denies every write, and delegation with it",
        Mode.AUTO,
        MAKER,
        {"mode": Mode.PLAN},
        "look",
        Mode.PLAN,
        ["without shell: plan mode only reads", "without write: plan mode only reads"],
    ),
    (
        "what the parent has freely needs nobody's yes in a lower mode either",
        Mode.AUTO,
        MAKER,
        {"mode": Mode.NORMAL},
        "look shell spawn_agent write",
        Mode.NORMAL,
        [],
    ),
    (
        "a mode above the parent's is its own",
        Mode.NORMAL,
        MAKER,
        {"mode": Mode.DANGEROUS},
        "look spawn_agent",
        Mode.NORMAL,
        [
            "mode dangerous became normal: the parent has no more than that",
            yes("shell"),
            yes("write"),
            COULD_NOT_WRITE,
        ],
    ),
    (
        "a role's mode holds against the spec",
        Mode.AUTO,
        VIEWER,
        {"mode": Mode.AUTO},
        "look search",
        Mode.PLAN,
        [
            "without ask_user: a child never talks to the user",
            "without note: plan mode only reads",
            "without shell: plan mode only reads",
            "without write: plan mode only reads",
        ],
    ),
    (
        "no tools named: all that the parent has, but for the user and for children",
        Mode.AUTO,
        ANYTHING,
        {},
        "look note search shell write",
        Mode.AUTO,
        ["without ask_user: a child never talks to the user"],
    ),
    (
        "a call's tools go before the role's",
        Mode.AUTO,
        READER,
        {"tools": ("write",)},
        "write",
        Mode.AUTO,
        [],
    ),
    ("none at all can be asked for", Mode.AUTO, READER, {"tools": ()}, "", Mode.AUTO, []),
    (
        "a list of tools names the delegation tools that not every role needs",
        Mode.AUTO,
        MAKER,
        {"tools": ("look", "wait")},
        "look spawn_agent wait",
        Mode.AUTO,
        [],
    ),
    (
        "delegation cannot be had by naming its tools",
        Mode.AUTO,
        READER,
        {"tools": ("look", "spawn_agent")},
        "look",
        Mode.AUTO,
        ["without spawn_agent: reader has no right to delegate"],
    ),
    (
        "the user cannot be had by naming the tool",
        Mode.DANGEROUS,
        READER,
        {"tools": ("ask_user", "look")},
        "look",
        Mode.DANGEROUS,
        ["without ask_user: a child never talks to the user"],
    ),
]


@pytest.mark.parametrize(
    ("mode", "role", "spec", "tools", "childs", "notes"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_tools_and_mode(
    mode: Mode, role: Role, spec: dict[str, Any], tools: str, childs: Mode, notes: list[str]
) -> None:
    found = permitted(role, root(mode), **spec)
    grant = found.grant
    assert grant.allowed_tools == tuple(tools.split())
    assert grant.ask_tools == ()
    assert grant.mode is childs
    assert list(found.notes) == notes
    assert grant.network is Network.NONE


def test_a_tool_that_the_parent_lacks_is_denied_with_a_note() -> None:
    parent = root(Mode.AUTO, allowed_tools=("look", "spawn_agent"), ask_tools=())
    found = permitted(MAKER, parent)
    assert found.grant.allowed_tools == ("look", "spawn_agent")
    assert found.notes == ("without shell, write: the parent does not have it",)


def test_a_named_tool_that_the_set_up_lacks_is_denied_with_the_reason() -> None:
    found = permitted(READER, root(Mode.AUTO), tools=("look", "WebSearch", "web_fetch", "test"))
    assert found.grant.allowed_tools == ("look",)
    assert found.notes == (
        "without web_search: no search provider is set",
        "without web_fetch: no web_hosts are set",
        "without run_tests: there is no test command that agents may run here",
    )


def test_an_unknown_tool_is_refused() -> None:
    with pytest.raises(ContractError) as caught:
        permitted(READER, root(Mode.AUTO), tools=("fly",))
    assert str(caught.value) == (
        "Unknown tool 'fly'; there are: ask_user, look, note, search, shell, spawn_agent,"
        " wait, write."
    )


# The right to spawn


@pytest.mark.parametrize(
    ("depth", "mode", "may"),
    [(2, Mode.AUTO, True), (1, Mode.AUTO, False), (2, Mode.PLAN, False), (2, Mode.NORMAL, True)],
)
def test_a_child_may_spawn_where_role_depth_and_mode_allow(
    depth: int, mode: Mode, may: bool
) -> None:
    parent = root(Mode.AUTO, max_delegation_depth=depth)
    grant = permitted(MAKER, parent, mode=mode).grant
    assert grant.can_spawn_children is may
    assert grant.spawn_roles == (("reader",) if may else ())
    assert grant.max_delegation_depth == (depth - 1 if may else 0)
    assert ("spawn_agent" in grant.allowed_tools) is may


def test_a_child_spawns_only_roles_that_its_parent_may_spawn() -> None:
    parent = root(Mode.AUTO, spawn_roles=("maker",))
    grant = permitted(MAKER, parent).grant
    assert not grant.can_spawn_children
    assert "spawn_agent" not in grant.allowed_tools


def test_an_agent_without_the_right_cannot_spawn() -> None:
    parent = root(Mode.AUTO, can_spawn_children=False)
    with pytest.raises(ContractError, match="This agent may not delegate"):
        permitted(READER, parent)
    narrow_grant = root(Mode.AUTO, spawn_roles=("maker",))
    with pytest.raises(ContractError) as caught:
        permitted(READER, narrow_grant)
    assert str(caught.value) == "This agent may not spawn 'reader'; it may spawn: maker."


def test_delegation_tools_need_the_right_to_spawn() -> None:
    grant = root(Mode.AUTO, can_spawn_children=False)
    assert without_delegation(grant, EFFECTS).allowed_tools == (
        "ask_user",
        "look",
        "note",
        "search",
        "shell",
        "write",
    )
    assert without_delegation(root(Mode.AUTO), EFFECTS) == root(Mode.AUTO)


@pytest.mark.parametrize(
    ("mode", "freely", "asked"),
    [
        (Mode.PLAN, "ask_user look search", ""),
        (Mode.NORMAL, "ask_user look note search spawn_agent wait", "shell write"),
        (Mode.AUTO, "ask_user look note search shell spawn_agent wait write", ""),
        (Mode.DANGEROUS, "ask_user look note search shell spawn_agent wait write", ""),
    ],
)
def test_the_grant_of_a_root(mode: Mode, freely: str, asked: str) -> None:
    grant = root_grant(mode, EFFECTS, roles=ROLES, depth=2)
    assert grant.allowed_tools == tuple(freely.split())
    assert grant.ask_tools == tuple(asked.split())


# Scope


@pytest.mark.parametrize(
    ("parents", "roles", "spec", "inside", "outside"),
    [
        ((), (), {}, "anything/at.all", ""),
        ((), (), {"scope": ("src",)}, "src/a.py", "lib/a.py"),
        ((), (), {"write": ("src", "lib")}, "lib/a.py", "doc/a.md"),
        ((), (), {"write": ()}, "", "src/a.py"),
        ((), scope("tests"), {"scope": ("tests/unit",)}, "tests/unit/x.py", "tests/y.py"),
        (scope("src"), (), {}, "src/a.py", "lib/a.py"),
        (scope("src"), (), {"scope": ("lib",)}, "", "lib/a.py"),
        (scope("src"), scope("**/test_*"), {}, "src/test_a.py", "src/a.py"),
        ((), NOWHERE, {"write": ("src",)}, "", "src/a.py"),
    ],
)
def test_the_write_scope_is_an_intersection(
    parents: tuple[tuple[str, ...], ...],
    roles: tuple[tuple[str, ...], ...],
    spec: dict[str, Any],
    inside: str,
    outside: str,
) -> None:
    role = msgspec.structs.replace(MAKER, write_scope=roles)
    written = permitted(role, root(Mode.AUTO, write_scope=parents), **spec).grant.write_scope
    assert not inside or contains(written, inside)
    assert not outside or not contains(written, outside)


# And never wider


MODES = st.sampled_from(list(Mode))
NAMES = st.lists(st.sampled_from(ALL), unique=True).map(tuple)
SOME = st.none() | NAMES
GRANTS = st.builds(
    Grant,
    allowed_tools=NAMES,
    ask_tools=NAMES,
    mode=MODES,
    write_scope=st.sampled_from([(), NOWHERE, scope("src"), scope("src", "tests")]),
    can_spawn_children=st.just(True),
    spawn_roles=st.just(("any",)),
    max_delegation_depth=st.integers(1, 3),
)


@given(
    grant=GRANTS,
    role_tools=SOME,
    tools=SOME,
    role_mode=st.none() | MODES,
    mode=st.none() | MODES,
    spawns=st.sampled_from([(), ("any",), ("any", "other")]),
)
def test_no_child_is_wider_than_its_parent(
    grant: Grant,
    role_tools: tuple[str, ...] | None,
    tools: tuple[str, ...] | None,
    role_mode: Mode | None,
    mode: Mode | None,
    spawns: tuple[str, ...],
) -> None:
    role = Role(
        name="any",
        description="",
        instructions="",
        tools=role_tools,
        mode=role_mode,
        spawns=spawns,
    )
    child = permitted(role, grant, tools=tools, mode=mode).grant
    assert set(child.allowed_tools) <= {*grant.allowed_tools, *grant.ask_tools}
    assert child.ask_tools == ()
    assert child.mode.rank <= grant.mode.rank
    assert set(child.spawn_roles) <= set(grant.spawn_roles)
    assert child.max_delegation_depth < grant.max_delegation_depth
    assert "ask_user" not in child.allowed_tools
    asked = set(grant.ask_tools) & set(child.allowed_tools)
    assert not asked or child.mode in (Mode.AUTO, Mode.DANGEROUS)
    effects = {EFFECTS[name] for name in child.allowed_tools}
    assert child.mode is not Mode.PLAN or effects <= {Effect.READ}
    assert child.can_spawn_children or Effect.DELEGATE not in effects
    for path in ("src/a", "tests/a", "x"):
        assert contains(grant.write_scope, path) or not contains(child.write_scope, path)
    assert (
        role_tools is None
        or tools is not None
        or {n for n in child.allowed_tools if EFFECTS[n] is not Effect.DELEGATE} <= set(role_tools)
    )


# Tools of MCP servers

SERVED = {
    **EFFECTS,
    "mcp__git__log": Effect.READ,
    "mcp__git__push": Effect.EXTERNAL,
    "mcp__git__tag": Effect.EXTERNAL,
    "mcp__web__get": Effect.READ,
}


def served(role: Role, mode: Mode, /, **requested: Any) -> Permissions:
    grant = root_grant(mode, SERVED, roles=ROLES, depth=2)
    return child_permissions(role, RequestedPermissions(**requested), grant, SERVED)


def mcp_tools(found: Permissions) -> str:
    tools = found.grant.allowed_tools
    return " ".join(tool.removeprefix("mcp__") for tool in tools if tool.startswith("mcp__"))


def listing(*tools: str) -> Role:
    return msgspec.structs.replace(ANYTHING, tools=tools)


@pytest.mark.parametrize(
    ("role", "mode", "spec", "tools"),
    [
        (ANYTHING, Mode.AUTO, {}, "git__log git__push git__tag web__get"),
        (ANYTHING, Mode.NORMAL, {}, "git__log web__get"),
        (ANYTHING, Mode.AUTO, {"mode": Mode.PLAN}, "git__log web__get"),
        (ANYTHING, Mode.AUTO, {"scope": ("src",)}, "git__log web__get"),
        (ANYTHING, Mode.AUTO, {"write": ("**",)}, "git__log git__push git__tag web__get"),
        (ANYTHING, Mode.AUTO, {"write": ()}, "git__log web__get"),
        (ANYTHING, Mode.AUTO, {"directory": "/project/src"}, "git__log web__get"),
        (listing("look"), Mode.AUTO, {}, ""),
        (listing("look", "mcp__*"), Mode.AUTO, {}, "git__log git__push git__tag web__get"),
        (listing("look", "mcp:read"), Mode.AUTO, {}, "git__log web__get"),
        (listing("mcp__git__*"), Mode.AUTO, {}, "git__log git__push git__tag"),
        (listing("mcp__git"), Mode.AUTO, {}, "git__log git__push git__tag"),
        (listing("mcp__none__*"), Mode.AUTO, {}, ""),
        (listing("look"), Mode.AUTO, {"tools": ("mcp__git__p*",)}, "git__push"),
    ],
)
def test_mcp_tools(role: Role, mode: Mode, spec: dict[str, Any], tools: str) -> None:
    assert mcp_tools(served(role, mode, **spec)) == tools


def test_a_person_can_approve_what_needs_a_yes() -> None:
    parent = root(Mode.NORMAL)
    found = child_permissions(MAKER, RequestedPermissions(), parent, EFFECTS, Approvals(True))
    assert {"write", "shell"} <= {*found.grant.allowed_tools}
    assert (found.grant.mode, found.notes) == (Mode.NORMAL, ())
    assert found.workspace is WorkspaceKind.WORKTREE


def test_without_a_person_a_child_may_make_the_calls_that_rules_allow() -> None:
    rules = Rules(allow=(parse_rule("shell(pytest *)"),))
    found = child_permissions(
        MAKER, RequestedPermissions(), root(Mode.NORMAL), EFFECTS, Approvals(False, rules)
    )
    assert found.grant.ask_tools == ("shell",)
    assert "write" not in found.grant.allowed_tools
    assert found.notes == (yes("write"),)


def test_child_that_lists_no_tools_misses_none() -> None:
    assert COULD_NOT_WRITE not in permitted(ANYTHING, root(Mode.NORMAL)).notes


def test_commands_get_the_network_that_is_asked_for_and_the_parent_has() -> None:
    auto = root(Mode.AUTO)
    assert permitted(MAKER, auto).grant.network is Network.NONE
    assert permitted(MAKER, auto, network=Network.ALL).grant.network is Network.ALL
    narrow = root(Mode.AUTO, network=Network.LOOPBACK)
    assert permitted(MAKER, narrow, network=Network.ALL).grant.network is Network.LOOPBACK


def test_denied_tools_of_a_server_are_one_note() -> None:
    why = "it can act outside the scope of this child"
    assert f"without mcp__git__push and 1 more of git: {why}" in (
        served(ANYTHING, Mode.AUTO, scope=("src",)).notes
    )
    named = listing("mcp__git__push", "mcp__*")
    assert served(named, Mode.AUTO, scope=("src",)).notes == (f"without mcp__git__push: {why}",)
    # A pattern for all servers names no tool.
    assert served(listing("mcp__*"), Mode.AUTO, scope=("src",)).notes == ()


def test_a_parent_without_the_tool_cannot_give_it() -> None:
    parent = Grant(
        allowed_tools=("look",),
        can_spawn_children=True,
        spawn_roles=ROLES,
        max_delegation_depth=2,
        mode=Mode.AUTO,
    )
    role = listing("mcp__git__push")
    found = child_permissions(role, RequestedPermissions(), parent, SERVED)
    assert mcp_tools(found) == ""
    assert found.notes == ("without mcp__git__push: the parent does not have it",)


def test_an_unknown_pattern_is_refused() -> None:
    with pytest.raises(ContractError, match=r"Unknown tool 'mcp__none__\*'; there are: ask_user"):
        served(ANYTHING, Mode.AUTO, tools=("mcp__none__*",))
    assert mcp_tools(served(ANYTHING, Mode.AUTO, tools=("mcp:read",))) == "git__log web__get"


@pytest.mark.parametrize(
    ("of_role", "requested", "given"),
    [
        (None, None, msgspec.UNSET),
        (("deploy", "review"), None, ("deploy", "review")),
        (None, ("review",), ("review",)),
        (("deploy", "review"), ("review", "translate"), ("review",)),
        (("deploy",), (), ()),
    ],
)
def test_skills_are_those_that_the_role_and_the_request_name(
    of_role: tuple[str, ...] | None, requested: tuple[str, ...] | None, given: object
) -> None:
    role = msgspec.structs.replace(READER, skills=of_role)
    assert permitted(role, root(Mode.AUTO), skills=requested).grant.skills == given


@pytest.mark.parametrize(
    ("of_role", "requested", "given"),
    [
        (None, None, ("a.example", "b.example")),
        (("b.example", "c.example"), None, ("b.example",)),
        (None, ("a.example",), ("a.example",)),
        (("a.example", "b.example"), ("b.example",), ("b.example",)),
        (("a.example",), ("b.example",), msgspec.UNSET),
        ((), None, msgspec.UNSET),
    ],
)
def test_web_hosts_are_those_of_the_parent_that_the_role_and_the_request_name(
    of_role: tuple[str, ...] | None, requested: tuple[str, ...] | None, given: object
) -> None:
    effects = EFFECTS | {"web_fetch": Effect.READ}
    hosts = ("a.example", "b.example")
    parent = root_grant(Mode.AUTO, effects, roles=ROLES, depth=2, web_hosts=hosts)
    role = msgspec.structs.replace(ANYTHING, web_hosts=of_role)
    wanted = RequestedPermissions(web_hosts=requested)
    found = child_permissions(role, wanted, parent, effects)
    assert found.grant.web_hosts == given
    has_tool = "web_fetch" in found.grant.allowed_tools
    assert has_tool is (given is not msgspec.UNSET)
    why = "without web_fetch: its web_hosts and its parent's have no host in common"
    assert (why in found.notes) is not has_tool


def test_a_child_without_the_tool_has_no_web_hosts() -> None:
    effects = EFFECTS | {"web_fetch": Effect.READ}
    parent = root_grant(Mode.AUTO, effects, roles=ROLES, depth=2, web_hosts=("a.example",))
    found = child_permissions(READER, RequestedPermissions(), parent, effects)
    assert found.grant.web_hosts is msgspec.UNSET
