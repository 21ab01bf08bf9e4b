"""The MCP server with the tools that the conformance suite calls, in place of its own.

Everything but the tools is the server's: HTTP, versions, tasks, questions. Prints its address and
token, and serves until it is interrupted.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

from retinue.interfaces.cli.terminal.interrupts import Interrupts
from retinue.interfaces.json_rpc import INTERNAL_ERROR, RpcError
from retinue.interfaces.mcp_server.http_server import HttpServer
from retinue.interfaces.mcp_server.requests import MISSING_CAPABILITY, McpRequests
from retinue.interfaces.mcp_server.running_calls import RunningCall
from retinue.runtime.core.task_group import TaskGroup

TOKEN = "conformance"
NAME_SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
LONG = ("slow_compute", "failing_job", "protocol_error_job", "confirm_delete", "multi_input")
SHORT = (
    "greet",
    "test_simple_text",
    "test_error_handling",
    "test_elicitation",
    "test_tool_with_progress",
    "test_input_required_result_request_state",
    "test_input_required_result_tampered_state",
    "test_input_required_result_multi_round",
)


def text(content: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": content}], "isError": is_error}


class ConformanceRequests(McpRequests):
    def tools(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "description": name, "inputSchema": {"type": "object"}}
            for name in (*LONG, *SHORT)
        ]

    def is_long(self, name: str) -> bool:
        return name in LONG

    async def run_tool(
        self, name: str, arguments: dict[str, Any], call: RunningCall
    ) -> dict[str, Any]:
        async def ask(message: str) -> None:
            if call.elicit is None:
                raise RpcError(MISSING_CAPABILITY, "The client has no elicitation.")
            await call.elicit({"mode": "form", "message": message, "requestedSchema": NAME_SCHEMA})

        match name:
            case "greet":
                return text(f"Hello, {arguments.get('name')}!")
            case "test_simple_text":
                return text("This is a simple text response for testing.")
            case "slow_compute":
                await asyncio.sleep(float(arguments.get("seconds", 0)))
                return text("computed")
            case "failing_job" | "test_error_handling":
                return text("This tool intentionally returns an error for testing", is_error=True)
            case "protocol_error_job":
                raise RpcError(INTERNAL_ERROR, "the job broke")
            case "test_tool_with_progress":
                for step in range(3):
                    call.report(f"step {step}")
                    await asyncio.sleep(0.05)
                return text("done")
            case "multi_input":
                await asyncio.gather(ask("One?"), ask("Two?"))
                return text("both")
            case "test_input_required_result_multi_round":
                await ask("What is your name?")
                await ask("What is your favorite color?")
                return text("done")
            case _:
                await ask("Sure?")
                return text("state-ok")


async def main(directory: str) -> None:
    def new_requests(tasks: TaskGroup) -> McpRequests:
        def no_runtime(*_: Any) -> Any:
            raise AssertionError("these tools need no runtime")

        return ConformanceRequests(tasks, open_runtime=no_runtime, directory=directory)

    with Interrupts() as interrupts, socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        await HttpServer(new_requests, TOKEN).serve(listener, interrupts)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
