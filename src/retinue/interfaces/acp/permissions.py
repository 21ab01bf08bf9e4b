"""Approvals: asks the person at the editor, one question at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from retinue.domain.approval import ApprovalRequest, Refusal, Rule, Rules
from retinue.interfaces.acp.tool_call import call_fields, patch_diffs, text_content
from retinue.interfaces.json_rpc import RpcError
from retinue.interfaces.view.approvals import (
    always_text,
    explanation_lines,
    request_lines,
    request_title,
)
from retinue.interfaces.view.styled_text import plain_text

WIDTH = 100
ONCE, ALWAYS, REJECT = "allow", "always", "reject"

Request = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Sends a request of the session to the editor: (method, parameters) -> result."""
CallOf = Callable[[str, str, str], tuple[str, bool]]
"""(path of the agent, tool, arguments) -> id of the tool call, and whether it is a child's."""


OnAnswered = Callable[[str, str], None]
"""Called with the id and the last status of a tool call that exists only to ask a question."""


class Permissions:
    def __init__(
        self, root: Path, request: Request, call_of: CallOf, on_answered: OnAnswered
    ) -> None:
        self._root = root
        self._request = request
        self._call_of = call_of
        self._on_answered = on_answered
        self._questions = 0
        self._granted = Rules()
        # An "always" may also answer the questions that are waiting.
        self._one_at_a_time = asyncio.Lock()

    async def approve(self, request: ApprovalRequest) -> bool | Rule | Refusal:
        async with self._one_at_a_time:
            if rule := request.covered_by(self._granted):
                return rule
            name, of_child = self._call_of(request.path, request.tool, request.arguments)
            if name:
                return await self._ask(request, self._tool_call(request, name, of_child))
            # Children of the root, for example, have no tool call before they are allowed.
            self._questions += 1
            name = f"question/{self._questions}"
            status = "failed"
            try:
                answer = await self._ask(request, self._tool_call(request, name, False))
                status = "completed" if answer else "failed"
                return answer
            finally:
                self._on_answered(name, status)

    async def _ask(self, request: ApprovalRequest, call: dict[str, Any]) -> bool | Rule | Refusal:
        question = {"toolCall": call, "options": _options(request)}
        try:
            answer = await self._request("session/request_permission", question)
        except RpcError as error:
            return Refusal(f"the editor could not ask: {error}")
        match answer:
            case {"outcome": {"outcome": "selected", "optionId": "always"}}:
                self._granted = Rules(allow=(*self._granted.allow, *request.rules))
                return request.rule
            case {"outcome": {"outcome": "selected", "optionId": "allow"}}:
                return True
        return False

    def _tool_call(self, request: ApprovalRequest, name: str, of_child: bool) -> dict[str, Any]:
        fields = call_fields(request.tool, request.arguments, self._root, live=False)
        title = request_title(request)
        if patch := request.diff or request.preview:
            shown = patch_diffs(patch, self._root)
        else:
            shown = text_content(plain_text(request_lines(request, WIDTH)))
        if lines := explanation_lines(request, WIDTH):
            shown = [*text_content(plain_text(lines)), *shown]
        if of_child:
            # The tool call stands for the whole child and keeps its kind and input.
            fields = {}
        return {"toolCallId": name, "status": "pending", "title": title} | {
            **fields,
            "content": shown,
        }


def _options(request: ApprovalRequest) -> list[dict[str, str]]:
    return [
        {"optionId": ONCE, "name": "Allow", "kind": "allow_once"},
        {"optionId": ALWAYS, "name": f"Always: {always_text(request)}", "kind": "allow_always"},
        {"optionId": REJECT, "name": "Reject", "kind": "reject_once"},
    ]
