from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.interfaces.mcp_server.tool_list import TOOLS, tool_list
from retinue.testing.server import Response, ResponseEnding
from tests.interfaces.cli.mcp_client import READS, WRITES, Client, stateless
from tests.interfaces.cli.rpc_client import RETINUE

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script, Serve


Connect = Callable[..., Client]


def test_client_delegates_and_gets_report_with_usage(connect: Connect, script: Script) -> None:
    client = connect("-m", script(READS))
    assert client.initialize()["result"]["protocolVersion"] == "2025-11-25"
    result = client.call("delegate", task="What is here?", role="researcher")
    assert "isError" not in result
    text = result["content"][0]["text"]
    assert text.startswith("[completed] a1 researcher: 2 turns, 1 tool call")
    assert "There is one file." in text
    data = result["structuredContent"]
    assert data["status"] == "completed"
    assert data["answer"] == "There is one file."
    assert data["usage"]["tool_calls"] == 1
    assert data["usage"]["tokens"] > 0
    assert client.close() == 0


def test_fan_out_keeps_order_and_one_failure_sinks_no_sibling(
    connect: Connect, script: Script
) -> None:
    client = connect("-m", script(READS))
    client.initialize()
    tasks = [{"task": "one", "role": "researcher"}, {"task": "task bad", "role": "researcher"}]
    result = client.call("fan_out", tasks=[*tasks, {"task": "three", "role": "researcher"}])
    assert "isError" not in result
    statuses = [child["status"] for child in result["structuredContent"]["results"]]
    assert statuses == ["completed", "error", "completed"]
    assert result["content"][0]["text"].startswith("2 of 3 tasks are done.")


def test_change_is_reported_as_diff_and_can_be_undone(
    connect: Connect, script: Script, project: Path
) -> None:
    client = connect("-m", script(WRITES), "--mode", "auto")
    client.initialize()
    result = client.call("delegate", task="Write a.txt", role="executor")
    assert "+hi" in result["structuredContent"]["diff"]
    assert result["structuredContent"]["files"] == ["a.txt (+1 line, new file)"]
    assert "+hi" in client.call("changes")["content"][0]["text"]
    undone = client.call("undo", agent=result["structuredContent"]["agent"])
    assert undone["content"][0]["text"].startswith("Undone: a.txt")
    assert not (project / "a.txt").exists()


@pytest.mark.parametrize("mode", ["plan", "normal"])
def test_runs_of_others_are_not_undone_unasked(
    connect: Connect, script: Script, cli: Cli, project: Path, mode: str
) -> None:
    model = script(WRITES)
    assert cli("spawn", "executor", "Write a.txt", "-m", model, "--mode", "auto").code == 0
    run = json.loads(cli("runs", "--json").out.splitlines()[0])["id"]
    client = connect("-m", model, "--mode", mode)
    client.initialize()
    refused = client.call("undo", run=run)
    assert refused["isError"]
    assert refused["content"][0]["text"] == (
        f"An MCP client may not undo {run} in mode {mode}; the user can, with: retinue undo {run}"
    )
    assert (project / "a.txt").exists()


def test_background_agent_is_started_watched_and_fetched(connect: Connect, script: Script) -> None:
    client = connect("-m", script(READS))
    client.initialize()
    agent = client.call("start", task="Look", role="researcher")["structuredContent"]["agent"]
    result = client.call("result", agent=agent)
    assert result["structuredContent"]["status"] == "completed"
    (row,) = client.call("status")["structuredContent"]["agents"]
    assert row["agent"] == agent
    assert row["status"] == "completed"
    rest = client.call("result", agent=agent, start=6)
    assert rest["content"][0]["text"] == "is one file."
    unknown = client.call("result", agent="a99")
    assert unknown["isError"]
    assert unknown["content"][0]["text"] == ("Unknown agent 'a99'; agents of this connection: a1.")


def test_progress_rises_and_names_steps(connect: Connect, script: Script) -> None:
    client = connect("-m", script(READS))
    client.initialize()
    client.ask(
        "tools/call",
        name="delegate",
        arguments={"task": "Look", "role": "researcher"},
        _meta={"progressToken": "p"},
    )
    steps = [n["params"] for n in client.notifications if n["method"] == "notifications/progress"]
    assert {step["progressToken"] for step in steps} == {"p"}
    assert [step["progress"] for step in steps] == list(range(1, len(steps) + 1))
    assert any("list_dir" in step["message"] for step in steps)


def test_cancelled_call_stops_its_child_and_is_journaled(
    connect: Connect, serve: Serve, cli: Cli
) -> None:
    server = serve(Response(ending=ResponseEnding.HANG))
    client = connect("-m", server.model)
    client.initialize()
    call = client.start("tools/call", name="delegate", arguments={"task": "Look"})
    server.received(1)
    client.send({"method": "notifications/cancelled", "params": {"requestId": call}})
    assert client.ask("ping")["result"] == {}
    assert client.close() == 0
    run = json.loads(cli("runs", "--json").out.splitlines()[0])["id"]
    events = [json.loads(line) for line in cli("show", run, "--json").out.splitlines()]
    (closed,) = [
        e for e in events if e["type"] == "agent.subagent_closed" and e["agent_id"] == "a1"
    ]
    assert closed["payload"]["final_status"] == "failed"
    assert "cancelled by the MCP client" in closed["summary"]


def test_closed_input_suspends_the_run_which_can_be_resumed(
    connect: Connect, serve: Serve, cli: Cli
) -> None:
    server = serve(Response(ending=ResponseEnding.HANG))
    client = connect("-m", server.model)
    client.initialize()
    client.start("tools/call", name="delegate", arguments={"task": "Look"})
    server.received(1)
    client.close()
    (row,) = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    assert row["status"] is None
    show = cli("show", row["id"]).out
    assert "interrupted" in show


def test_terminated_server_suspends_the_run(connect: Connect, serve: Serve, cli: Cli) -> None:
    server = serve(Response(ending=ResponseEnding.HANG))
    client = connect("-m", server.model)
    client.initialize()
    client.start("tools/call", name="delegate", arguments={"task": "Look"})
    server.received(1)
    client.process.send_signal(signal.SIGTERM)
    assert client.process.wait(timeout=60) == 0
    (row,) = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    assert row["status"] is None


def test_server_that_is_terminated_after_its_work_leaves_a_finished_run(
    connect: Connect, script: Script, cli: Cli
) -> None:
    client = connect("-m", script(READS))
    client.initialize()
    client.call("delegate", task="Look", role="researcher")
    client.process.send_signal(signal.SIGTERM)
    assert client.process.wait(timeout=60) == 0
    (row,) = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    assert row["status"] == "completed"


def test_merge_is_asked_about_through_elicitation(
    connect: Connect, script: Script, project: Path
) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    client = connect("-m", script(WRITES))
    client.initialize(elicitation={})
    call = client.start(
        "tools/call", name="delegate", arguments={"task": "Write", "role": "executor"}
    )
    question = client.read()
    assert question["method"] == "elicitation/create"
    assert "1 + hi" in question["params"]["message"]
    assert not (project / "a.txt").exists()
    content = {"allow": False, "reason": "use b.txt"}
    client.send({"id": question["id"], "result": {"action": "accept", "content": content}})
    result = client.answer(call)["result"]
    assert result["structuredContent"]["status"] == "rejected"
    assert "use b.txt" in result["content"][0]["text"]
    assert not (project / "a.txt").exists()


def test_client_that_is_gone_before_it_answers_has_not_refused(
    connect: Connect, script: Script, project: Path, cli: Cli
) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    client = connect("-m", script(WRITES))
    client.initialize(elicitation={})
    client.start("tools/call", name="delegate", arguments={"task": "Write", "role": "executor"})
    assert client.read()["method"] == "elicitation/create"
    client.close()
    (row,) = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    assert row["status"] is None
    assert "refused by the user" not in cli("show", row["id"]).out


def test_without_elicitation_a_writer_says_how_to_allow_it(
    connect: Connect, script: Script
) -> None:
    client = connect("-m", script(WRITES))
    client.initialize()
    result = client.call("delegate", task="Write", role="executor")
    assert result["isError"]
    assert "needs --mode auto" in result["content"][0]["text"]


def test_missing_model_is_a_result_that_says_what_to_do(connect: Connect) -> None:
    client = connect("-m", "scripted:nope.yaml")
    client.initialize()
    for _ in range(2):
        result = client.call("delegate", task="Look")
        assert result["isError"]
        assert "nope.yaml" in result["content"][0]["text"]


def test_plan_is_written_and_executed(connect: Connect, script: Script) -> None:
    step = {"name": "look", "role": "researcher", "task": "Look around."}
    answer = json.dumps(json.dumps({"summary": "Look.", "steps": [step]}))
    model = script(
        f"rules:\n  - match: You are a planner\n    steps: [{{say: {answer}}}]\n"
        '  - match: ""\n    steps: [{say: Looked.}]\n'
    )
    client = connect("-m", model)
    client.initialize()
    written = client.call("plan", goal="Look")
    assert [step["name"] for step in written["structuredContent"]["plan"]["steps"]] == ["look"]
    result = client.call("execute", plan=written["structuredContent"]["plan"])
    assert result["structuredContent"]["steps"] == {"look": "done"}


def test_resources_and_prompts(connect: Connect, script: Script) -> None:
    client = connect("-m", script(READS))
    client.initialize()
    assert client.ask("resources/list")["result"] == {"resources": []}
    data = client.call("delegate", task="Look", role="researcher")["structuredContent"]
    (run,) = client.ask("resources/list")["result"]["resources"]
    assert run["uri"] == f"retinue://runs/{data['run']}"
    (content,) = client.ask("resources/read", uri=f"{run['uri']}/report/a1")["result"]["contents"]
    assert content["text"] == "There is one file."
    missing = client.ask("resources/read", uri="retinue://runs/nope")["error"]
    assert missing["code"] == -32002
    assert "nope" in missing["message"]
    (first, *_) = client.ask("prompts/list")["result"]["prompts"]
    prompt = client.ask("prompts/get", name=first["name"], arguments={"goal": "JWT"})
    assert "JWT" in prompt["result"]["messages"][0]["content"]["text"]


def test_stateless_version_needs_no_handshake(connect: Connect, script: Script) -> None:
    client = connect("-m", script(READS))
    meta = stateless()
    found = client.ask("server/discover", _meta=meta)["result"]
    assert "2026-07-28" in found["supportedVersions"]
    assert found["resultType"] == "complete"
    arguments = {"task": "Look", "role": "researcher"}
    result = client.ask("tools/call", name="delegate", arguments=arguments, _meta=meta)["result"]
    assert result["resultType"] == "complete"
    wrong = meta | {"io.modelcontextprotocol/protocolVersion": "2030-01-01"}
    error = client.ask("tools/list", _meta=wrong)["error"]
    assert error["code"] == -32022
    assert error["data"]["supported"] == ["2026-07-28"]


def test_malformed_messages_get_one_error_each_and_the_next_is_answered(connect: Connect) -> None:
    malformed = [
        (b"{bad\n", -32700, "The message is not JSON"),
        (b"[1]\n", -32600, "A message is a JSON object, one per line."),
        (b'{"id": null, "method": "ping"}\n', -32600, "A request has a method and an id"),
        (b'{"id": 7, "method": "ping", "params": [1]}\n', -32602, "must be a JSON object"),
        (b'{"id": 7, "method": "rocket"}\n', -32601, "Unknown method 'rocket'."),
        (b'{"id": 7, "method": "tools/call"}\n', -32602, "A call has a name"),
        (b"[" * 100_000 + b"\n", -32700, "The message is not JSON"),
        (b'"' + b"a" * (11 * 2**20) + b'"\n', -32600, "longer than 10 MiB"),
    ]
    client = connect()
    for line, code, message in malformed:
        client.write(line)
        error = client.read()["error"]
        assert error["code"] == code, line[:50]
        assert message in error["message"]
        assert client.ask("ping")["result"] == {}


def test_unknown_tool_names_the_known_ones(connect: Connect, script: Script) -> None:
    client = connect("-m", script(READS))
    client.initialize()
    error = client.ask("tools/call", name="rocket", arguments={})["error"]
    assert error["message"] == f"Unknown tool 'rocket'; there are: {', '.join(TOOLS)}."


def test_main_tools_are_never_hidden_from_the_first_turn() -> None:
    hints = {tool["name"]: tool.get("_meta") for tool in tool_list()}
    assert hints["delegate"] == hints["fan_out"] == {"anthropic/alwaysLoad": True}
    assert hints["undo"] is None


def test_schemas_of_all_tools_are_small() -> None:
    assert len(json.dumps(tool_list(), separators=(",", ":"))) / 4 <= 1_200


@pytest.mark.parametrize("client", ["claude", "codex", "opencode", "cursor", "vscode", "zed"])
def test_printed_configuration_starts_this_program(cli: Cli, client: str) -> None:
    done = cli("mcp", "--print-config", client, "-C", "/tmp")
    assert done.code == 0
    assert '"mcp"' in done.out
    assert '"/tmp"' in done.out
    assert "retinue" in done.out


async def test_client_of_the_sdk_delegates(script: Script, project: Path) -> None:
    mcp = pytest.importorskip("mcp")
    from mcp.client.stdio import StdioServerParameters, stdio_client

    argv = ["-c", RETINUE, "mcp", "-m", script(READS)]
    server = StdioServerParameters(command=sys.executable, args=argv, cwd=str(project))
    async with mcp.Client(stdio_client(server)) as client:
        tools = await client.list_tools()
        assert {tool.name for tool in tools.tools} == set(TOOLS)
        result = await client.call_tool("delegate", {"task": "Look", "role": "researcher"})
        assert result.structured_content["status"] == "completed"
