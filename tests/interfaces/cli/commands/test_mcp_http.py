"""`retinue mcp --http`, with the SDK's client and with requests that must be refused."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
import pytest

from retinue.interfaces.mcp_server.tool_list import TOOLS
from retinue.testing.server import Response, ResponseEnding
from tests.interfaces.cli.mcp_client import WITH_TASKS, stateless

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Program, Script, Serve

pytest.importorskip("mcp")
ASKS = """
rules:
  - match: Write
    steps: [{call: write_file, args: {path: a.txt, content: "hi\\n"}}, {say: Wrote it.}]
  - match: ""
    steps: [{call: list_dir}, {say: There is one file.}]
"""


class HttpServer:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.process = process
        self.url = process.stdout.readline().decode().removeprefix("Serving ").strip()
        self.token = process.stdout.readline().decode().removeprefix("Token: ").strip()
        self.headers = {
            "Authorization": f"Bearer {self.token}",
            "Accept": "application/json, text/event-stream",
        }

    async def ask(
        self, session: aiohttp.ClientSession, method: str, **params: Any
    ) -> dict[str, Any]:
        """The result of a stateless client's request."""
        headers = self.headers | {"Mcp-Method": method, "MCP-Protocol-Version": "2026-07-28"}
        if name := params.get("name") or params.get("taskId"):
            headers["Mcp-Name"] = name
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with session.post(self.url, json=body, headers=headers) as response:
            answer: dict[str, Any] = await response.json()
        result: dict[str, Any] = answer["result"]
        return result


@pytest.fixture
def serve_http(program: Program) -> Iterator[Callable[..., HttpServer]]:
    """Starts `retinue mcp --http` with these arguments."""
    with ExitStack() as stack:

        def start(*argv: str) -> HttpServer:
            process = stack.enter_context(program("mcp", "--http", "0", *argv))
            stack.callback(process.kill)
            return HttpServer(process)

        yield start


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
            "A page of https://evil.example sent this request",
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
        tools = await server.ask(session, "tools/list", _meta=stateless())
        assert {tool["name"] for tool in tools["tools"]} == set(TOOLS)
        async with session.post(
            server.url, data=io.BytesIO(b"[" * 11 * 2**20), headers=server.headers
        ) as response:
            assert response.status in (400, 413)
        tools = await server.ask(session, "tools/list", _meta=stateless())
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


async def test_clients_share_tasks_agents_and_budget(serve_http: ServeHttp, script: Script) -> None:
    server = serve_http("-m", script(ASKS), "--max-tokens", "3000")
    look = {"task": "Look", "role": "researcher"}
    async with aiohttp.ClientSession() as session:
        call = {"name": "delegate", "arguments": look, "_meta": WITH_TASKS}
        task = await server.ask(session, "tools/call", **call)
        assert task["resultType"] == "task"
    async with aiohttp.ClientSession() as session:
        where = {"taskId": task["taskId"], "_meta": WITH_TASKS}
        while task["status"] == "working":
            task = await server.ask(session, "tasks/get", **where)
        assert task["result"]["structuredContent"]["agent"] == "a1"
        statuses = []
        for number in range(4):
            call["arguments"] = look | {"task": f"Look again, {number}"}
            result = await server.ask(session, "tools/call", **call | {"_meta": stateless()})
            statuses.append(result["structuredContent"]["status"])
        assert statuses[-1] == "budget_exceeded"


async def test_interrupted_server_leaves_a_run_that_can_be_resumed(
    serve_http: ServeHttp, serve: Serve, cli: Cli
) -> None:
    model = serve(Response(ending=ResponseEnding.HANG))
    server = serve_http("-m", model.model)
    arguments = {"task": "Look", "role": "researcher"}
    async with aiohttp.ClientSession() as session:
        call = {"name": "delegate", "arguments": arguments, "_meta": WITH_TASKS}
        assert (await server.ask(session, "tools/call", **call))["resultType"] == "task"
    await asyncio.to_thread(model.received, 1)
    server.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(server.process.wait, 60) == 0
    rows = await asyncio.to_thread(lambda: cli("runs", "--json").out.splitlines())
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
