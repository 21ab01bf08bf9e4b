"""The client of the Python SDK for the Agent Client Protocol drives `retinue acp`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.interfaces.cli.rpc_client import RETINUE

pytestmark = pytest.mark.services
acp = pytest.importorskip("acp")

STEP = {"name": "look", "title": "Look around", "role": "researcher", "task": "Look around."}
PLAN = json.dumps(json.dumps({"summary": "Look.", "steps": [STEP]}))
SCRIPT = f"""
rules:
  - match: You are a planner
    steps: [{{say: {PLAN}}}]
  - match: Write a.txt
    steps: [{{call: write_file, args: {{path: a.txt, content: "hi\\n"}}}}, {{say: I wrote it.}}]
  - match: Look around.
    steps: [{{say: Looked.}}]
  - match: ""
    steps:
      - {{call: spawn_agent, args: {{role: executor, task: Write a.txt}}}}
      - {{say: A child wrote it.}}
      - {{call: spawn_agent, args: {{role: executor, task: Write a.txt again}}}}
      - {{say: A child wrote it again.}}
"""


class Editor:
    """A client that answers permission requests by `option`, or never if it is None."""

    def __init__(self) -> None:
        self.option: str | None = "allow"
        self.asked = asyncio.Event()
        self.updates: list[Any] = []

    async def request_permission(self, **asked: Any) -> Any:
        self.asked.set()
        if self.option is None:
            await asyncio.Event().wait()
        outcome = {"outcome": "selected", "optionId": self.option}
        return acp.RequestPermissionResponse.model_validate({"outcome": outcome})

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)

    def of_kind(self, kind: str) -> list[Any]:
        return [update for update in self.updates if update.session_update == kind]

    def on_connect(self, agent: Any) -> None:
        pass


async def test_plan_child_diff_permissions_cancel_modes_and_load(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "script.yaml").write_text(SCRIPT)
    git = await asyncio.create_subprocess_exec("git", "init", "-q", cwd=project)
    assert await git.wait() == 0
    editor = Editor()
    command = [sys.executable, "-c", RETINUE, "acp", "-m", "scripted:script.yaml"]
    variables = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    async with acp.spawn_agent_process(editor, *command, env=variables, cwd=project) as (agent, _):
        assert (await agent.initialize(protocol_version=1)).protocol_version == 1
        session = await agent.new_session(cwd=str(project), mcp_servers=[])

        async def prompt(text: str) -> str:
            block = acp.text_block(text)
            answer = await agent.prompt(session_id=session.session_id, prompt=[block])
            return str(answer.stop_reason)

        assert await prompt("Delegate it") == "end_turn"
        assert (project / "a.txt").read_text() == "hi\n"
        (child,) = {
            call.tool_call_id: call
            for call in editor.of_kind("tool_call_update")
            if call.field_meta and "retinue" in call.field_meta
        }.values()
        assert child.status == "completed"
        assert any(content.type == "diff" for content in child.content)

        editor.option = "reject"
        (project / "a.txt").write_text("mine\n")
        assert await prompt("Delegate it again") == "end_turn"
        assert (project / "a.txt").read_text() == "mine\n"

        editor.option = "allow"
        assert await prompt("/plan Look") == "end_turn"
        assert editor.of_kind("plan")[-1].entries[0].status == "completed"

        editor.option = None
        editor.asked.clear()
        prompting = asyncio.ensure_future(prompt("/plan Look"))
        await editor.asked.wait()
        await agent.cancel(session_id=session.session_id)
        assert await prompting == "cancelled"

        await agent.set_session_mode(session_id=session.session_id, mode_id="plan")
        assert editor.of_kind("current_mode_update")[-1].current_mode_id == "plan"

        editor.updates.clear()
        await agent.load_session(session_id=session.session_id, cwd=str(project), mcp_servers=[])
        said = [update.content.text for update in editor.of_kind("user_message_chunk")]
        assert said[:2] == ["Delegate it", "Delegate it again"]
