"""A model for other agents: in its first turn it calls a tool, then it repeats what came back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from retinue.models.scripted.model import ScriptedReply, raw_call, say
from retinue.testing.server import Received, Response, as_json

NO_TOOL = "no tool"
SAID = "TOOL SAID: "


def calls_tool(tool: str, arguments: dict[str, Any]) -> Callable[[Received], Any]:
    """Answers requests of any of the three APIs. `tool` is the end of the tool's name."""

    def answer(request: Received) -> ScriptedReply | Response:
        body = request.json
        if not isinstance(body, dict) or not ("messages" in body or "input" in body):
            return as_json({"data": []})
        if request.target.partition("?")[0].endswith("/responses"):
            return _responses(body, tool, json.dumps(arguments))
        tools = [entry.get("function", entry)["name"] for entry in body.get("tools", [])]
        results = _results(body["messages"])
        name = next((name for name in tools if name.endswith(tool)), None)
        if results:
            reply = say(SAID + results[-1])
        elif name is None:
            reply = say(NO_TOOL)
        else:
            reply = raw_call(name, json.dumps(arguments))
        return reply

    return answer


def _results(messages: list[dict[str, Any]]) -> list[str]:
    """Results of tools: messages of their own, or blocks of the user's."""
    found = [json.dumps(message["content"]) for message in messages if message["role"] == "tool"]
    for message in messages:
        blocks = message["content"] if isinstance(message["content"], list) else []
        found += [json.dumps(b["content"]) for b in blocks if b.get("type") == "tool_result"]
    return found


def _responses(body: dict[str, Any], tool: str, arguments: str) -> Response:
    """An answer for codex, which groups the tools of a server in a namespace."""
    results = [item["output"] for item in body["input"] if item.get("type") in RESULTS]
    found: dict[str, Any] | None = None
    for entry in body.get("tools", []):
        for inner in entry.get("tools", [entry]):
            if (inner.get("name") or "").endswith(tool):
                grouped = {"namespace": entry["name"]} if "tools" in entry else {}
                found = {"name": inner["name"], **grouped}
    if results or found is None:
        text = SAID + json.dumps(results[-1]) if results else NO_TOOL
        content = [{"type": "output_text", "text": text, "annotations": []}]
        item = {"type": "message", "id": "m1", "role": "assistant", "content": content}
    else:
        item = {"type": "function_call", "id": "f1", "call_id": "c1", "arguments": arguments}
        item |= found
    item["status"] = "completed"
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    response: dict[str, Any] = {
        "id": "r1",
        "object": "response",
        "status": "completed",
        "output": [item],
    }
    response |= {"model": body["model"], "usage": usage}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response | {"status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]
    lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    return Response(body="".join(lines).encode())


RESULTS = ("function_call_output", "mcp_tool_call_output")
