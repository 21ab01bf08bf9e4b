from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.grant import Access, Grant, Mode, Network, intersect_grants
from retinue.domain.scope import ANYWHERE, NOWHERE, Scope, contains, scope

tools = st.lists(st.sampled_from(["read", "write", "shell", "web"]), max_size=5).map(tuple)
roles = st.lists(st.sampled_from(["coder", "tester", "scout"]), max_size=3).map(tuple)
globs = st.sampled_from(["src", "src/", "**/*.py", "docs/*", "**", "./tests", "src/a.py"])
scopes: st.SearchStrategy[Scope] = st.lists(st.lists(globs, max_size=3).map(tuple), max_size=2).map(
    tuple
)
hosts = st.lists(st.sampled_from(["example.org", "example.com", "example.net"]), max_size=3)
SKILLS = ("deploy", "review", "translate")
skills = st.just(msgspec.UNSET) | st.lists(st.sampled_from(SKILLS), max_size=3).map(tuple)
grants = st.builds(
    Grant,
    allowed_tools=tools,
    ask_tools=tools,
    mode=st.sampled_from(Mode),
    write_scope=scopes,
    network=st.sampled_from(Network),
    can_spawn_children=st.booleans(),
    spawn_roles=roles,
    max_delegation_depth=st.integers(0, 3),
    web_hosts=hosts.map(tuple),
    skills=skills,
)
paths = st.sampled_from(
    ["src", "src/a.py", "src/b/c.py", "src/x.md", "docs/a", "docs/a/b", "tests/t.py", "z", "a.py"]
)


def test_a_grant_gives_nothing_that_it_does_not_name() -> None:
    grant = Grant(allowed_tools=("read",))
    assert (grant.mode, grant.network) == (Mode.NORMAL, Network.NONE)
    assert (grant.can_spawn_children, grant.spawn_roles, grant.max_delegation_depth) == (
        False,
        (),
        0,
    )
    assert grant.ask_tools == ()
    assert grant.web_hosts is msgspec.UNSET


def assert_no_wider(narrowed: Grant, than: Grant, path: str) -> None:
    assert set(narrowed.allowed_tools) <= set(than.allowed_tools)
    offered = {*narrowed.allowed_tools, *narrowed.ask_tools}
    assert offered <= {*than.allowed_tools, *than.ask_tools}
    assert narrowed.mode.rank <= than.mode.rank
    assert narrowed.network.rank <= than.network.rank
    assert contains(narrowed.write_scope, path) <= contains(than.write_scope, path)
    assert narrowed.can_spawn_children <= than.can_spawn_children
    assert set(narrowed.spawn_roles) <= set(than.spawn_roles)
    assert narrowed.max_delegation_depth <= than.max_delegation_depth
    assert set(narrowed.web_hosts or ()) <= set(than.web_hosts or ())
    assert all(narrowed.may_load(skill) <= than.may_load(skill) for skill in SKILLS)


@given(grants, grants, paths)
def test_an_intersection_is_never_wider_than_either_side(a: Grant, b: Grant, path: str) -> None:
    assert_no_wider(intersect_grants(a, b), a, path)
    assert_no_wider(intersect_grants(a, b), b, path)


@given(grants, grants, paths)
def test_an_intersection_keeps_what_both_have(a: Grant, b: Grant, path: str) -> None:
    both = intersect_grants(a, b)

    assert set(both.allowed_tools) == set(a.allowed_tools) & set(b.allowed_tools)
    assert {*both.allowed_tools, *both.ask_tools} == {*a.allowed_tools, *a.ask_tools} & {
        *b.allowed_tools,
        *b.ask_tools,
    }
    assert both.mode in (a.mode, b.mode)
    assert both.network in (a.network, b.network)
    assert contains(both.write_scope, path) == (
        contains(a.write_scope, path) and contains(b.write_scope, path)
    )
    common = set(a.spawn_roles) & set(b.spawn_roles)
    assert both.can_spawn_children == bool(common)
    assert set(both.spawn_roles) == common
    if common:
        depths = (a.max_delegation_depth, b.max_delegation_depth)
        assert both.max_delegation_depth == min(depths)
    assert set(both.web_hosts or ()) == set(a.web_hosts or ()) & set(b.web_hosts or ())
    for skill in SKILLS:
        assert both.may_load(skill) == (a.may_load(skill) and b.may_load(skill))


@given(grants, grants, grants)
def test_intersection_is_commutative_and_associative(a: Grant, b: Grant, c: Grant) -> None:
    assert intersect_grants(a, b) == intersect_grants(b, a)
    assert intersect_grants(intersect_grants(a, b), c) == intersect_grants(
        a, intersect_grants(b, c)
    )


@given(grants, grants)
def test_intersection_is_idempotent(a: Grant, b: Grant) -> None:
    assert intersect_grants(a, a) == a
    assert intersect_grants(intersect_grants(a, b), b) == intersect_grants(a, b)


@given(grants)
def test_a_grant_survives_its_json(grant: Grant) -> None:
    data = msgspec.json.encode(grant)

    assert msgspec.json.decode(data, type=Grant) == grant
    assert msgspec.json.encode(msgspec.json.decode(data, type=Grant)) == data


def test_an_allowed_tool_is_not_an_ask_tool() -> None:
    grant = Grant(allowed_tools=("write", "read", "read"), ask_tools=("write", "shell"))

    assert grant.allowed_tools == ("read", "write")
    assert grant.ask_tools == ("shell",)


def test_equal_permissions_are_written_in_one_order() -> None:
    grant = Grant(
        can_spawn_children=True,
        max_delegation_depth=1,
        spawn_roles=("tester", "coder", "tester"),
        skills=("review", "deploy", "review"),
        web_hosts=("example.org", "example.com", "example.org"),
    )
    assert (grant.spawn_roles, grant.skills) == (("coder", "tester"), ("deploy", "review"))
    assert grant.web_hosts == ("example.com", "example.org")


def test_allowed_and_ask_intersect_to_ask() -> None:
    both = intersect_grants(Grant(allowed_tools=("shell",)), Grant(ask_tools=("shell",)))

    assert (both.allowed_tools, both.ask_tools) == ((), ("shell",))


def test_only_named_skills_are_loaded() -> None:
    assert Grant().may_load("deploy")
    assert Grant(skills=("deploy",)).may_load("deploy")
    assert not Grant(skills=("deploy",)).may_load("review")
    assert not Grant(skills=()).may_load("deploy")


def test_scopes_are_canonical() -> None:
    assert Grant(write_scope=(("./src/", "src/**"),)).write_scope == scope("src/")
    assert Grant(write_scope=(("src", ""),)).write_scope == ANYWHERE


@pytest.mark.parametrize(
    ("can", "roles", "depth"),
    [
        (False, ("coder",), 2),
        (True, (), 2),
        (True, ("coder",), 0),
        (True, ("coder",), -1),
    ],
)
def test_impossible_delegation_is_normalized(can: bool, roles: tuple[str, ...], depth: int) -> None:
    grant = Grant(can_spawn_children=can, spawn_roles=roles, max_delegation_depth=depth)

    assert grant == Grant()


def test_delegation_is_off_unless_given() -> None:
    grant = Grant()

    assert not grant.can_spawn_children
    assert grant.max_delegation_depth == 0
    assert grant.network is Network.NONE


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="can_fly"):
        msgspec.json.decode(b'{"can_fly": true}', type=Grant)


def test_a_grant_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Grant().mode = Mode.DANGEROUS  # type: ignore[misc]


def test_modes_and_networks_are_ranked_from_least_to_most() -> None:
    assert sorted(Mode, key=lambda m: m.rank) == ["plan", "normal", "auto", "dangerous"]
    assert sorted(Network, key=lambda n: n.rank) == ["none", "loopback", "all"]


@pytest.mark.parametrize(
    ("write_scope", "network", "told"),
    [
        (ANYWHERE, Network.NONE, "writes anywhere in the workspace, no network"),
        (NOWHERE, Network.LOOPBACK, "writes nothing, its own loopback"),
        (scope("src", "docs"), Network.ALL, "writes docs, src, full network"),
    ],
)
def test_access_in_words(write_scope: Scope, network: Network, told: str) -> None:
    assert str(Access(root="/project", write_scope=write_scope, network=network)) == told
