"""Which hosts have room for an agent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from retinue.runtime.placement.host import Host
from retinue.runtime.placement.host_choice import Room


def host(**resources: float) -> Host:
    return cast("Host", SimpleNamespace(name="ray-1@b", resources=resources))


GPU = Room(needs={"tester": {"GPU": 1, "disk": 0.5}, "executor": {"GPU": 0.1}})


@pytest.mark.parametrize(
    ("has", "why"),
    [
        ({}, "ray-1@b has no GPU"),
        ({"GPU": 0.5, "disk": 1}, "ray-1@b has 0.5 GPU"),
        ({"GPU": 2}, "ray-1@b has no disk"),
        ({"GPU": 1, "disk": 0.5}, ""),
    ],
)
def test_a_host_must_have_what_the_role_needs(has: dict[str, float], why: str) -> None:
    assert GPU.why_never("tester", host(**has)) == why
    assert GPU.why_never("researcher", host(**has)) == ""


def test_agents_take_resources_while_they_are_at_work() -> None:
    two = host(GPU=2, disk=9)
    assert GPU.why_not_now("tester", two, ["tester", "researcher"]) == ""
    assert GPU.why_not_now("tester", two, ["tester", "executor"]) == "ray-1@b has no GPU free"
    assert GPU.why_not_now("researcher", two, ["tester", "tester"]) == ""


def test_parts_of_a_resource_add_up_to_the_whole() -> None:
    assert GPU.why_not_now("executor", host(GPU=1), ["executor"] * 9) == ""
    assert GPU.why_not_now("executor", host(GPU=1), ["executor"] * 10) == "ray-1@b has no GPU free"


def test_a_host_is_full() -> None:
    room = Room(children=2)
    assert room.why_not_now("tester", host(), ["tester"]) == ""
    assert room.why_not_now("tester", host(), ["tester", "executor"]) == "ray-1@b is full"
