from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retinue.models.scripted.model import call, calls, say, think
from retinue.testing.server import Response, ResponseEnding
from tests.interfaces.cli.rpc_client import RpcClient

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script, Serve

ECHO_SERVER = Path(__file__).parents[3] / "tools" / "mcp" / "programs" / "server.py"
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
    "AABJRU5ErkJggg=="
)


class Editor(RpcClient):
    """An editor that speaks the Agent Client Protocol. `answers` are for permission requests."""

    def __init__(self, *argv: str) -> None:
        super().__init__("acp", *argv)
        self.answers: list[str] = []
        self.questions: list[dict[str, Any]] = []
        self.buffers: dict[str, str] = {}
        self.updates: list[dict[str, Any]] = []
        self.session = ""

    def read(self) -> dict[str, Any]:
        """The next message; requests are answered, and updates are kept."""
        message = super().read()
        match message:
            case {"method": "session/request_permission", "params": params}:
                self.questions.append(params)
                if self.answers:
                    self.choose(message["id"], self.answers.pop(0))
            case {"method": "fs/read_text_file", "params": {"path": path}}:
                self.send({"id": message["id"], "result": {"content": self.buffers[path]}})
            case {"method": "session/update", "params": {"update": update}}:
                self.updates.append(update)
        return message

    def choose(self, request_id: int, option: str) -> None:
        outcome = {"outcome": "selected", "optionId": option}
        self.send({"id": request_id, "result": {"outcome": outcome}})

    def initialize(self, **capabilities: Any) -> dict[str, Any]:
        result: dict[str, Any] = self.ask(
            "initialize", protocolVersion=1, clientCapabilities=capabilities
        )["result"]
        return result

    def open(
        self, directory: Path, servers: Sequence[dict[str, Any]] = (), **capabilities: Any
    ) -> dict[str, Any]:
        self.initialize(**capabilities)
        result: dict[str, Any] = self.ask(
            "session/new", cwd=str(directory), mcpServers=list(servers)
        )["result"]
        self.session = result["sessionId"]
        return result

    def start_prompt(self, *blocks: dict[str, Any] | str) -> int:
        prompt = [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]
        return self.start("session/prompt", sessionId=self.session, prompt=prompt)

    def prompt(self, *blocks: dict[str, Any] | str) -> dict[str, Any]:
        return self.answer(self.start_prompt(*blocks))

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [update for update in self.updates if update["sessionUpdate"] == kind]

    @property
    def text(self) -> str:
        return "".join(u["content"]["text"] for u in self.of_kind("agent_message_chunk"))

    def calls(self) -> dict[str, dict[str, Any]]:
        """Tool calls by id, as an editor has them after all updates."""
        calls: dict[str, dict[str, Any]] = {}
        for update in self.updates:
            if update["sessionUpdate"] == "tool_call":
                assert update["toolCallId"] not in calls
                calls[update["toolCallId"]] = dict(update)
            elif update["sessionUpdate"] == "tool_call_update":
                calls.setdefault(update["toolCallId"], {}).update(update)
        return calls

    def children(self) -> list[dict[str, Any]]:
        return [call for call in self.calls().values() if "_meta" in call]


Edit = Callable[..., Editor]


@pytest.fixture
def edit() -> Iterator[Edit]:
    """Starts `retinue acp` with these arguments, for an editor."""
    with ExitStack() as stack:

        def start(*argv: str) -> Editor:
            editor = Editor(*argv)
            stack.callback(editor.kill)
            return editor

        yield start


SAYS = """
rules:
  - match: ""
    steps: [{say: There is one file.}, {say: And nothing else.}, {say: Nothing.}]
"""
WRITES = """
rules:
  - match: ""
    steps:
      - {call: write_file, args: {path: a.txt, content: "hi\\n"}}
      - {say: Wrote it.}
      - {call: write_file, args: {path: a.txt, content: "hi\\n"}}
      - {say: Wrote it.}
"""
DELEGATES = """
rules:
  - match: Write a.txt
    steps: [{call: write_file, args: {path: a.txt, content: "hi\\n"}}, {say: I wrote a.txt.}]
  - match: ""
    steps:
      - {call: spawn_agent, args: {role: executor, task: Write a.txt}}
      - {say: A child wrote it.}
"""


def test_handshake_offers_what_is_there(edit: Edit, project: Path) -> None:
    editor = edit("-m", "scripted:nope.yaml")
    offered = editor.initialize()
    assert offered["protocolVersion"] == 1
    assert offered["agentCapabilities"]["loadSession"] is True
    assert offered["agentCapabilities"]["promptCapabilities"]["image"] is True
    opened = editor.ask("session/new", cwd=str(project), mcpServers=[])["result"]
    assert opened["modes"]["currentModeId"] == "normal"
    assert [m["id"] for m in opened["modes"]["availableModes"]] == ["plan", "normal", "auto"]
    assert [option["category"] for option in opened["configOptions"]] == ["mode", "model"]
    error = editor.ask("authenticate", methodId="x")["error"]
    assert "retinue doctor" in error["message"]
    assert editor.close() == 0


def test_prompt_streams_text_and_thoughts(edit: Edit, serve: Serve, project: Path) -> None:
    editor = edit("-m", serve(think("Let me see.", say("There is one file."))).model)
    editor.open(project)
    assert editor.prompt("What is here?")["result"] == {"stopReason": "end_turn"}
    assert editor.text == "There is one file."
    (thought,) = editor.of_kind("agent_thought_chunk")
    assert thought["content"]["text"] == "Let me see."
    (commands,) = editor.of_kind("available_commands_update")
    assert {c["name"] for c in commands["availableCommands"]} >= {"plan", "undo", "resume"}


def test_edit_asks_with_a_diff_and_shows_it(edit: Edit, script: Script, project: Path) -> None:
    (project / "a.txt").write_text("old\n")
    editor = edit("-m", script(WRITES))
    editor.open(project)
    editor.answers = ["allow"]
    assert editor.prompt("Write")["result"]["stopReason"] == "end_turn"
    (question,) = editor.questions
    assert [o["kind"] for o in question["options"]] == ["allow_once", "allow_always", "reject_once"]
    diff = {"type": "diff", "path": str(project / "a.txt"), "oldText": "old\n", "newText": "hi\n"}
    (shown,) = [c for c in question["toolCall"]["content"] if c["type"] == "diff"]
    assert shown.items() >= diff.items()
    (call,) = editor.calls().values()
    assert call["toolCallId"] == question["toolCall"]["toolCallId"]
    assert call["kind"] == "edit"
    assert call["status"] == "completed"
    assert call["content"] == [diff]
    assert call["locations"] == [{"path": str(project / "a.txt")}]
    assert (project / "a.txt").read_text() == "hi\n"


def test_rejected_edit_leaves_the_file_as_it_is(edit: Edit, script: Script, project: Path) -> None:
    (project / "a.txt").write_text("old\n")
    editor = edit("-m", script(WRITES))
    editor.open(project)
    editor.answers = ["reject"]
    assert editor.prompt("Write")["result"]["stopReason"] == "end_turn"
    (call,) = editor.calls().values()
    assert call["status"] == "failed"
    assert (project / "a.txt").read_text() == "old\n"


def test_always_is_asked_once(edit: Edit, script: Script, project: Path) -> None:
    editor = edit("-m", script(WRITES))
    editor.open(project)
    editor.answers = ["always"]
    editor.prompt("Write")
    (project / "a.txt").unlink()
    editor.prompt("Again")
    assert len(editor.questions) == 1
    assert (project / "a.txt").exists()


def test_child_is_a_tool_call_with_its_diff(edit: Edit, script: Script, project: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    editor = edit("-m", script(DELEGATES), "--mode", "auto")
    editor.open(project)
    assert editor.prompt("Delegate it")["result"]["stopReason"] == "end_turn"
    (child,) = editor.children()
    about = child["_meta"]["retinue"]
    assert (about["agent"], about["role"], about["parent"]) == ("a1", "executor", None)
    assert child["title"] == "executor.1: Write a.txt"
    assert child["status"] == "completed"
    assert "I wrote a.txt." in child["content"][0]["content"]["text"]
    (diff,) = [c for c in child["content"] if c["type"] == "diff"]
    assert (diff["path"], diff["newText"]) == (str(project / "a.txt"), "hi\n")
    assert editor.text.endswith("A child wrote it.")
    assert not editor.of_kind("subagent_update")


def test_contract_and_change_of_a_child_are_asked_in_the_editor(
    edit: Edit, script: Script, project: Path
) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    editor = edit("-m", script(DELEGATES))
    editor.open(project)
    editor.answers = ["allow", "reject"]
    editor.prompt("Delegate it")
    contract, change = editor.questions
    assert "asks to spawn children" in contract["toolCall"]["title"]
    assert "has a change to merge" in change["toolCall"]["title"]
    (diff,) = [c for c in change["toolCall"]["content"] if c["type"] == "diff"]
    assert diff["newText"] == "hi\n"
    assert editor.calls()[contract["toolCall"]["toolCallId"]]["status"] == "completed"
    (child,) = editor.children()
    assert change["toolCall"]["toolCallId"] == child["toolCallId"]
    assert child["status"] == "failed"
    assert child["title"] == "executor.1: Write a.txt"
    assert {call["status"] for call in editor.calls().values()} <= {"completed", "failed"}
    assert not (project / "a.txt").exists()


def test_subagents_are_announced_to_clients_that_know_them(
    edit: Edit, script: Script, project: Path
) -> None:
    editor = edit("-m", script(DELEGATES), "--mode", "auto")
    editor.initialize(subagents={})
    opened = editor.ask("session/new", cwd=str(project), mcpServers=[])["result"]
    editor.session = opened["sessionId"]
    editor.prompt("Delegate it")
    states = [u["state"]["state"] for u in editor.of_kind("subagent_update")]
    assert states == ["running", "idle"]
    sessions = editor.ask("session/list", cwd=str(project))["result"]["sessions"]
    assert [s["sessionId"] for s in sessions] == [editor.session]
    assert sessions[0]["title"] == "Delegate it"


def test_cancel_with_an_open_question_ends_the_prompt(
    edit: Edit, script: Script, project: Path
) -> None:
    editor = edit("-m", script(WRITES))
    editor.open(project)
    prompt = editor.start_prompt("Write")
    message = editor.read()
    while not editor.questions:
        message = editor.read()
    editor.send({"method": "session/cancel", "params": {"sessionId": editor.session}})
    assert editor.answer(prompt)["result"] == {"stopReason": "cancelled"}
    editor.choose(message["id"], "allow")  # Too late, and twice.
    editor.choose(message["id"], "allow")
    assert not (project / "a.txt").exists()
    editor.answers = ["allow"]
    assert editor.prompt("/resume")["result"]["stopReason"] == "end_turn"
    assert (project / "a.txt").exists()


def test_cancel_right_after_a_prompt_is_not_lost(edit: Edit, serve: Serve, project: Path) -> None:
    server = serve(Response(ending=ResponseEnding.HANG))
    editor = edit("-m", server.model)
    editor.open(project)
    prompt = editor.start_prompt("Look")
    editor.send({"method": "session/cancel", "params": {"sessionId": editor.session}})
    assert editor.answer(prompt)["result"] == {"stopReason": "cancelled"}
    editor.send({"method": "session/cancel", "params": {"sessionId": "nope"}})
    editor.send({"method": "session/cancel", "params": {"sessionId": 7}})
    assert editor.ask("session/list", cwd=str(project))["result"] == {"sessions": []}


def test_second_prompt_at_once_is_refused(edit: Edit, serve: Serve, project: Path) -> None:
    server = serve(Response(ending=ResponseEnding.HANG))
    editor = edit("-m", server.model)
    editor.open(project)
    editor.start_prompt("Look")
    server.received(1)
    error = editor.prompt("And this")["error"]
    assert error["message"].startswith("The session is still answering a prompt")


def test_session_is_loaded_from_the_journal_and_continued(
    edit: Edit, script: Script, project: Path, cli: Cli
) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    editor = edit("-m", script(DELEGATES), "--mode", "auto")
    editor.open(project)
    editor.prompt("Delegate it")
    lived = editor.calls()
    assert editor.close() == 0
    later = edit("-m", script(SAYS))
    later.initialize()
    session = {"sessionId": editor.session, "cwd": str(project), "mcpServers": []}
    assert later.ask("session/load", **session)["result"]["modes"]["currentModeId"] == "normal"
    (said,) = later.of_kind("user_message_chunk")
    assert said["content"]["text"] == "Delegate it"
    assert later.text == editor.text
    replayed = later.calls()
    assert replayed.keys() == lived.keys()
    assert [c["content"] for c in replayed.values()] == [c["content"] for c in lived.values()]
    later.session = editor.session
    assert later.prompt("What now?")["result"]["stopReason"] == "end_turn"
    (listed,) = later.ask("session/list", cwd=str(project))["result"]["sessions"]
    assert (listed["sessionId"], listed["title"]) == (editor.session, "Delegate it")
    assert cli("sessions", "rename", editor.session, "Renamed").code == 0
    (listed,) = later.ask("session/list", cwd=str(project))["result"]["sessions"]
    assert listed["title"] == "Renamed"
    resumed = edit("-m", script(SAYS))
    resumed.initialize()
    assert "result" in resumed.ask("session/resume", **session)
    assert resumed.of_kind("user_message_chunk") == []
    missing = resumed.ask("session/load", **session | {"sessionId": "nope"})["error"]
    assert missing["code"] == -32002


def test_mode_holds_from_the_next_prompt_on(edit: Edit, script: Script, project: Path) -> None:
    editor = edit("-m", script(WRITES))
    editor.open(project)
    where = {"sessionId": editor.session}
    assert editor.ask("session/set_mode", **where, modeId="plan")["result"] == {}
    (update,) = editor.of_kind("current_mode_update")
    assert update["currentModeId"] == "plan"
    editor.prompt("Write")
    assert not (project / "a.txt").exists()
    changed = editor.ask("session/set_config_option", **where, configId="mode", value="auto")
    assert changed["result"]["configOptions"][0]["currentValue"] == "auto"
    editor.prompt("Write")
    assert (project / "a.txt").exists()
    assert editor.questions == []
    error = editor.ask("session/set_mode", **where, modeId="dangerous")["error"]
    assert error["message"] == "Unknown mode 'dangerous'; there are: plan, normal, auto."


def test_model_is_chosen_from_the_settings(
    edit: Edit, script: Script, project: Path, settings: Callable[[str], Path]
) -> None:
    settings(f'[models]\nmine = "{script(SAYS)}"\n')
    editor = edit("-m", "scripted:nope.yaml")
    editor.open(project)
    assert "nope.yaml" in editor.prompt("Look")["error"]["message"]
    chosen = editor.ask(
        "session/set_config_option", sessionId=editor.session, configId="model", value="mine"
    )
    assert chosen["result"]["configOptions"][1]["currentValue"] == "mine"
    assert editor.prompt("Look")["result"]["stopReason"] == "end_turn"
    assert editor.text == "There is one file."


def test_files_buffers_resources_and_images_reach_the_model(
    edit: Edit, serve: Serve, project: Path
) -> None:
    (project / "a.txt").write_text("saved\n")
    server = serve(say("Seen."))
    editor = edit("-m", server.model)
    editor.initialize(fs={"readTextFile": True})
    editor.buffers[str(project / "a.txt")] = "not saved\n"
    opened = editor.ask("session/new", cwd=str(project), mcpServers=[])["result"]
    editor.session = opened["sessionId"]
    answer = editor.prompt(
        "Compare",
        {"type": "resource_link", "uri": f"file://{project}/a.txt", "name": "a.txt"},
        {"type": "resource", "resource": {"uri": "untitled:1", "text": "a draft"}},
        {"type": "image", "data": PIXEL, "mimeType": "image/png"},
    )
    assert answer["result"]["stopReason"] == "end_turn"
    sent = server.requests[0].body.decode()
    assert "not saved" in sent
    assert "a draft" in sent
    assert PIXEL in sent
    assert "Compare @a.txt @untitled:1" in sent


def test_unreadable_blocks_are_one_error_each(edit: Edit, script: Script, project: Path) -> None:
    editor = edit("-m", script(SAYS))
    editor.open(project)
    blocks: dict[str, dict[str, Any]] = {
        "of type 'audio'": {"type": "audio", "data": "", "mimeType": "audio/wav"},
        "not base64": {"type": "image", "data": "??", "mimeType": "image/png"},
        "image of type 'image/tiff'": {"type": "image", "data": "", "mimeType": "image/tiff"},
        "a text, or a blob": {"type": "resource", "resource": {"uri": "x:y"}},
    }
    for message, block in blocks.items():
        error = editor.prompt(block)["error"]
        assert error["code"] == -32602
        assert message in error["message"]
    assert editor.prompt("Look")["result"]["stopReason"] == "end_turn"


def test_plan_is_shown_accepted_and_run(edit: Edit, script: Script, project: Path) -> None:
    step = {"name": "look", "title": "Look around", "role": "researcher", "task": "Look around."}
    answer = json.dumps(json.dumps({"summary": "Look.", "steps": [step]}))
    model = script(
        f"rules:\n  - match: You are a planner\n    steps: [{{say: {answer}}}]\n"
        '  - match: ""\n    steps: [{say: Looked.}]\n'
    )
    editor = edit("-m", model)
    editor.open(project)
    editor.answers = ["allow"]
    assert editor.prompt("/plan Look")["result"]["stopReason"] == "end_turn"
    (question,) = editor.questions
    assert question["toolCall"]["title"] == "Run this plan?"
    entries = [[e["status"] for e in plan["entries"]] for plan in editor.of_kind("plan")]
    assert entries == [["pending"], ["in_progress"], ["completed"]]
    assert "Looked." in editor.text
    assert editor.prompt("/plan")["error"]["message"] == "/plan needs a goal: /plan GOAL"


def test_changes_are_shown_undone_and_redone(edit: Edit, script: Script, project: Path) -> None:
    editor = edit("-m", script(WRITES), "--mode", "auto")
    editor.open(project)
    editor.prompt("Write")
    editor.prompt("/diff")
    (shown,) = [c for c in editor.calls().values() if c["toolCallId"].startswith("diff/")]
    assert shown["content"][0]["newText"] == "hi\n"
    editor.prompt("/undo")
    assert not (project / "a.txt").exists()
    editor.prompt("/redo")
    assert (project / "a.txt").exists()
    assert editor.prompt("/redo")["error"]["message"] == "There is nothing to redo in this session."
    assert editor.prompt("/resume")["error"]["message"] == "Nothing was interrupted."


@pytest.mark.parametrize("how", ["closed", "terminated"])
def test_editor_that_is_gone_leaves_a_run_that_can_be_resumed(
    edit: Edit, serve: Serve, project: Path, cli: Cli, how: str
) -> None:
    server = serve(Response(ending=ResponseEnding.HANG))
    editor = edit("-m", server.model)
    editor.open(project)
    editor.start_prompt("Look")
    server.received(1)
    if how == "closed":
        assert editor.close() == 0
    else:
        editor.process.send_signal(signal.SIGTERM)
        assert editor.process.wait(timeout=60) == 0
    (row,) = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    assert row["status"] is None
    assert "interrupted" in cli("show", row["id"]).out


def test_editor_that_is_gone_before_it_answers_has_not_refused(
    edit: Edit, script: Script, project: Path, cli: Cli
) -> None:
    editor = edit("-m", script(WRITES))
    editor.open(project)
    editor.start_prompt("Write")
    while not editor.questions:
        editor.read()
    assert editor.close() == 0
    (row,) = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    assert row["status"] is None
    assert "refused by the user" not in cli("show", row["id"]).out


def test_wrong_requests_get_one_error_each(edit: Edit) -> None:
    wrong: list[tuple[str, dict[str, Any], int, str]] = [
        ("rocket", {}, -32601, "Unknown method 'rocket'."),
        ("initialize", {}, -32602, "protocolVersion must be a whole number."),
        ("session/new", {"cwd": "here"}, -32602, "cwd must be an absolute path, not 'here'."),
        ("session/new", {"cwd": "/none/here"}, -32602, "There is no directory '/none/here'."),
        ("session/prompt", {"sessionId": "x"}, -32002, "No session 'x' is open"),
        ("session/list", {"cursor": "x"}, -32602, "Unknown cursor 'x'."),
        ("session/load", {"cwd": "/"}, -32602, "sessionId must be a text."),
    ]
    editor = edit()
    for method, params, code, message in wrong:
        error = editor.ask(method, **params)["error"]
        assert error["code"] == code, method
        assert error["message"].startswith(message)
    assert editor.initialize()["protocolVersion"] == 1
    assert editor.close() == 0


def test_session_is_closed(edit: Edit, serve: Serve, project: Path) -> None:
    server = serve(Response(ending=ResponseEnding.HANG))
    editor = edit("-m", server.model)
    editor.open(project)
    prompt = editor.start_prompt("Look")
    server.received(1)
    closing = editor.start("session/close", sessionId=editor.session)
    assert editor.answer(prompt)["result"] == {"stopReason": "cancelled"}
    assert editor.answer(closing)["result"] == {}
    assert editor.prompt("Look")["error"]["code"] == -32002


def test_blob_is_decoded(edit: Edit, serve: Serve, project: Path) -> None:
    server = serve(say("Seen."))
    editor = edit("-m", server.model)
    editor.open(project)
    blob = base64.b64encode(b"from a blob").decode()
    editor.prompt({"type": "resource", "resource": {"uri": "file:///etc/x", "blob": blob}})
    assert "from a blob" in server.requests[0].body.decode()


def test_servers_of_the_editor_give_the_agents_tools(
    edit: Edit, script: Script, project: Path
) -> None:
    model = script(
        "rules:\n  - match: ''\n    steps:\n"
        "      - {call: mcp__My-Echo__env}\n      - {say: Done.}\n"
    )
    variables = [{"name": "GREETING", "value": "from the editor"}]
    server = {
        "name": "My Echo",
        "command": sys.executable,
        "args": [str(ECHO_SERVER)],
        "env": variables,
    }
    editor = edit("-m", model)
    editor.open(project, [server])
    editor.answers = ["allow"]
    assert editor.prompt("Echo")["result"]["stopReason"] == "end_turn"
    assert len(editor.questions) == 1  # What servers do counts as a change, also here.
    (call,) = editor.calls().values()
    assert "from the editor" in call["content"][0]["content"]["text"]


def test_wrong_servers_of_the_editor_are_refused(edit: Edit, project: Path) -> None:
    wrong: dict[str, Any] = {
        "mcpServers must be a list.": "x",
        "An MCP server has a name, and a command or a type and a url.": [{"name": "x"}],
        "env and headers are lists of": [{"name": "x", "command": "y", "env": {"A": "b"}}],
    }
    editor = edit()
    editor.initialize()
    for message, servers in wrong.items():
        error = editor.ask("session/new", cwd=str(project), mcpServers=servers)["error"]
        assert error["code"] == -32602
        assert error["message"].startswith(message)


def test_root_reads_what_is_not_saved_and_writes_to_disk(
    edit: Edit, serve: Serve, project: Path
) -> None:
    (project / "a.txt").write_text("saved\n")
    (project / "b.txt").write_text("same\n")
    server = serve(
        calls(call("read_file", path="a.txt"), call("read_file", path="b.txt")), say("Seen.")
    )
    editor = edit("-m", server.model)
    editor.buffers = {str(project / "a.txt"): "not saved\n", str(project / "b.txt"): "same\n"}
    editor.open(project, fs={"readTextFile": True})
    assert editor.prompt("Read")["result"]["stopReason"] == "end_turn"
    first, second = editor.calls().values()
    assert first["content"][0]["content"]["text"].startswith(
        "[The user's editor has unsaved changes in this file; this is its text."
    )
    assert "not saved" in first["content"][0]["content"]["text"]
    assert "same" in second["content"][0]["content"]["text"]
    assert "unsaved" not in second["content"][0]["content"]["text"]
    assert (project / "a.txt").read_text() == "saved\n"


def test_terminal_of_the_editor_shows_the_output_of_a_command(
    edit: Edit, script: Script, project: Path
) -> None:
    model = script(
        "rules:\n  - match: ''\n    steps:\n"
        "      - {call: run_command, args: {command: echo one && exit 3}}\n      - {say: Done.}\n"
    )
    editor = edit("-m", model, "--mode", "auto", "--unsafe-no-sandbox")
    editor.open(project, _meta={"terminal_output": True})
    editor.prompt("Run it")
    shown, ended = (u for u in editor.updates if u["sessionUpdate"].startswith("tool_call"))
    name = shown["toolCallId"]
    assert shown["content"] == [{"type": "terminal", "terminalId": name}]
    assert shown["_meta"]["terminal_info"] == {"terminal_id": name, "cwd": str(project)}
    assert "one\r\n" in ended["_meta"]["terminal_output"]["data"]
    assert ended["_meta"]["terminal_exit"]["exit_code"] == 3
