"""One server: shared, restarted, given up, ended; against a program with every fault."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from retinue.domain.mcp_server import McpServerSpec, Transport
from retinue.domain.messages import Effect
from retinue.domain.reach import Reach
from retinue.domain.scope import NOWHERE
from retinue.errors import ToolFailure
from retinue.ports.tool import ToolContext
from retinue.ports.tool_outcome import ToolOutcome
from retinue.testing.clock import FakeClock
from retinue.tools.mcp.server import BACKOFF_S, MAX_FAILURES
from retinue.tools.mcp.servers import McpServers
from retinue.tools.mcp.tool import ServerTool
from retinue.workspace.directory import DirectoryWorkspace

HOLDER = Path(__file__).parent / "programs" / "holder.py"
Faulty = Callable[..., McpServerSpec]
Serve = Callable[..., AbstractAsyncContextManager[McpServers]]


@pytest.fixture
def ctx(tmp_path: Path) -> ToolContext:
    return ToolContext(
        workspace=DirectoryWorkspace(str(tmp_path)),
        sandbox=None,
        reach=Reach(root="/", write_scope=NOWHERE),
        agent_id="a1",
    )


async def tools_of(servers: McpServers) -> dict[str, ServerTool]:
    return {tool.listed.name: tool for one in await servers.list_tools() for tool in one.tools}


def inside(outcome: ToolOutcome) -> str:
    """What the server said, without the frame around it."""
    lines = outcome.content.split("\n")
    assert lines[0].startswith("<untrusted-")
    assert lines[-1].startswith("</untrusted-")
    return "\n".join(lines[1:-1])


def starts(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what another process does, which has no way to tell us."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


async def test_a_call_is_answered_and_marked_as_somebody_elses_words(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        outcome = await tools["echo"].run({"text": "hello"}, ctx)
    assert outcome.ok
    assert outcome.content == (
        '<untrusted-2cf24dba from="MCP server faulty">\nhello\n</untrusted-2cf24dba>'
    )


async def test_one_process_serves_fifty_at_once(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    log = tmp_path / "starts"
    async with serve(faulty("--starts", str(log))) as servers:
        tools = await tools_of(servers)
        calls = (tools["echo"].run({"text": str(n)}, ctx) for n in range(50))
        answers = await asyncio.gather(*calls)
        assert [inside(answer) for answer in answers] == [str(n) for n in range(50)]
        (pid,) = starts(log)
        assert is_alive(pid)
    assert not is_alive(pid)


async def test_a_known_listing_starts_nothing_until_a_call(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    log = tmp_path / "starts"
    server = faulty("--starts", str(log))
    async with serve(server) as servers:
        first = await servers.list_tools()
    assert len(starts(log)) == 1
    async with serve(server) as servers:
        (one,) = await servers.list_tools()
        assert [t.spec for t in one.tools] == [t.spec for t in first[0].tools]
        assert len(starts(log)) == 1
        await one.tools[0].run({}, ctx)
        assert len(starts(log)) == 2


async def test_a_listing_is_asked_for_again_when_it_is_old_or_the_program_has_changed(
    faulty: Faulty, serve: Serve, tmp_path: Path
) -> None:
    log, clock = tmp_path / "starts", FakeClock()
    server = faulty("--starts", str(log))
    for seconds, count in ((0, 1), (3_000, 1), (601, 2)):
        clock.advance(seconds)
        async with serve(server, clock=clock) as servers:
            await servers.list_tools()
        assert len(starts(log)) == count
    os.utime(server.command[3])
    async with serve(server, clock=clock) as servers:
        await servers.list_tools()
    assert len(starts(log)) == 3
    async with serve(server, clock=clock) as servers:
        await servers.list_tools(refresh=True)
    assert len(starts(log)) == 4


async def test_a_list_that_changes_is_for_the_next_time(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    server = faulty()
    async with serve(server) as servers:
        tools = await tools_of(servers)
        assert "new" not in tools
        await tools["change"].run({}, ctx)
        kept = next((tmp_path / "cache").iterdir())
        await until(lambda: b'"new"' in kept.read_bytes())
    async with serve(server) as servers:
        assert "new" in await tools_of(servers)


async def test_after_a_death_it_is_started_again(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    log = tmp_path / "starts"
    clock = FakeClock()
    async with serve(faulty("--starts", str(log)), clock=clock) as servers:
        tools = await tools_of(servers)
        with pytest.raises(ToolFailure) as failure:
            await tools["die"].run({}, ctx)
        assert str(failure.value) == (
            "The MCP server faulty was lost during this call: it ended with exit code 7."
            " The call may have taken effect; check before you call it again."
        )
        again = asyncio.create_task(tools["act"].run({"text": "back"}, ctx))
        await clock.asleep(BACKOFF_S)
        clock.advance(BACKOFF_S)
        assert inside(await again) == "back"
        first, second = starts(log)
        assert not is_alive(first)
        assert is_alive(second)


async def test_what_is_said_to_only_read_is_called_again_by_itself(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    clock = FakeClock()
    async with serve(faulty(), clock=clock) as servers:
        tools = await tools_of(servers)
        call = asyncio.create_task(tools["die_once"].run({"text": str(tmp_path / "died")}, ctx))
        await clock.asleep(BACKOFF_S)
        clock.advance(BACKOFF_S)
        assert inside(await call) == "alive again"


async def test_it_is_given_up_after_some_deaths(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    log, clock = tmp_path / "starts", FakeClock()
    async with serve(faulty("--starts", str(log)), clock=clock) as servers:
        tools = await tools_of(servers)
        for failures in range(MAX_FAILURES):
            call = asyncio.create_task(tools["die"].run({}, ctx))
            if failures:
                wait = BACKOFF_S * 2 ** (failures - 1)
                await clock.asleep(wait)
                clock.advance(wait)
            with pytest.raises(ToolFailure, match="was lost during this call"):
                await call
        with pytest.raises(ToolFailure) as failure:
            await tools["act"].run({}, ctx)
        assert str(failure.value) == (
            "The MCP server faulty failed 4 times and is not started again; the last time it ended"
            " with exit code 7. Continue without it."
        )
        assert len(starts(log)) == MAX_FAILURES


async def test_a_death_after_a_long_life_is_forgiven(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    clock = FakeClock()
    async with serve(faulty(), clock=clock) as servers:
        tools = await tools_of(servers)
        for number in range(2 * MAX_FAILURES):
            call = asyncio.create_task(tools["pid"].run({}, ctx))
            if number:
                await clock.asleep(BACKOFF_S)
                clock.advance(BACKOFF_S)
            await call
            clock.advance(100)
            with pytest.raises(ToolFailure):
                await tools["die"].run({}, ctx)


@pytest.mark.parametrize(
    ("faults", "more", "problem"),
    [
        (["--die-at-start"], {}, "ended with exit code 1: I cannot go on: no licence"),
        (["--mute"], {"start_timeout_s": 0.5}, "was not ready within 0.5 s"),
        ([], {"command": ("no-such", "x")}, "cannot be started: there is no command 'no-such'"),
        ([], {"command": ("./server",)}, "cannot be started: there is no command './server'"),
        ([], {"directory": "/nonexistent"}, "cannot be started: No such file or directory"),
        ([], {"command": ("cat",)}, "refused: Method not found"),
    ],
    ids=["dies", "mute", "missing", "relative", "folder", "echoes"],
)  # fmt: skip
async def test_one_that_cannot_be_used_is_told_with_the_reason(
    faulty: Faulty, serve: Serve, faults: list[str], more: dict[str, object], problem: str
) -> None:
    server = msgspec.structs.replace(faulty(*faults), **more)
    async with serve(server) as servers:
        (one,) = await servers.list_tools()
    assert one.tools == ()
    assert problem in one.problem
    assert one.note == f"without the MCP server faulty: it {one.problem}"


async def test_a_slow_start_is_waited_for_by_everybody_at_once(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    log, gate = tmp_path / "starts", tmp_path / "gate"
    async with serve(faulty("--starts", str(log), "--wait-for", str(gate))) as servers:
        asking = [asyncio.create_task(tools_of(servers)) for _ in range(3)]
        await until(lambda: bool(starts(log)))
        asking[0].cancel()
        gate.touch()
        assert await asking[1] is not None
        assert (await asking[2]).keys() == asking[1].result().keys()
        assert len(starts(log)) == 1


async def test_a_call_has_a_time_limit_of_its_own(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty(timeout_s=0.3)) as servers:
        tools = await tools_of(servers)
        with pytest.raises(ToolFailure) as failure:
            await tools["hang"].run({}, ctx)
        assert str(failure.value) == (
            "The MCP server faulty did not answer within 0.3 s. The call may have taken effect;"
            " check before you call it again."
        )
        # It is still there, and so is the connection.
        assert inside(await tools["act"].run({"text": "on"}, ctx)) == "on"


async def test_who_reports_progress_may_take_longer(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty(timeout_s=2)) as servers:
        tools = await tools_of(servers)
        # 22 steps of a tenth of a second: longer than the limit, and never silent for it.
        assert inside(await tools["progress"].run({"text": "22"}, ctx)) == "done"


async def test_a_cancelled_call_leaves_the_server_to_the_others(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        pid = inside(await tools["pid"].run({}, ctx))
        hanging = asyncio.create_task(tools["hang"].run({}, ctx))
        await tools["act"].run({}, ctx)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert inside(await tools["pid"].run({}, ctx)) == pid


async def test_what_is_no_message_goes_to_the_log(
    faulty: Faulty,
    serve: Serve,
    ctx: ToolContext,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        assert inside(await tools["garbage"].run({}, ctx)) == "after the garbage"
    log = tmp_path / "logs" / "faulty.log"
    assert "Traceback: not JSON" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    assert capfd.readouterr() == ("", "")


async def test_half_an_emoji_does_not_cost_an_answer(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        assert inside(await tools["half"].run({}, ctx)) == "A feather: ?"


async def test_one_that_prints_without_end_is_not_listened_to_for_ever(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        assert inside(await tools["rubbish"].run({"text": "100"}, ctx)) == "after the rubbish"
        why = "lost during this call: it printed 8,454,144 bytes that are not messages"
        with pytest.raises(ToolFailure, match=why):
            await tools["rubbish"].run({"text": "200"}, ctx)
        assert inside(await tools["act"].run({"text": "on"}, ctx)) == "on"


async def test_a_large_answer_is_cut(faulty: Faulty, serve: Serve, ctx: ToolContext) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        outcome = await tools["flood"].run({"text": "3000000"}, ctx)
    assert len(outcome.content) < 16_300
    assert outcome.content.endswith("\n[the first 16,000 of 3,000,000 bytes; ask for less at once]")


async def test_a_line_without_end_costs_the_server_and_not_the_memory(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        with pytest.raises(ToolFailure, match="lost during this call: it sent a line of"):
            await tools["line"].run({"text": "40000000"}, ctx)
        assert inside(await tools["act"].run({"text": "on"}, ctx)) == "on"


async def test_contents_of_all_kinds_are_told_in_words(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        blocks = inside(await tools["blocks"].run({}, ctx))
        structured = inside(await tools["structured"].run({}, ctx))
    assert blocks == (
        "first\n"
        "[image (image/png, 5 bytes), not shown]\n"
        "[resource file:///a.txt a.txt: A file]\n"
        "[resource file:///b (text/plain)]\nb!\n"
        "[resource file:///c (unknown type, 4 bytes), not shown]\n"
        '[content of an unknown type]\n{"type":"hologram","depth":3}'
    )
    assert structured == '{"n":1}'


async def test_errors_of_the_tool_and_of_the_protocol(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        failed = await tools["fail"].run({}, ctx)
        assert not failed.ok
        assert failed.content.startswith("[ERROR]\n<untrusted-")
        assert "\nit did not work\n" in failed.content
        with pytest.raises(ToolFailure, match=r"The MCP server faulty refused: no, thanks\."):
            await tools["refuse"].run({}, ctx)


async def test_a_server_that_wants_a_model_is_refused(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        assert inside(await tools["ask"].run({}, ctx)) == "Sampling not supported"


async def test_one_malformed_tool_does_not_cost_the_others(faulty: Faulty, serve: Serve) -> None:
    async with serve(faulty("--odd")) as servers:
        (one,) = await servers.list_tools()
    found = {tool.listed.name: tool for tool in one.tools}
    assert "echo" in found
    for name in ("no_schema", "array_schema", "far_schema"):
        assert msgspec.json.decode(found[name].spec.parameters) == {
            "type": "object",
            "properties": {},
        }
    assert msgspec.json.decode(found["wrong_schema"].spec.parameters) == {
        "type": "object",
        "properties": {"a": {}},
    }
    assert not found["wrong_hints"].listed.reads
    names = [tool.spec.name for tool in one.tools]
    assert names == sorted(set(names))
    assert all(len(name) <= 64 for name in names)
    # Two that would be called the same are both marked, so that neither stands for the other.
    alike = [name for name in names if "spaces_and_slashes" in name]
    assert len(alike) == 2
    assert "mcp__faulty__spaces_and_slashes" not in alike


async def test_only_the_user_can_say_that_a_tool_reads(faulty: Faulty, serve: Serve) -> None:
    for more, reading in (
        ({}, set()),
        ({"trust_hints": True}, {"echo", "pid", "die_once"}),
        ({"read": ("blocks", "f*")}, {"blocks", "fail", "flood"}),
    ):
        async with serve(faulty(**more)) as servers:
            tools = await tools_of(servers)
        found = {name for name, tool in tools.items() if tool.effect is Effect.READ}
        assert found == reading
        assert {tool.effect for tool in tools.values()} <= {Effect.READ, Effect.EXTERNAL}


async def test_the_user_can_choose_the_tools(faulty: Faulty, serve: Serve) -> None:
    async with serve(faulty(tools=("echo", "d*"))) as servers:
        assert (await tools_of(servers)).keys() == {"echo", "daemon", "die", "die_once"}


async def test_the_environment_is_what_the_configuration_names(
    faulty: Faulty, serve: Serve, ctx: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    async with serve(faulty(environment={"NAMED": "yes"})) as servers:
        tools = await tools_of(servers)
        seen = json.loads(inside(await tools["env"].run({}, ctx)))
    seen.pop("LC_CTYPE", None)  # Python's own, where the environment names no locale.
    assert seen.keys() == {"PATH", "NAMED"}


async def test_nothing_of_a_server_is_left(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path
) -> None:
    log = tmp_path / "starts"
    async with serve(faulty("--starts", str(log), "--deaf")) as servers:
        tools = await tools_of(servers)
        daemon = int(inside(await tools["daemon"].run({}, ctx)))
        (pid,) = starts(log)
        assert is_alive(pid)
        assert is_alive(daemon)
    assert not is_alive(pid)
    assert not is_alive(daemon)


async def test_a_daemon_does_not_outlive_the_death_of_its_server(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        daemon = int(inside(await tools["daemon"].run({}, ctx)))
        with pytest.raises(ToolFailure):
            await tools["die"].run({}, ctx)
        await until(lambda: not is_alive(daemon))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_nothing_is_left_when_we_are_killed(
    faulty: Faulty, tmp_path: Path, number: signal.Signals
) -> None:
    """A server that is busy and does not listen, and a daemon of it that has left the group."""
    log = tmp_path / "starts"
    command = faulty("--starts", str(log), "--deaf").command
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HOLDER), str(tmp_path), *command, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    daemon = int(await process.stdout.readline())
    (pid,) = starts(log)
    assert is_alive(pid)
    assert is_alive(daemon)
    process.send_signal(number)
    await process.wait()
    await until(lambda: not is_alive(pid) and not is_alive(daemon))


@pytest.mark.parametrize("when", ["starting", "calling"])
async def test_cancelled_nothing_is_left(
    faulty: Faulty, serve: Serve, ctx: ToolContext, tmp_path: Path, when: str
) -> None:
    log = tmp_path / "starts"
    faults = ["--mute"] if when == "starting" else []

    async def work() -> None:
        async with serve(faulty("--starts", str(log), *faults)) as servers:
            tools = await tools_of(servers)
            await tools["hang"].run({}, ctx)

    task = asyncio.create_task(work())
    await until(lambda: bool(starts(log)))
    (pid,) = starts(log)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_alive(pid)


async def test_an_error_of_the_program_comes_out_as_it_was_raised(
    faulty: Faulty, serve: Serve
) -> None:
    async def work() -> None:
        async with serve(faulty()) as servers:
            await servers.list_tools()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await work()


async def test_two_servers_are_asked_at_the_same_time(
    faulty: Faulty, serve: Serve, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    # Each waits for the other to have been started.
    servers = (
        faulty("--starts", str(first), "--wait-for", str(second), name="one"),
        faulty("--starts", str(second), "--wait-for", str(first), name="two"),
    )
    async with serve(*servers) as opened:
        one, two = await opened.list_tools()
    assert {tool.spec.name for tool in one.tools} >= {"mcp__one__echo"}
    assert {tool.spec.name for tool in two.tools} >= {"mcp__two__echo"}


async def test_null_stands_for_what_is_left_out(
    faulty: Faulty, serve: Serve, ctx: ToolContext
) -> None:
    async with serve(faulty()) as servers:
        tools = await tools_of(servers)
        said = inside(await tools["echo"].run({"text": None}, ctx))
    # It echoes the empty text of a call without arguments, and not a null.
    assert said == "[The server answered without content.]"


async def test_a_web_server_that_is_not_there(serve: Serve) -> None:
    server = McpServerSpec(
        name="web", source="settings", transport=Transport.HTTP, url="http://127.0.0.1:9/mcp"
    )
    async with serve(server) as servers:
        (one,) = await servers.list_tools()
    assert one.problem == "cannot be connected to"
