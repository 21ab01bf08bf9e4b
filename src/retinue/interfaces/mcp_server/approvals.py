"""Approvals: asks the user of the MCP client, as far as the client can do that."""

from __future__ import annotations

from typing import Any

from retinue.domain.approval import ApprovalRequest, Refusal, Rule
from retinue.interfaces.json_rpc import RpcError
from retinue.interfaces.mcp_server.running_calls import current_call
from retinue.interfaces.view.approvals import explanation_lines, request_lines
from retinue.interfaces.view.styled_text import plain_text
from retinue.ports.person import refuse_unattended

WIDTH = 100
ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "allow": {"type": "boolean", "title": "Allow it?"},
        "reason": {"type": "string", "title": "If not: why? The agent is told."},
    },
    "required": ["allow"],
}


async def approve(request: ApprovalRequest) -> bool | Rule | Refusal:
    """Ask the user of the client whose call this is. Raises ApprovalNeeded if that cannot be."""
    call = current_call.get()
    if call is None or call.elicit is None:
        return await refuse_unattended(request)
    lines = [*request_lines(request, WIDTH), *explanation_lines(request, WIDTH)]
    question = {"mode": "form", "message": plain_text(lines), "requestedSchema": ANSWER_SCHEMA}
    try:
        answer = await call.elicit(question)
    except RpcError as error:
        return Refusal(f"the client could not ask: {error}")
    content = answer.get("content") if isinstance(answer, dict) else None
    if not isinstance(content, dict) or answer.get("action") != "accept":
        return False
    return content.get("allow") is True or Refusal(str(content.get("reason") or ""))
