"""What hooks can do to an agent, and what happens if they break."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import retinue
from retinue.domain.approval import ApprovalRequest
from retinue.domain.hook import MAX_STOP_BLOCKS
from retinue.domain.messages import Request, ToolMessage, UserMessage
from retinue.errors import ConfigError, RunSuspended, Unreachable, UsageError
from retinue.events import Event, HookFinished
from retinue.hooks.runner import HookRunner
from retinue.models.scripted.model import ScriptedModel, call, calls, fail, say
from retinue.runtime.runtime import Runtime

if TYPE_CHECKING:
    from tests.conftest import Repo

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
Settings = Callable[[str], None]
WRITE = call("write_file", path="a.txt", content="x")
FORMATTER = """sed -i s/x/y/ "$(sed 's/.*"file_path":"\\([^"]*\\)".*/\\1/')\""""
"""Replaces x by y in the file that a tool has written."""


def told(request: Request) -> list[str]:
    return [m.content for m in request.messages if isinstance(m, ToolMessage)]


def messages(request: Request) -> list[str]:
    return [m.content for m in request.messages if isinstance(m, UserMessage)]


def hook(event: str, command: str, matcher: str = "", timeout: float = 20) -> str:
    return (
        f"[[hooks.{event}]]\nmatcher = {json.dumps(matcher)}\n"
        f"hooks = [{{ type = 'command', command = {json.dumps(command)}, timeout = {timeout} }}]\n"
    )


def answer(**fields: Any) -> str:
    """A command that prints an answer in JSON."""
    return f"echo {json.dumps(json.dumps(fields))}"


def specific(**fields: Any) -> str:
    return answer(hookSpecificOutput={"hookEventName": "PreToolUse", **fields})


def outcomes(events: list[Event]) -> list[tuple[str, str]]:
    facts = [event.fact for event in events]
    return [(fact.outcome, fact.detail) for fact in facts if isinstance(fact, HookFinished)]


async def test_exit_code_2_denies_and_the_model_is_told_why(
    opened: Opened, settings: Settings, project: Path
) -> None:
    settings(hook("PreToolUse", "echo not this >&2; exit 2", "Write|Edit"))
    model, seen = ScriptedModel([WRITE, say("ok")]), list[Event]()
    async with opened(model=model, mode="auto", on_event=seen.append) as rt:
        assert (await rt.run("Write.")).ok
    assert not (project / "a.txt").exists()
    assert told(model.requests[1]) == [
        "[DENIED] PreToolUse:Write hook error: [echo not this >&2; exit 2]: not this"
    ]
    assert outcomes(seen) == [("blocked", "not this")]
    summaries = [event.summary for event in seen if event.type == "hook.finished"]
    assert summaries == ["PreToolUse hook echo not this >&2; exit 2 blocked: not this"]


@pytest.mark.parametrize(
    "command",
    [
        specific(permissionDecision="deny", permissionDecisionReason="no"),
        answer(decision="block", reason="no"),
    ],
)
async def test_an_answer_denies(
    opened: Opened, settings: Settings, project: Path, command: str
) -> None:
    settings(hook("PreToolUse", command))
    model = ScriptedModel([WRITE, say("ok")])
    async with opened(model=model, mode="auto") as rt:
        await rt.run("Write.")
    assert not (project / "a.txt").exists()
    assert told(model.requests[1])[0].endswith("]: no")


async def test_a_hook_that_does_not_match_is_not_run(
    opened: Opened, settings: Settings, project: Path
) -> None:
    settings(hook("PreToolUse", "exit 2", "Bash|mcp__.*"))
    seen: list[Event] = []
    model = ScriptedModel([WRITE, say("ok")])
    async with opened(model=model, mode="auto", on_event=seen.append) as rt:
        await rt.run("Write.")
    assert (project / "a.txt").exists()
    assert outcomes(seen) == []


@pytest.mark.parametrize("yes", [True, False])
async def test_a_hook_has_the_user_asked(
    opened: Opened, settings: Settings, project: Path, yes: bool
) -> None:
    settings("allow = ['write_file']\n" + hook("PreToolUse", specific(permissionDecision="ask")))
    asked: list[ApprovalRequest] = []

    async def approve(request: ApprovalRequest) -> bool:
        asked.append(request)
        return yes

    model = ScriptedModel([WRITE, say("ok")])
    async with opened(model=model, mode="auto", approve=approve) as rt:
        await rt.run("Write.")
    assert [request.why for request in asked] == ["a hook asks"]
    assert (project / "a.txt").exists() is yes


async def test_without_a_person_no_rule_is_named_that_a_hook_overrules(
    opened: Opened, settings: Settings
) -> None:
    settings("allow = ['write_file']\n" + hook("PreToolUse", specific(permissionDecision="ask")))
    async with opened(model=ScriptedModel([WRITE]), mode="auto") as rt:
        result = await rt.run("Write.")
    assert result.status == "rejected"
    assert result.error is not None
    assert result.error.endswith(
        "That needs your yes (a hook asks), but no person can be asked; run it in a terminal."
    )


async def test_a_hook_that_allows_what_the_contract_denies_has_no_effect(
    opened: Opened, settings: Settings, project: Path
) -> None:
    settings(
        "deny = ['write_file(a.txt)']\n" + hook("PreToolUse", specific(permissionDecision="allow"))
    )
    forbidden = call("run_command", command="touch b.txt")
    model = ScriptedModel([WRITE, forbidden, say("ok")])
    async with opened(model=model, mode="auto") as rt:
        await rt.run("Write.")
    assert os.listdir(project) == [".retinue"]
    rule, tool = told(model.requests[2])
    assert rule.startswith("[DENIED] The user's rules forbid this use of write_file.")
    assert tool.startswith("[DENIED] You have no tool 'run_command'.")


async def test_allow_does_not_answer_for_the_user(opened: Opened, settings: Settings) -> None:
    settings(hook("PreToolUse", specific(permissionDecision="allow")))
    async with opened(model=ScriptedModel([WRITE])) as rt:
        assert (await rt.run("Write.")).status == "rejected"


async def test_a_hook_changes_the_input(opened: Opened, settings: Settings, project: Path) -> None:
    other = {"file_path": str(project / "b.txt"), "content": "y"}
    settings(hook("PreToolUse", specific(permissionDecision="allow", updatedInput=other)))
    async with opened(model=ScriptedModel([WRITE, say("ok")]), mode="auto") as rt:
        await rt.run("Write.")
    assert not (project / "a.txt").exists()
    assert (project / "b.txt").read_text() == "y"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"file_path": "/etc/passwd", "content": "y"}, "[ERROR] "),
        ({"file_path": "secret/b.txt", "content": "y"}, "[DENIED] The user's rules forbid"),
        ({"file_path": "b.txt", "content": 7}, "[ERROR] "),
        ({"file_path": "b.txt", "content": "", "sudo": True}, "[DENIED] A hook added what "),
    ],
)
async def test_changed_input_is_checked_again(
    opened: Opened, settings: Settings, project: Path, other: dict[str, Any], said: str
) -> None:
    settings("deny = ['write_file(secret/*)']\n" + hook("PreToolUse", specific(updatedInput=other)))
    model = ScriptedModel([WRITE, say("ok")])
    async with opened(model=model, mode="auto") as rt:
        await rt.run("Write.")
    assert told(model.requests[1])[0].startswith(said)
    assert os.listdir(project) == [".retinue"]


async def test_hooks_add_context(opened: Opened, settings: Settings) -> None:
    settings(
        hook("SessionStart", "echo 'The branch is main.'")
        + hook(
            "UserPromptSubmit", answer(hookSpecificOutput={"additionalContext": "It is Monday."})
        )
        + hook("PostToolUse", answer(decision="block", reason="Now format it."))
    )
    model = ScriptedModel([WRITE, say("ok")])
    async with opened(model=model, mode="auto") as rt:
        await rt.run("Write.")
    assert messages(model.requests[0])[1:] == ["The branch is main.", "It is Monday."]
    assert told(model.requests[1])[0].endswith(": Now format it.")


async def test_failed_calls_have_an_event_of_their_own(
    opened: Opened, settings: Settings, project: Path
) -> None:
    log = project / "log.jsonl"
    keep = f"cat >> {log}; echo >> {log}"
    said = answer(hookSpecificOutput={"additionalContext": "Look in docs."})
    settings(hook("PostToolUse", keep) + hook("PostToolUseFailure", f"{keep}; {said}"))
    steps = [
        call("read_file", path="none.txt"),
        call("run_command", command="echo why >&2; exit 3"),
        WRITE,
        say("ok"),
    ]
    model = ScriptedModel(steps)
    async with opened(model=model, mode="auto", shell=True, unsafe_no_sandbox=True) as rt:
        await rt.run("Read.")
    given = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(one["hook_event_name"], one["tool_name"]) for one in given] == [
        ("PostToolUseFailure", "Read"),
        ("PostToolUseFailure", "Bash"),
        ("PostToolUse", "Write"),
    ]
    assert given[1]["error"] == "Exit code 3\nwhy\n"
    assert given[1]["is_interrupt"] is False
    assert "tool_response" not in given[1]
    assert told(model.requests[1])[0].endswith("[hook] Look in docs.")


@pytest.mark.parametrize("matcher", ["Write", "write", "create_file|Bash", "write_file", "^Wr"])
async def test_a_matcher_may_use_any_name_of_a_tool(
    opened: Opened, settings: Settings, project: Path, matcher: str
) -> None:
    settings(hook("PreToolUse", "exit 2", matcher))
    async with opened(model=ScriptedModel([WRITE, say("ok")]), mode="auto") as rt:
        await rt.run("Write.")
    assert not (project / "a.txt").exists()


async def test_a_prompt_is_blocked_before_any_model_call(
    opened: Opened, settings: Settings
) -> None:
    settings(hook("UserPromptSubmit", "grep -q password && echo secrets >&2 && exit 2; exit 0"))
    model = ScriptedModel([])
    async with opened(model=model) as rt:
        result = await rt.run("My password is x.")
    assert (result.status, result.response, model.requests) == ("rejected", "", [])
    assert (result.error or "").endswith("exit 0]: secrets")


async def test_a_stop_hook_sends_the_model_on(opened: Opened, settings: Settings) -> None:
    settings(hook("Stop", "grep -q '\"stop_hook_active\":true' || { echo run tests >&2; exit 2; }"))
    model = ScriptedModel([say("done"), say("tested")])
    async with opened(model=model) as rt:
        result = await rt.run("Work.")
    assert result.response == "tested"
    assert messages(model.requests[1])[-1].endswith("]: run tests")


async def test_stop_hooks_that_always_block_are_bounded(opened: Opened, settings: Settings) -> None:
    settings(hook("Stop", answer(decision="block", reason="again")))
    model = ScriptedModel([say(f"answer {n}") for n in range(MAX_STOP_BLOCKS + 1)])
    seen: list[Event] = []
    async with opened(model=model, on_event=seen.append) as rt:
        result = await rt.run("Work.")
    assert result.response == f"answer {MAX_STOP_BLOCKS}"
    assert outcomes(seen)[-1] == (
        "failed",
        f"blocked {MAX_STOP_BLOCKS} times before, so the agent ends all the same",
    )


async def test_hooks_at_the_end_find_the_conversation_at_their_path(
    opened: Opened, settings: Settings, project: Path, tmp_path: Path
) -> None:
    def read(field: str) -> str:
        return f"python3 -c 'import json, sys; print(json.load(sys.stdin){field})'"

    # Public stop hooks find the last answer like this, without a space after the colon.
    path, text = read('["transcript_path"]'), read('["message"]["content"][-1]["text"]')
    last = f"""grep '"role":"assistant"' "$({path})" | tail -1 | {text} > {tmp_path}/last.txt"""
    kept, path = tmp_path / "kept.jsonl", read('["agent_transcript_path"]')
    settings(hook("Stop", last) + hook("SubagentStop", f'cp "$({path})" {kept}'))
    model = ScriptedModel(
        {
            "Go.": [call("spawn_agent", role="executor", task="Write."), say("All is done.")],
            "Write.": [WRITE, say("Written.")],
        }
    )
    async with opened(model=model, mode="auto") as rt:
        assert (await rt.run("Go.")).ok
    assert (tmp_path / "last.txt").read_text() == "All is done.\n"
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [line["type"] for line in lines] == ["user", "assistant", "user", "assistant"]
    assert [line["parentUuid"] for line in lines] == [None, *(line["uuid"] for line in lines[:-1])]
    (use,) = lines[1]["message"]["content"]
    assert (use["type"], use["name"], use["input"]["content"]) == ("tool_use", "Write", "x")
    (result,) = lines[2]["message"]["content"]
    assert (result["tool_use_id"], result["type"]) == (use["id"], "tool_result")
    assert not (project / ".retinue/transcripts").exists(), "the journal is the only copy"


async def test_a_transcript_that_cannot_be_written_fails_no_hook(
    opened: Opened, settings: Settings, project: Path
) -> None:
    (project / ".retinue").mkdir(exist_ok=True)
    (project / ".retinue/transcripts").write_text("in the way")
    settings(hook("Stop", "true"))
    seen: list[Event] = []
    async with opened(model=ScriptedModel([say("ok")]), on_event=seen.append) as rt:
        assert (await rt.run("Go.")).ok
    assert outcomes(seen) == [("passed", "")]


async def test_continue_false_stops_the_run(opened: Opened, settings: Settings) -> None:
    settings(hook("PostToolUse", answer(**{"continue": False, "stopReason": "enough"})))
    model = ScriptedModel([WRITE])
    async with opened(model=model, mode="auto") as rt:
        result = await rt.run("Write.")
    assert (result.status, result.error) == ("cancelled", "stopped by a hook: enough")
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("command", "detail"),
    [
        ("exit 3", "ended with exit code 3"),
        ("echo oh >&2; exit 1", "ended with exit code 1: oh"),
        ("kill -9 $$", "was killed by signal 9"),
        ("no-such-program-here", "ended with exit code 127: "),
        ("echo '{\"decision\": '", "printed broken JSON ("),
        ("yes | head -c 3000000", "printed 1,951,424 bytes too many; its output is ignored"),
        (
            answer(hookSpecificOutput={"updatedInput": 7}),
            "updatedInput is int instead of an object",
        ),
    ],
)
async def test_a_broken_hook_has_no_say_and_is_recorded(
    opened: Opened, settings: Settings, project: Path, command: str, detail: str
) -> None:
    settings(hook("PreToolUse", command))
    seen: list[Event] = []
    model = ScriptedModel([WRITE, say("ok")])
    async with opened(model=model, mode="auto", on_event=seen.append) as rt:
        assert (await rt.run("Write.")).ok
    assert (project / "a.txt").exists()
    ((outcome, found),) = outcomes(seen)
    assert outcome == "failed"
    assert found.startswith(detail)


async def test_a_hook_that_never_ends_is_killed(
    opened: Opened, settings: Settings, project: Path
) -> None:
    settings(hook("PreToolUse", "yes", timeout=0.3))
    seen: list[Event] = []
    model = ScriptedModel([WRITE, say("ok")])
    async with opened(model=model, mode="auto", on_event=seen.append) as rt:
        assert (await rt.run("Write.")).ok
    assert outcomes(seen) == [("failed", "did not end within 0.3 s and was killed")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            hook("PreToolUse", "x", timeout=5000),
            "timeout counts seconds, and 5000 looks like milliseconds; write 5",
        ),
        (hook("PreToolUse", "x", "("), "the matcher '(' is no regular expression"),
        (hook("BeforeLunch", "x"), "there is no event 'BeforeLunch'; there are: SessionStart, "),
        (hook("Stop", " "), "the command is empty"),
    ],
)
async def test_wrong_settings_are_named(
    opened: Opened, settings: Settings, text: str, problem: str
) -> None:
    settings(text)
    with pytest.raises(ConfigError) as raised:
        async with opened(model=ScriptedModel([])):
            pass
    assert problem in str(raised.value)


async def test_functions_are_hooks(opened: Opened, project: Path) -> None:
    given: list[dict[str, Any]] = []
    model = ScriptedModel([WRITE, say("ok")])
    async with opened(model=model, mode="auto") as rt:

        @rt.on("pre_tool_use", "Write")
        async def guard(input: dict[str, Any]) -> dict[str, Any]:
            given.append(input)
            return {"decision": "block", "reason": "not now"}

        @rt.on("Stop")
        def broken(input: dict[str, Any]) -> None:
            raise ValueError("oops")

        assert (await rt.run("Write.")).ok
        with pytest.raises(UsageError, match=r"Unknown event 'x'; known: session_start, "):
            rt.on("x")
    assert given[0]["tool_input"]["file_path"] == str(project / "a.txt")
    assert told(model.requests[1])[0].endswith("guard]: not now")


async def test_without_hooks_nothing_is_called(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    from retinue.runtime.agent.hook_calls import HookCalls

    calls: list[str] = []
    monkeypatch.setattr(HookRunner, "run", lambda *_: calls.append("run"))
    monkeypatch.setattr(HookCalls, "__init__", lambda *_: calls.append("made"))
    model = ScriptedModel(
        [WRITE, call("spawn_agent", role="researcher", task="Look."), say("a"), say("b")]
    )
    async with opened(model=model, mode="auto") as rt:
        assert (await rt.run("Write.")).ok
    assert calls == []


def bring_hook(project: Path, event: str, script: str) -> Path:
    """Have the project bring a hook, a Python script."""
    file = project / ".claude/hooks/hook.py"
    file.parent.mkdir(parents=True)
    file.write_text(script)
    entry = {"type": "command", "command": "python3 $CLAUDE_PROJECT_DIR/.claude/hooks/hook.py"}
    text = json.dumps({"hooks": {event: [{"hooks": [entry]}]}})
    (project / ".claude/settings.json").write_text(text)
    return file


OUTSIDE = """\
import pathlib, socket
pathlib.Path("formatted.txt").write_text("x")
try:
    pathlib.Path("{outside}").write_text("x")
except OSError:
    pass
try:
    socket.create_connection(("127.0.0.1", {port}), 1)
    pathlib.Path("connected.txt").write_text("x")
except OSError:
    pass
"""


async def test_a_projects_hook_is_confined(opened: Opened, project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    bring_hook(project, "PostToolUse", OUTSIDE.format(outside=outside, port=port))
    seen: list[Event] = []
    async with (
        server,
        opened(
            model=ScriptedModel([WRITE, say("ok")]), mode="auto", trust=True, on_event=seen.append
        ) as rt,
    ):
        assert (await rt.run("Write.")).ok
    assert outcomes(seen) == [("passed", "")]
    assert (project / "formatted.txt").exists()
    assert not outside.exists()
    assert not (project / "connected.txt").exists()


async def test_an_untrusted_projects_hook_does_nothing(opened: Opened, project: Path) -> None:
    bring_hook(project, "PreToolUse", "import sys; sys.exit(2)")
    seen: list[Event] = []
    model = ScriptedModel([WRITE, say("ok")])
    async with opened(model=model, mode="auto", on_event=seen.append) as rt:
        assert (await rt.run("Write.")).ok
        assert "without the project's hooks: this folder is not trusted" in rt.notes[0]
    assert (project / "a.txt").exists()
    assert outcomes(seen) == []


async def test_an_agent_cannot_get_rid_of_a_projects_hook_by_changing_it(
    opened: Opened, project: Path
) -> None:
    bring_hook(project, "PreToolUse", "pass")
    rewrite = call("write_file", path=".claude/hooks/hook.py", content="print()")
    model = ScriptedModel([rewrite, WRITE, say("ok")])
    async with opened(model=model, mode="auto", trust=True) as rt:
        assert (await rt.run("Write.")).ok
    assert told(model.requests[2])[1].endswith(
        "its files have changed since you trusted it; `retinue trust` allows it again"
    )
    assert not (project / "a.txt").exists()


async def test_a_child_is_sent_on_by_its_own_event(opened: Opened, settings: Settings) -> None:
    script = "grep -q '\"stop_hook_active\":true' || { echo look again >&2; exit 2; }"
    settings(hook("SubagentStop", script, "researcher") + hook("SubagentStop", "exit 2", "tester"))
    model = ScriptedModel([
        call("spawn_agent", role="researcher", task="Look."),
        say("nothing"),
        say("found it"),
        say("ok"),
    ])  # fmt: skip
    async with opened(model=model) as rt:
        assert (await rt.run("Work.")).ok
    assert messages(model.requests[2])[-1].endswith("]: look again")
    assert "found it" in told(model.requests[3])[0]


async def test_a_session_starts_and_ends_once_in_a_process(
    opened: Opened, settings: Settings, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    both = ("SessionStart", "SessionEnd")
    settings("".join(hook(event, f"echo {event} >> {log}") for event in both))
    async with opened(model=ScriptedModel([say("one"), say("two")])) as rt:
        first = await rt.run("One.")
        await rt.run("Two.", session=first.session)
        assert log.read_text() == "SessionStart\n"
    assert log.read_text() == "SessionStart\nSessionEnd\n"


async def test_a_resumed_run_submits_no_prompt_again(
    opened: Opened, settings: Settings, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    of_session = [
        hook("SessionStart", f"echo {source} >> {log}", matcher=source)
        for source in ("startup", "resume")
    ]
    settings("".join([*of_session, hook("UserPromptSubmit", f"echo prompt >> {log}")]))
    gone = fail(Unreachable("nothing listens"))
    async with opened(model=ScriptedModel([call("list_dir", path="."), gone])) as rt:
        with pytest.raises(RunSuspended) as suspended:
            await rt.run("Work.")
    assert log.read_text().split() == ["startup", "prompt"]
    log.unlink()
    async with opened(model=ScriptedModel([say("Done.")])) as rt:
        assert (await rt.resume(suspended.value.run_id)).ok
    assert log.read_text().split() == ["resume"]


async def test_hooks_of_a_run_see_contracts_merges_budgets_and_the_end(
    opened: Opened, settings: Settings, repo: Repo
) -> None:
    repo.init().commit({"a.txt": "1\n"})
    seen: list[dict[str, Any]] = []
    look = [call("list_dir"), call("find_files", pattern="*")]
    write = call("write_file", path="b.txt", content="x\n")
    model = ScriptedModel({"Write": [*look, write, say("Written.")]})
    async with opened(model=model, mode="auto") as rt:
        for event in ("contract_drafted", "pre_merge", "post_merge", "budget_warning"):
            rt.on(event, "executor")(seen.append)
        rt.on("run_finished", "completed")(seen.append)
        result = await rt.spawn("executor", "Write it.", max_tool_calls=5, write=["b.txt"])
    assert result.ok
    by_event = {given["hook_event_name"]: given for given in seen}
    assert len(by_event) == len(seen), "each event came once"
    assert list(by_event) == [
        "ContractDrafted", "BudgetWarning", "PreMerge", "PostMerge", "RunFinished",
    ]  # fmt: skip
    contract = by_event["ContractDrafted"]["contract"]
    assert contract["execution"]["role"] == "executor"
    assert "agent_id" not in by_event["ContractDrafted"], "the event belongs to the parent"
    assert by_event["BudgetWarning"]["tool_calls_left"] == 3
    change = [{"path": "b.txt", "added": 1, "removed": 0, "deleted": False}]
    for event in ("PreMerge", "PostMerge"):
        assert by_event[event]["files"] == change
        assert by_event[event]["agent_id"] == result.agent_id
        assert by_event[event]["permission_mode"] == "acceptEdits"
    assert by_event["RunFinished"]["status"] == "completed"


async def test_a_hook_refuses_a_contract(opened: Opened, settings: Settings) -> None:
    settings(hook("ContractDrafted", "echo no testers today >&2; exit 2", "tester"))
    model = ScriptedModel([call("spawn_agent", role="tester", task="Test."), say("ok")])
    async with opened(model=model, mode="auto") as rt:
        result = await rt.run("Go.")
    assert result.children == 0
    (refusal,) = told(model.requests[1])
    assert refusal.endswith("]: no testers today")


async def test_a_hook_refuses_a_merge(opened: Opened, settings: Settings, repo: Repo) -> None:
    repo.init().commit({"a.txt": "1\n"})
    settings(hook("PreMerge", "echo frozen >&2; exit 2"))
    model = ScriptedModel({"Write": [WRITE, say("Written.")]})
    async with opened(model=model, mode="auto") as rt:
        result = await rt.spawn("executor", "Write it.")
    assert result.status == "rejected"
    assert result.error == "PreMerge hook error: [echo frozen >&2; exit 2]: frozen"
    assert repo.files()["a.txt"].endswith("1\n")


async def test_a_log_that_hooks_write_is_no_change_of_the_children(
    opened: Opened, settings: Settings, project: Path, repo: Repo
) -> None:
    repo.init().commit({"a.txt": "1\n"})
    log = "mkdir -p logs && cat >> logs/hooks.jsonl && echo >> logs/hooks.jsonl"
    settings(hook("SubagentStop", log) + hook("PreToolUse", log) + hook("PostToolUse", FORMATTER))
    write = {name: call("write_file", path=f"{name}.txt", content="x\n") for name in "bc"}
    model = ScriptedModel({f"Write {name}": [step, say("ok")] for name, step in write.items()})
    async with opened(model=model, mode="auto") as rt:
        results = await rt.fan_out([retinue.Task("executor", f"Write {n}.") for n in "bc"])
    assert [result.status for result in results] == ["completed", "completed"]
    given = [json.loads(line) for line in (project / "logs/hooks.jsonl").read_text().splitlines()]
    assert sorted(g["hook_event_name"] for g in given) == ["PreToolUse"] * 2 + ["SubagentStop"] * 2
    assert str(project) not in {g["cwd"] for g in given}, "they are about the children's copies"
    written = [(project / name).read_text() for name in ("b.txt", "c.txt")]
    assert written == ["y\n", "y\n"], "a formatter changed the copies"


async def test_what_a_formatter_changed_is_undone_with_the_agents_edits(
    opened: Opened, settings: Settings, project: Path
) -> None:
    settings(hook("PostToolUse", FORMATTER))
    (project / "b.txt").write_text("one\ntwo\nthree\n")
    steps = [
        call("write_file", path="a.txt", content="x\nq\n"),
        call("edit_file", path="a.txt", old_text="y", new_text="z"),
        call("edit_file", path="b.txt", old_text="two", new_text="x"),
        say("ok"),
    ]
    async with opened(model=ScriptedModel(steps), mode="auto") as rt:
        run = await rt.run("Write.")
        assert (project / "a.txt").read_text() == "z\nq\n"
        assert (project / "b.txt").read_text() == "one\ny\nthree\n"
        (project / "b.txt").write_text("zero\none\ny\nthree\n")
        undone = await rt.undo(run.id)
        assert undone.ok
        assert not (project / "a.txt").exists()
        assert (project / "b.txt").read_text() == "zero\none\ntwo\nthree\n", "the user's edit stays"
        assert (await rt.redo(run.id)).ok
    assert (project / "a.txt").read_text() == "z\nq\n"
    assert (project / "b.txt").read_text() == "zero\none\ny\nthree\n"


async def test_the_message_for_the_user_is_the_reason_if_there_is_no_other(
    opened: Opened, settings: Settings
) -> None:
    settings(hook("PreToolUse", answer(decision="block", systemMessage="Not on Fridays.")))
    model = ScriptedModel([WRITE, say("ok")])
    async with opened(model=model, mode="auto") as rt:
        await rt.run("Write.")
    assert told(model.requests[1])[0].endswith("]: Not on Fridays.")


async def test_a_hook_that_asks_to_run_in_the_background_is_waited_for(
    opened: Opened, settings: Settings
) -> None:
    late = json.dumps({"hookSpecificOutput": {"additionalContext": "It is Monday."}})
    settings(hook("SessionStart", f"echo '{{\"async\": true}}'; echo {json.dumps(late)}"))
    model = ScriptedModel([say("ok")])
    async with opened(model=model) as rt:
        await rt.run("Go.")
    assert messages(model.requests[0])[1:] == ["It is Monday."]


async def test_a_matcher_of_an_event_without_names_is_ignored(
    opened: Opened, settings: Settings
) -> None:
    settings(hook("Stop", "exit 0", "Bash"))
    seen: list[Event] = []
    async with opened(model=ScriptedModel([say("ok")]), on_event=seen.append) as rt:
        await rt.run("Go.")
    assert outcomes(seen) == [("passed", "")]


@retinue.tool(effect="read")
async def page(number: int) -> str:
    """A long page."""
    return f"{number} " * 2_000


async def test_hooks_before_a_conversation_is_summarized(opened: Opened) -> None:
    seen: list[str] = []

    def refuse(given: dict[str, Any]) -> dict[str, Any]:
        seen.append(given["trigger"])
        return {"decision": "block", "reason": "keep it"}

    reads = [
        calls(*(call("page", number=n) for n in (1, 2)), text="x" * 4_000),
        calls(*(call("page", number=n) for n in (3, 4)), text="x" * 6_000),
    ]
    model = ScriptedModel([*reads, say("I read 4 pages."), say("Read.")])
    limits = {"max_context_tokens": 4_750}
    async with opened(model=model, tools=[page], limits=limits) as rt:
        rt.on("pre_compact")(refuse)
        result = await rt.run("Read.")
        assert result.ok, "what has to be summarized cannot be blocked"
        asked = len(model.requests)
        blocked = await rt.compact(result.session)
    assert seen == ["auto", "manual"]
    assert blocked.error is not None
    assert blocked.error.endswith("keep it")
    assert len(model.requests) == asked


# Notifications


@pytest.mark.parametrize(
    ("steps", "messages"),
    [
        ([WRITE], ["The agent needs your permission to use Write"]),
        (
            [call("spawn_agent", role="executor", task="Write it.")],
            [
                "The agent needs your permission to use Agent",
                "executor.1 needs your permission to merge its changes",
            ],
        ),
        ([call("ask_user", question="Which one?")], ["The agent asks: Which one?"]),
    ],
    ids=["call", "child", "question"],
)
async def test_notification_whenever_a_person_is_waited_for(
    opened: Opened,
    settings: Settings,
    project: Path,
    repo: Repo,
    steps: list[Any],
    messages: list[str],
) -> None:
    repo.init().commit({"old.txt": "1\n"})
    log = project / "log.jsonl"
    settings(hook("Notification", f"cat >> {log}; echo >> {log}"))
    child = {"Write it": [WRITE, say("Written.")]} if len(messages) > 1 else {}
    model = ScriptedModel({"Go.": [*steps, say("ok")], **child})

    async def approve(request: ApprovalRequest) -> bool:
        return True

    async def ask(path: str, question: str) -> str:
        return "That one."

    async with opened(model=model, approve=approve, ask=ask) as rt:
        assert (await rt.run("Go.")).ok
    given = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event["message"] for event in given] == messages
    assert {event["hook_event_name"] for event in given} == {"Notification"}
    kinds = {event["notification_type"] for event in given}
    assert kinds <= {"permission_prompt", "elicitation_dialog"}


async def test_slow_notification_does_not_delay_the_question(opened: Opened) -> None:
    notified, answered = asyncio.Event(), asyncio.Event()

    async def approve(request: ApprovalRequest) -> bool:
        await notified.wait()
        answered.set()
        return True

    async def slow(given: dict[str, Any]) -> None:
        notified.set()
        await answered.wait()

    seen: list[Event] = []
    model = ScriptedModel([WRITE, say("ok")])
    async with opened(model=model, approve=approve, on_event=seen.append) as rt:
        rt.on("notification")(slow)
        async with asyncio.timeout(30):
            assert (await rt.run("Write.")).ok
    assert outcomes(seen) == [("passed", "")]


async def test_a_hook_refuses_before_the_user_is_asked(
    opened: Opened, settings: Settings, project: Path
) -> None:
    log = project / "log.jsonl"
    no = {"behavior": "deny", "message": "Not on a Friday."}
    refuse = answer(hookSpecificOutput={"hookEventName": "PermissionRequest", "decision": no})
    settings(
        hook("PermissionRequest", f"cat >> {log}; {refuse}", "Write")
        + hook("Notification", f"touch {project}/notified")
    )
    asked: list[ApprovalRequest] = []

    async def approve(request: ApprovalRequest) -> bool:
        asked.append(request)
        return True

    model = ScriptedModel([WRITE, call("run_command", command="make x"), say("ok")])
    async with opened(
        model=model, approve=approve, shell=True, unsafe_no_sandbox=True, mode="normal"
    ) as rt:
        await rt.run("Write.")
    given = json.loads(log.read_text())
    assert (given["tool_name"], given["tool_input"]["content"]) == ("Write", "x")
    assert given["tool_input"]["file_path"] == str(project / "a.txt")
    assert "Not on a Friday." in told(model.requests[1])[0]
    assert not (project / "a.txt").exists()
    assert [request.tool for request in asked] == ["run_command"], "it is about Write only"


async def test_a_hook_cannot_answer_yes_for_the_user(
    opened: Opened, settings: Settings, project: Path
) -> None:
    yes = {"hookEventName": "PermissionRequest", "decision": {"behavior": "allow"}}
    settings(hook("PermissionRequest", answer(hookSpecificOutput=yes)))

    async def approve(request: ApprovalRequest) -> bool:
        return False

    async with opened(model=ScriptedModel([WRITE, say("ok")]), approve=approve) as rt:
        await rt.run("Write.")
    assert not (project / "a.txt").exists()


async def test_no_notification_without_a_person(
    opened: Opened, settings: Settings, tmp_path: Path
) -> None:
    settings(hook("Notification", f"touch {tmp_path}/notified"))
    async with opened(model=ScriptedModel([WRITE])) as rt:
        assert not (await rt.run("Write.")).ok
    assert not (tmp_path / "notified").exists()
