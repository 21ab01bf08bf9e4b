"""Calls of stateless clients: questions as results, and tasks."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retinue.testing.server import Response, ResponseEnding
from tests.interfaces.cli.mcp_client import READS, WITH_TASKS, WRITES, Client, stateless

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script, Serve

Connect = Callable[..., Client]
ALLOW = {"action": "accept", "content": {"allow": True}}


def start_task(client: Client, **arguments: Any) -> dict[str, Any]:
    call = {"name": "delegate", "arguments": arguments, "_meta": WITH_TASKS}
    result: dict[str, Any] = client.ask("tools/call", **call)["result"]
    assert result["resultType"] == "task"
    return result


def get_task(client: Client, task_id: str) -> dict[str, Any]:
    result: dict[str, Any] = client.ask("tasks/get", taskId=task_id, _meta=WITH_TASKS)["result"]
    assert result["resultType"] == "complete"
    return result


def poll(client: Client, task_id: str, status: str) -> dict[str, Any]:
    """Ask for the task until it has this status."""
    while (task := get_task(client, task_id))["status"] != status:
        assert task["status"] in ("working", "input_required"), task
    return task


def test_question_is_the_result_until_it_is_answered(
    connect: Connect, script: Script, repository: Path
) -> None:
    client = connect("-m", script(WRITES))
    call = {
        "name": "delegate",
        "arguments": {"task": "Write", "role": "executor"},
        "_meta": stateless(elicitation={}),
    }
    asked = client.ask("tools/call", **call)["result"]
    assert asked["resultType"] == "input_required"
    ((key, question),) = asked["inputRequests"].items()
    assert question["method"] == "elicitation/create"
    assert "1 + hi" in question["params"]["message"]
    again = client.ask("tools/call", **call, requestState=asked["requestState"])["result"]
    assert again["inputRequests"] == asked["inputRequests"]
    assert not (repository / "a.txt").exists()
    done = client.ask(
        "tools/call", **call, requestState=asked["requestState"], inputResponses={key: ALLOW}
    )["result"]
    assert done["structuredContent"]["status"] == "completed"
    assert (repository / "a.txt").read_text() == "hi\n"
    error = client.ask("tools/call", **call, requestState=asked["requestState"])["error"]
    assert error["code"] == -32602
    assert error["message"] == "Unknown requestState: make the call again without it."
    assert client.close() == 0


def test_stateless_client_without_elicitation_is_refused(
    connect: Connect, script: Script, repository: Path
) -> None:
    client = connect("-m", script(WRITES))
    arguments = {"task": "Write", "role": "executor"}
    result = client.ask("tools/call", name="delegate", arguments=arguments, _meta=stateless())
    assert "needs --mode auto" in result["result"]["content"][0]["text"]


def test_tasks_are_offered_only_to_clients_that_declare_them(
    connect: Connect, script: Script
) -> None:
    client = connect("-m", script(READS))
    offered = client.ask("server/discover", _meta=WITH_TASKS)["result"]["capabilities"]
    assert offered["extensions"] == {"io.modelcontextprotocol/tasks": {}}
    assert "extensions" not in client.ask("server/discover", _meta=stateless())["result"]
    error = client.ask("tasks/get", taskId="x", _meta=stateless())["error"]
    assert error["code"] == -32021
    assert error["data"]["requiredCapabilities"]["extensions"] == offered["extensions"]
    # A client of an older version that declares tasks would fail on a task.
    client.initialize(extensions={"io.modelcontextprotocol/tasks": {}})
    result = client.call("delegate", task="Look", role="researcher")
    assert result["structuredContent"]["status"] == "completed"
    assert client.ask("tasks/get", taskId="x")["error"]["code"] == -32601


def test_result_of_a_task_can_be_fetched_after_connecting_again(
    connect: Connect, script: Script
) -> None:
    model = script(READS)
    client = connect("-m", model)
    task = start_task(client, task="Look", role="researcher")
    done = poll(client, task["taskId"], "completed")
    assert done["result"]["structuredContent"]["answer"] == "There is one file."
    assert client.ask("tasks/cancel", taskId=task["taskId"], _meta=WITH_TASKS)["result"]
    assert client.close() == 0
    later = connect("-m", model)
    assert get_task(later, task["taskId"]) == done
    for unknown in ("nope", "../key", 7, None):
        error = later.ask("tasks/get", taskId=unknown, _meta=WITH_TASKS)["error"]
        assert error["code"] == -32602
        assert error["message"] == f"Unknown task {unknown!r}; tasks are kept for a day."


def test_task_of_another_project_is_unknown(
    connect: Connect, script: Script, tmp_path: Path
) -> None:
    model = script(READS)
    client = connect("-m", model)
    task = start_task(client, task="Look", role="researcher")
    poll(client, task["taskId"], "completed")
    (tmp_path / "other").mkdir()
    elsewhere = connect("-C", str(tmp_path / "other"))
    error = elsewhere.ask("tasks/get", taskId=task["taskId"], _meta=WITH_TASKS)["error"]
    assert error["code"] == -32602


def test_task_asks_for_approval(connect: Connect, script: Script, repository: Path) -> None:
    client = connect("-m", script(WRITES))
    # A client that connects again asks for its tasks first, which decides nothing.
    client.ask("tasks/get", taskId="old", _meta=WITH_TASKS)
    task_id = start_task(client, task="Write", role="executor")["taskId"]
    ((key, question),) = poll(client, task_id, "input_required")["inputRequests"].items()
    assert "1 + hi" in question["params"]["message"]
    for responses in ({"unknown": ALLOW}, {key: ALLOW}, {key: ALLOW}):
        sent = client.ask(
            "tasks/update", taskId=task_id, inputResponses=responses, _meta=WITH_TASKS
        )
        assert sent["result"]["resultType"] == "complete"
    done = poll(client, task_id, "completed")
    assert done["result"]["structuredContent"]["status"] == "completed"
    assert (repository / "a.txt").exists()


def test_task_is_cancelled(connect: Connect, serve: Serve, cli: Cli) -> None:
    server = serve(Response(ending=ResponseEnding.HANG))
    client = connect("-m", server.model)
    task_id = start_task(client, task="Look", role="researcher")["taskId"]
    server.received(1)
    client.ask("tasks/cancel", taskId=task_id, _meta=WITH_TASKS)
    assert get_task(client, task_id)["status"] == "cancelled"
    assert client.close() == 0
    assert "cancelled by the MCP client" in cli("show").out


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_task_of_a_server_that_ended_says_how_to_continue(
    connect: Connect, serve: Serve, how: signal.Signals
) -> None:
    server = serve(Response(ending=ResponseEnding.HANG))
    client = connect("-m", server.model)
    task_id = start_task(client, task="Look", role="researcher")["taskId"]
    server.received(1)
    client.process.send_signal(how)
    client.process.wait(timeout=60)
    task = get_task(connect("-m", server.model), task_id)
    assert task["status"] in ("failed", "completed")
    assert "retinue resume" in str(task)
