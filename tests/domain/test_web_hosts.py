"""Patterns of hosts: an intersection means exactly the hosts that both mean."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.grant import Grant, intersect_grants
from retinue.domain.web_hosts import allows_host, canonical_hosts, intersect_hosts, web_host
from retinue.errors import ConfigError

labels = st.sampled_from(["a", "b", "c"])
names = st.lists(labels, min_size=1, max_size=4).map(".".join)
ports = st.sampled_from([80, 443, 8080])
patterns = st.lists(
    st.builds(
        lambda name, port: f"{name}{port}",
        st.just("*") | names | names.map("*.{}".format),
        st.sampled_from(["", ":8080", ":80"]),
    ),
    max_size=4,
).map(tuple)


@given(patterns, patterns, names, ports)
def test_an_intersection_means_what_both_mean(
    a: tuple[str, ...], b: tuple[str, ...], host: str, port: int
) -> None:
    both = intersect_hosts(canonical_hosts(a), canonical_hosts(b))
    # A pattern without a port and one with port 80 share port 80 and have no common pattern: the
    # intersection may mean less, and never more.
    if allows_host(both, host, port):
        assert allows_host(a, host, port)
        assert allows_host(b, host, port)
    if all(":" not in pattern for pattern in a + b):
        expected = allows_host(a, host, port) and allows_host(b, host, port)
        assert allows_host(both, host, port) == expected
    assert both == intersect_hosts(b, a) == canonical_hosts(both)


@given(patterns, names, ports)
def test_canonical_patterns_mean_the_same(a: tuple[str, ...], host: str, port: int) -> None:
    assert allows_host(canonical_hosts(a), host, port) == allows_host(a, host, port)


@given(patterns, patterns)
def test_a_child_never_has_more_hosts_than_its_parent(
    a: tuple[str, ...], b: tuple[str, ...]
) -> None:
    child = intersect_grants(Grant(web_hosts=a), Grant(web_hosts=b))
    hosts = child.web_hosts or ()
    assert intersect_hosts(hosts, canonical_hosts(a)) == hosts
    assert intersect_hosts(hosts, canonical_hosts(b)) == hosts


def test_a_grant_without_hosts_has_the_bytes_of_earlier_versions() -> None:
    assert b"web_hosts" not in msgspec.json.encode(Grant())
    assert b"web_hosts" not in msgspec.json.encode(Grant(web_hosts=()))
    grant = Grant(web_hosts=("b.example", "A.example", "b.example"))
    assert msgspec.json.decode(msgspec.json.encode(grant), type=Grant) == grant
    assert grant.web_hosts == ("a.example", "b.example")


@pytest.mark.parametrize(
    ("pattern", "host", "allowed"),
    [
        ("docs.python.org", "docs.python.org", True),
        ("docs.python.org", "python.org", False),
        ("docs.python.org", "docs.python.org.evil.example", False),
        ("*.readthedocs.io", "a.b.readthedocs.io", True),
        ("*.readthedocs.io", "readthedocs.io", False),
        ("*.readthedocs.io", "evilreadthedocs.io", False),
        ("*", "anything.example", True),
    ],
)
def test_what_a_pattern_means(pattern: str, host: str, allowed: bool) -> None:
    assert allows_host((pattern,), host, 443) is allowed
    assert not allows_host((pattern,), host, 22)


@pytest.mark.parametrize("text", ["https://a.example", "a.example/x", "a b", "", "a*.b", "*a"])
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(ConfigError, match="is no host; write a name such as"):
        canonical_hosts([text])


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("https://Docs.Python.org./3/", "docs.python.org"),
        ("docs.python.org/3", "docs.python.org"),
        ("http://a.example:8080/x", "a.example:8080"),
        ("http://[::1]:80/", "[::1]"),
        ("http://[", ""),
        ("https://x:y", ""),
    ],
)
def test_host_of_an_address(address: str, host: str) -> None:
    assert web_host(address) == host
