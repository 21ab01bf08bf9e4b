"""Repair of malformed messages of MCP servers, before the SDK rejects them."""

from __future__ import annotations

from itertools import islice
from typing import Any

import mcp_types as types
import msgspec

from retinue.tools.mcp.schema import clean_description

# The SDK takes 60 µs for each tool and block, on the event loop; a message can hold 200,000.
MAX_TOOLS = 500
_MAX_BLOCKS = 1_000


def repaired(item: Any) -> Any:
    """A message with its malformed tools repaired, so that the SDK does not reject all of them."""
    message = getattr(item, "message", None)
    if isinstance(message, types.JSONRPCResponse):
        result = message.result
        if isinstance(tools := result.get("tools"), list):
            named = (t for t in tools if isinstance(t, dict) and isinstance(t.get("name"), str))
            usable = islice((tool for tool in named if tool["name"]), MAX_TOOLS)
            result["tools"] = [_repair_tool(tool) for tool in usable]
        if isinstance(blocks := result.get("content"), list):
            result["content"] = [_repair_block(block) for block in blocks[:_MAX_BLOCKS]]
            if len(blocks) > _MAX_BLOCKS:
                more = f"[{len(blocks) - _MAX_BLOCKS:,} more blocks of content are left out]"
                result["content"].append({"type": "text", "text": more})
    return item


def _repair_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """The fields of a tool that we use, with the types of the protocol."""
    schema, hints = tool.get("inputSchema"), tool.get("annotations")
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        schema = {}
    hints = hints if isinstance(hints, dict) else {}
    kept = {key: value for key, value in hints.items() if isinstance(value, bool)}
    # Without the output schema, which the SDK would enforce: the model judges the output.
    return {
        "name": tool["name"],
        "description": clean_description(tool.get("description")),
        "inputSchema": {**schema, "type": "object"},
        "annotations": kept,
    }


_BLOCKS = ("text", "image", "audio", "resource", "resource_link")


def _repair_block(block: Any) -> Any:
    if isinstance(block, dict) and block.get("type") in _BLOCKS:
        return block
    text = msgspec.json.encode(block, enc_hook=str).decode("utf-8", "replace")
    return {"type": "text", "text": f"[content of an unknown type]\n{text}"}
