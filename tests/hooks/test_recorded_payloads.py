"""Hooks get what Claude Code gives them: `data/claude_code.jsonl` was recorded with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from retinue.models.scripted.model import ScriptedModel, call, say
from retinue.runtime.runtime import Runtime

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parent / "data/claude_code.jsonl").read_text().splitlines()
]
# The recorder denied one command, as this does.
HOOK = """\
import json, os, sys
given = json.load(sys.stdin)
env = {name: value for name, value in os.environ.items() if name.startswith("CLAUDE")}
with open(sys.argv[1], "a") as log:
    log.write(json.dumps({"env": env, **given}) + "\\n")
if given["hook_event_name"] == "PreToolUse" and "forbidden" in str(given["tool_input"]):
    sys.stderr.write("no forbidden words\\n")
    sys.exit(2)
"""
# Set by whoever recorded, or about features that retinue does not have.
NOT_OURS = {
    "CLAUDE_CODE_CHILD_SESSION", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "CLAUDE_ENV_FILE",
}  # fmt: skip
# About Anthropic's billing.
NOT_COUNTED = {"server_tool_use", "service_tier", "cache_creation", "inference_geo", "iterations",
               "speed"}  # fmt: skip


@pytest.fixture
async def payloads(
    opened: Opened, settings: Callable[[str], None], tmp_path: Path, project: Path
) -> list[dict[str, Any]]:
    """What a hook gets in a run like the recorded one."""
    script, log = tmp_path / "hook.py", tmp_path / "log.jsonl"
    script.write_text(HOOK)
    events = dict.fromkeys(given["hook_event_name"] for given in RECORDED)
    command = json.dumps(f"python3 {script} {log}")
    small = "[sub_agents]\nmodel = 'small'\n"
    settings(
        small + "".join(f"[[hooks.{e}]]\nhooks = [{{ command = {command} }}]\n" for e in events)
    )
    root = [
        call("run_command", command="echo hello"),
        call("write_file", path="new.txt", content="x\n"),
        call("spawn_agent", task="CHILD-TASK go", role="tester"),
        say("all done"),
    ]
    child = ScriptedModel([call("run_command", command="echo forbidden"), say("child done")])
    options: dict[str, Any] = {"shell": True, "unsafe_no_sandbox": True, "mode": "auto"}
    name = "scripted+effort=high"
    models = {name: ScriptedModel(root), "small": child}
    async with opened(model=name, models=models, **options) as rt:
        assert (await rt.run("ROOT-TASK go")).ok
    return [json.loads(line) for line in log.read_text().splitlines()]


def shape(value: Any) -> Any:
    """The fields of a value in their order, and the types of what they hold."""
    if isinstance(value, dict):
        return [(name, shape(part)) for name, part in value.items()]
    if isinstance(value, list):
        return [shape(part) for part in value]
    return type(value).__name__


def comparable(given: dict[str, Any]) -> dict[str, Any]:
    given = dict(given)
    given["env"] = dict.fromkeys(sorted(set(given["env"]) - NOT_OURS), "")
    usage = given.get("tool_response", {}).get("usage")
    if isinstance(usage, dict):
        kept = {name: value for name, value in usage.items() if name not in NOT_COUNTED}
        given["tool_response"] = {**given["tool_response"], "usage": kept}
    if isinstance(given.get("tool_calls"), list):
        # Text in one program, a list of texts in the other.
        given["tool_calls"] = [{**c, "tool_response": ""} for c in given["tool_calls"]]
    return given


def test_every_payload_has_the_recorded_fields_in_order(payloads: list[dict[str, Any]]) -> None:
    names = [given["hook_event_name"] for given in RECORDED]
    assert [given["hook_event_name"] for given in payloads] == names
    for ours, theirs in zip(payloads, RECORDED, strict=True):
        assert shape(comparable(ours)) == shape(comparable(theirs)), theirs["hook_event_name"]


def test_values_are_the_recorded_ones(payloads: list[dict[str, Any]], project: Path) -> None:
    same = (
        "hook_event_name", "source", "permission_mode", "effort", "prompt", "tool_name",
        "stop_hook_active", "last_assistant_message", "background_tasks", "session_crons", "reason",
    )  # fmt: skip
    for ours, theirs in zip(payloads, RECORDED, strict=True):
        expected = {name: theirs[name] for name in same if name in theirs}
        if "permission_mode" in expected:
            expected["permission_mode"] = "acceptEdits"  # Our run is in mode auto.
        assert {name: ours[name] for name in expected} == expected
        assert ours["cwd"] == str(project)
        assert ours["env"]["CLAUDE_PROJECT_DIR"] == str(project)
        assert ours["env"]["CLAUDE_CODE_SESSION_ID"] == ours["session_id"]
    tools = {
        (given["hook_event_name"], given["tool_name"]): given
        for given in payloads
        if "tool_name" in given
    }
    new = str(project / "new.txt")
    assert tools["PreToolUse", "Write"]["tool_input"] == {"file_path": new, "content": "x\n"}
    written = tools["PostToolUse", "Write"]["tool_response"]
    assert (written["type"], written["filePath"]) == ("create", new)
    assert tools["PostToolUse", "Bash"]["tool_response"]["stdout"] == "hello"
    child = tools["PostToolUse", "Agent"]
    assert child["tool_input"]["prompt"] == child["tool_response"]["prompt"] == "CHILD-TASK go"
    assert child["tool_response"]["content"] == [{"type": "text", "text": "child done"}]


def test_only_children_are_named(payloads: list[dict[str, Any]]) -> None:
    (started,) = [one for one in payloads if one["hook_event_name"] == "SubagentStart"]
    assert started["agent_type"] == "tester"
    named = [one["hook_event_name"] for one in payloads if "agent_id" in one]
    assert named == ["SubagentStart", "PreToolUse", "PostToolBatch", "SubagentStop"]


def test_a_denied_call_has_no_post_tool_use(payloads: list[dict[str, Any]]) -> None:
    (batch,) = [o for o in payloads if "agent_id" in o and o["hook_event_name"] == "PostToolBatch"]
    assert batch["tool_calls"][0]["tool_input"] == {"command": "echo forbidden", "description": ""}
    assert "PreToolUse:Bash hook error: [python3 " in batch["tool_calls"][0]["tool_response"]
    assert "no forbidden words" in batch["tool_calls"][0]["tool_response"]


# The second recording: its hook denied a command, rewrote another, and sent the child on once.
ANSWERED = [
    json.loads(line)
    for line in (Path(__file__).parent / "data/claude_code_answers.jsonl").read_text().splitlines()
]
ANSWERING_HOOK = """\
import json, sys
given = json.load(sys.stdin)
event, tool_input = given["hook_event_name"], given.get("tool_input")
with open(sys.argv[1], "a") as log:
    active, agent = given.get("stop_hook_active"), given.get("agent_id")
    log.write(json.dumps({"e": event, "in": tool_input, "active": active, "agent": agent}) + "\\n")
if event == "PreToolUse" and "hello" in str(tool_input):
    sys.exit(2)
if event == "PreToolUse" and "forbidden" in str(tool_input):
    updated = {"command": "echo rewritten", "description": "d"}
    print(json.dumps({"hookSpecificOutput": {"hookEventName": event, "updatedInput": updated}}))
if event == "SubagentStop" and not given["stop_hook_active"]:
    print(json.dumps({"decision": "block", "reason": "Go on."}))
"""


async def test_hooks_that_answer_are_called_as_recorded(
    opened: Opened, settings: Callable[[str], None], tmp_path: Path, project: Path
) -> None:
    script, log = tmp_path / "hook.py", tmp_path / "log.jsonl"
    script.write_text(ANSWERING_HOOK)
    command = json.dumps(f"python3 {script} {log}")
    events = dict.fromkeys(one["e"] for one in ANSWERED)
    settings(
        "[sub_agents]\nmodel = 'small'\n"
        + "".join(f"[[hooks.{event}]]\nhooks = [{{ command = {command} }}]\n" for event in events)
    )
    root = ScriptedModel(
        [
            call("run_command", command="echo hello"),
            call("write_file", path="new.txt", content="x\n"),
            call("spawn_agent", task="CHILD-TASK go", role="tester"),
            say("all done"),
        ]
    )
    child = ScriptedModel([call("run_command", command="echo forbidden"), say("one"), say("two")])
    options: dict[str, Any] = {"shell": True, "unsafe_no_sandbox": True, "mode": "auto"}
    async with opened(model="lead", models={"lead": root, "small": child}, **options) as rt:
        assert (await rt.run("ROOT-TASK go")).ok
    ours = [json.loads(line) for line in log.read_text().splitlines()]

    def comparable_call(one: dict[str, Any]) -> tuple[Any, ...]:
        given = one["in"] or {}
        texts = given.get("command"), given.get("content"), given.get("prompt")
        return one["e"], one["active"], bool(one["agent"]), list(given), *texts

    assert [*map(comparable_call, ours)] == [*map(comparable_call, ANSWERED)]
