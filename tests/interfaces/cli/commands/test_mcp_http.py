"""`retinue mcp --http`, with the SDK's client and with requests that must be refused."""

from __future__ import annotations

import io
import json
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
import pytest

from retinue.interfaces.mcp_server.tool_list import TOOLS
from retinue.testing.server import Response, ResponseEnding
from tests.interfaces.cli.mcp_client import WITH_TASKS, HttpServer, stateless

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script, Serve

pytest.importorskip("mcp")
ASKS = """
rules:
  - match: Write
    steps: [{call: write_file, args: {path: a.txt, content: "hi\\n"}}, {say: Wrote it.}]
  - match: ""
    steps: [{call: list_dir}, {say: There is one file.}]
"""

ServeHttp = Callable[..., HttpServer]


async def test_only_programs_with_the_token_are_answered(serve_http: ServeHttp) -> None:
    server = serve_http()
    port = int(re.search(r":(\d+)/", server.url)[1])  # type: ignore[index]
    refused: list[tuple[dict[str, str], int, str]] = [
        ({"Authorization": ""}, 401, "Send the token as `Authorization: Bearer TOKEN`"),
        ({"Authorization": "Bearer wrong"}, 401, "Send the token"),
        ({"Authorization": f"Basic {server.token}"}, 401, "Send the token"),
        ({"Host": "evil.example"}, 403, "does not answer to the name 'evil.example'"),
        ({"Host": f"evil.example:{port}"}, 403, "does not answer to the name"),
        (
            {"Origin": "https://evil.example"},
            403,
            "A page of https://evil.example has sent this request",
        ),
        ({"Origin": "null"}, 403, "A page of null"),
    ]
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": stateless()}}
    async with aiohttp.ClientSession() as session:
        for headers, status, message in refused:
            for method in ("POST", "GET", "DELETE", "OPTIONS"):
                async with session.request(
                    method, server.url, json=body, headers=server.headers | headers
                ) as response:
                    assert response.status == status
                    assert message in (await response.json())["error"]["message"]
        tools = server.ask("tools/list", _meta=stateless())
        assert {tool["name"] for tool in tools["tools"]} == set(TOOLS)
        async with session.post(
            server.url, data=io.BytesIO(b"[" * 11 * 2**20), headers=server.headers
        ) as response:
            assert response.status in (400, 413)
        tools = server.ask("tools/list", _meta=stateless())
        assert tools["resultType"] == "complete"
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0


async def test_clients_of_both_eras_delegate_and_approve(
    serve_http: ServeHttp, script: Script, repository: Path
) -> None:
    import httpx2
    import mcp
    from mcp.client.streamable_http import streamable_http_client
    from mcp_types import ElicitResult

    server = serve_http("-m", script(ASKS))
    eras: tuple[Literal["legacy", "auto"], ...] = ("legacy", "auto")
    for era in eras:
        asked: list[str] = []
        steps: list[float] = []

        async def elicit(context: Any, params: Any, asked: list[str] = asked) -> ElicitResult:
            asked.append(params.message)
            return ElicitResult(action="accept", content={"allow": True})

        async def progress(
            progress: float, total: float | None, message: str | None, steps: list[float] = steps
        ) -> None:
            steps.append(progress)

        async with (
            httpx2.AsyncClient(headers=server.headers) as http,
            mcp.Client(
                streamable_http_client(server.url, http_client=http),
                mode=era,
                elicitation_callback=elicit,
            ) as client,
        ):
            assert client.protocol_version == {"legacy": "2025-11-25", "auto": "2026-07-28"}[era]
            result = await client.call_tool(
                "delegate", {"task": "Look", "role": "researcher"}, progress_callback=progress
            )
            assert result.structured_content["status"] == "completed"
            assert steps == sorted(set(steps))
            assert steps
            result = await client.call_tool("delegate", {"task": "Write", "role": "executor"})
            assert result.structured_content["status"] == "completed"
            assert "1 + hi" in asked[0]
        (repository / "a.txt").unlink()


def test_clients_share_tasks_agents_and_budget(serve_http: ServeHttp, script: Script) -> None:
    server = serve_http("-m", script(ASKS), "--max-tokens", "3000")
    look = {"task": "Look", "role": "researcher"}
    call = {"name": "delegate", "arguments": look, "_meta": WITH_TASKS}
    task = server.ask("tools/call", **call)
    assert task["resultType"] == "task"
    where = {"taskId": task["taskId"], "_meta": WITH_TASKS}
    while task["status"] == "working":
        task = server.ask("tasks/get", **where)
    assert task["result"]["structuredContent"]["agent"] == "a1"
    statuses = []
    for number in range(4):
        result = server.call("delegate", task=f"Look again, {number}", role="researcher")
        statuses.append(result["structuredContent"]["status"])
    assert statuses[-1] == "budget_exceeded"


def test_client_that_leaves_in_mid_message_is_no_error(serve_http: ServeHttp) -> None:
    server = serve_http()
    host, port = server.url.split("/")[2].split(":")
    headers = server.headers | {"Host": f"{host}:{port}", "Content-Type": "application/json"}
    lines = ["POST /mcp HTTP/1.1", *(f"{name}: {headers[name]}" for name in headers)]
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall("\r\n".join([*lines, "Content-Length: 99", "", "{"]).encode())
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65_536):
            pass
    assert server.ask("tools/list", _meta=stateless())["tools"]
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert server.process.stderr is not None
    assert server.process.stderr.read() == b""


def test_interrupted_server_leaves_a_run_that_can_be_resumed(
    serve_http: ServeHttp, serve: Serve, cli: Cli
) -> None:
    model = serve(Response(ending=ResponseEnding.HANG))
    server = serve_http("-m", model.model)
    arguments = {"task": "Look", "role": "researcher"}
    call = {"name": "delegate", "arguments": arguments, "_meta": WITH_TASKS}
    assert server.ask("tools/call", **call)["resultType"] == "task"
    model.received(1)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    rows = cli("runs", "--json").out.splitlines()
    assert [json.loads(row)["status"] for row in rows] == [None]


def test_port_in_use_and_missing_extra_say_what_to_do(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cli("mcp", "--http", str(port))
    assert done.code == 2
    assert f"127.0.0.1:{port} cannot be used (Address already in use); name another port with" in (
        done.err
    )
    assert "--http PORT, or 0 for any free one." in done.err
    done = cli("mcp", "--http", "0", "--print-config", "claude")
    assert "--print-config needs the port: --http PORT" in done.err
    monkeypatch.setitem(sys.modules, "mcp", None)
    done = cli("mcp", "--http", "0")
    assert "The MCP server over HTTP is not installed: pip install 'retinue[mcp]'." in done.err
