"""A run does the same, whether its children run in its process or on hosts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import retinue
from retinue.models.scripted.model import call, calls, say
from retinue.runtime.runtime import Runtime
from retinue.testing.server import failing
from tests.runners.ray_nodes import RAY

Work = Callable[[Runtime], Awaitable[str]]

READ = [call("list_dir", path="."), call("read_file", path="a.txt"), say("It says hello.")]


def fan_out(*tasks: Any, **options: Any) -> Work:
    async def work(rt: Runtime) -> str:
        results = await rt.fan_out(tasks, max_concurrent=1, **options)
        return results[0].run_id

    return work


def write(name: str) -> list[Any]:
    """Write a file, add a line to it by a command, and end."""
    command = f"echo more >> {name}"
    return [
        call("write_file", path=name, content="one\n"),
        call("run_command", command=command),
        say("Written."),
    ]


@pytest.fixture(params=["local", "other disk", pytest.param("ray", marks=RAY)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(kind: str, request: pytest.FixtureRequest) -> str:
    """A host process of this machine, or the hosts on two Ray nodes."""
    if kind == "other disk":
        request.getfixturevalue("other_disk")()
    return "local:1" if kind != "ray" else str(request.getfixturevalue("nodes").address)


@pytest.fixture
def same(course: Callable[..., Any], kind: str, cluster: str) -> Callable[..., Any]:
    """Asserts that both courses are equal, and returns that of the hosts."""

    async def check(work: Work, script: Any, **options: Any) -> Any:
        local, files = await course(work, script, None, **options)
        hosted, hosted_files = await course(work, script, cluster, **options)
        assert hosted.lines == local.lines
        assert hosted_files == files
        assert not local.hosts
        assert set(hosted.hosts) == {"ray" if kind == "ray" else "local"}
        return hosted, files

    return check


async def test_readers(same: Any) -> None:
    hosted, _ = await same(fan_out(("researcher", "Read one."), ("researcher", "Read two.")), {
        "Read": READ,
    })  # fmt: skip
    assert len(hosted.hosts) == 2


async def test_writers_and_their_commands(same: Any) -> None:
    script = {"Write b.": write("b.txt"), "Write c.": write("c.txt")}
    hosted, files = await same(
        fan_out(("executor", "Write b."), ("executor", "Write c.")), script, unsafe_no_sandbox=True
    )
    assert len(hosted.hosts) == 2
    assert (files["b.txt"], files["c.txt"]) == ("one\nmore\n", "one\nmore\n")


async def test_children_of_a_child_on_a_host(same: Any) -> None:
    script = {
        "Write b.": [
            call("write_file", path="b.txt", content="one\n"),
            call("spawn_agent", task="Look at it.", role="reviewer"),
            call("spawn_agent", task="Look again.", role="reviewer", background=True),
            call("spawn_await"),
            say("Reviewed."),
        ],
        "Look": [call("read_file", path="b.txt"), say("It is fine.")],
    }
    hosted, files = await same(fan_out(("executor", "Write b.")), script, shell=False)
    assert len(hosted.hosts) == 3
    assert files["b.txt"] == "one\n"


async def test_several_children_for_one_call(same: Any) -> None:
    steps = [
        {"task": "Look at a.", "role": "reviewer"},
        {"task": "Look at b.", "role": "reviewer", "depends_on": 0},
    ]
    script = {
        "Write b.": [
            call("write_file", path="b.txt", content="one\n"),
            call("delegate_task", plan="Review it", subtasks=steps),
            say("Reviewed."),
        ],
        "Look": [say("It is fine.")],
    }  # fmt: skip
    hosted, _ = await same(fan_out(("executor", "Write b.")), script, shell=False)
    assert len(hosted.hosts) == 3


async def test_memory(same: Any) -> None:
    script = {
        "Keep": [call("remember", text="a is hello"), call("recall", query="hello"), say("Ok.")]
    }
    hosted, _ = await same(fan_out(("researcher", "Keep it.")), script)
    kept = [event.fact for event in hosted.events if event.type == "tool.finished"]
    assert "a is hello" in kept[1].content


async def test_a_check_that_fails_is_corrected(same: Any) -> None:
    script = {"Write b.": [
        call("write_file", path="b.txt", content="bad\n"), say("Done."),
        call("write_file", path="b.txt", content="good\n"), say("Now."),
    ]}  # fmt: skip
    task = retinue.Task("executor", "Write b.", checks=("grep -q good b.txt",))
    hosted, files = await same(fan_out(task), script, unsafe_no_sandbox=True)
    assert files["b.txt"] == "good\n"
    assert len(hosted.hosts) == 1


async def test_an_answer_that_does_not_fit_is_corrected(same: Any) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    script = {"Count": [say("many"), say('{"n": 3}')]}
    hosted, _ = await same(fan_out(("researcher", "Count."), output=schema), script)
    assert len(hosted.hosts) == 1


async def test_a_failed_call_is_retried(same: Any) -> None:
    script = {"Read": [failing(500, "Broken."), say("Read.")]}
    hosted, _ = await same(fan_out(("researcher", "Read one.")), script)
    assert [e.type for e in hosted.events].count("model.failed") == 1


async def test_a_limit_of_the_run_holds(same: Any) -> None:
    limits = retinue.Limits(max_tokens=2_500)
    script = {"Read": [calls(*[call("read_file", path="a.txt")] * 3)] * 20 + [say("Read.")]}
    tasks = [("researcher", f"Read {n}.") for n in range(3)]
    hosted, _ = await same(fan_out(*tasks), script, limits=limits)
    state = retinue.fold(hosted.events)
    assert 0 < state.usage.tokens <= 2_500
    statuses = [agent.status for agent in state.agents.values() if agent.parent_id]
    assert retinue.Status.BUDGET_EXCEEDED in statuses


async def test_a_person_is_asked(same: Any) -> None:
    asked: list[str] = []

    async def approve(request: retinue.ApprovalRequest) -> bool | retinue.Refusal:
        asked.append(request.tool)
        return True if len(asked) % 2 else retinue.Refusal("Enough.")

    remove = [call("run_command", command=f"rm -r {name}") for name in ("x", "y")]
    script = {"Remove": [*remove, say("Done.")]}
    hosted, _ = await same(
        fan_out(("executor", "Remove x.")),
        script,
        approve=approve,
        unsafe_no_sandbox=True,
    )
    assert asked == ["run_command"] * 4
    decided = [event for event in hosted.events if event.type == "approval.decided"]
    requested = [event for event in hosted.events if event.type == "approval.requested"]
    assert [event.fact.request for event in decided] == [event.seq for event in requested]
    root = retinue.fold(hosted.events).root
    assert root is not None
    assert not root.questions


async def test_a_model_that_leads_the_run_has_its_children_on_hosts(same: Any) -> None:
    async def work(rt: Runtime) -> str:
        return (await rt.run("Lead.")).id

    script = {
        "Read": READ,
        "Lead.": [
            calls(*(call("spawn_agent", task=f"Read {n}.", role="researcher") for n in "ab")),
            call("spawn_agent", task="Read c.", role="researcher", background=True),
            call("spawn_await", job_ids="*"),
            say("All say hello."),
        ],
    }
    hosted, _ = await same(work, script)
    assert len(hosted.hosts) == 3


async def test_a_plan(same: Any) -> None:
    steps = [
        {"name": "look", "role": "researcher", "task": "Read it."},
        {
            "name": "write", "role": "executor", "task": "Write b.", "depends_on": ["look"],
            "writes": ["b.txt"], "checks": ["grep -q more b.txt"],
        },
        # After `write`: whether checks run again depends on what others have merged meanwhile.
        {
            "name": "other", "role": "executor", "task": "Write c.", "depends_on": ["write"],
            "writes": ["c.txt"],
        },
    ]  # fmt: skip

    async def work(rt: Runtime) -> str:
        return (await rt.execute({"goal": "Write", "steps": steps})).run_id

    script = {"Write b.": write("b.txt"), "Write c.": write("c.txt"), "Read": READ}
    hosted, files = await same(work, script, unsafe_no_sandbox=True)
    assert len(hosted.hosts) == 3
    assert (files["b.txt"], files["c.txt"]) == ("one\nmore\n", "one\nmore\n")


async def test_a_race(same: Any) -> None:
    candidates: list[Any] = [{"system_prompt": f"Be {word}."} for word in ("brief", "long")]

    async def work(rt: Runtime) -> str:
        race = await rt.race(
            "executor", "Write b.", candidates, checks=("grep -q more b.txt",), max_concurrent=1
        )
        return race.run_id

    long = [call("write_file", path="b.txt", content="one\ntwo\nmore\n"), say("Written.")]
    script = {"Be brief.": write("b.txt"), "Be long.": long}
    hosted, files = await same(work, script, unsafe_no_sandbox=True)
    assert len(hosted.hosts) == 2
    assert files["b.txt"] == "one\nmore\n"
