from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from retinue.domain.contract import Contract
from retinue.domain.events import Event
from retinue.domain.result import Check, Conflict, FileChange
from retinue.domain.run_state import RunState, fold
from retinue.errors import ProviderError
from retinue.interfaces.view.agent_details import agent_details
from retinue.interfaces.view.styled_text import plain_text
from retinue.models.scripted.model import Step, call, calls, fail, raw_call, say
from retinue.runtime.history.undo import ChangePatch

Record = Callable[..., Awaitable[list[Event]]]
PATCH = "diff --git a/a.py b/a.py\nindex 1..2 100644\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x\n+y\n"
Contracts = Callable[[], Awaitable[dict[str, Contract]]]


def sections(
    run: RunState, agent: str, contract: Contract | None, events: list[Event], **options: Any
) -> dict[str, str]:
    own = [event for event in events if event.agent_id == agent]
    found = agent_details(run.agents[agent], contract, own, width=76, now=0.0, **options)
    return {title: plain_text(lines) for title, lines in found}


async def test_failed_agent(record: Record, contracts: Contracts) -> None:
    spawn = call("spawn_agent", role="researcher", task="Look around\nand tell.")
    steps: list[Step] = [
        calls(call("list_dir", path="."), raw_call("read_file", "{"), text="First a look."),
        fail(ProviderError("The server said no:\nit is full.")),
    ]
    events = await record({"Look": steps, "": [spawn, say("done")]})
    found = sections(fold(events), "a1", (await contracts())["a1"], events)
    assert list(found) == ["", "Partial result", "Task", "Contract", "Transcript", "Receipts"]
    assert found[""].startswith("✗ a1  root/researcher.1  error\nLook around\n0.0s (1 turn, 2 tool")
    assert found[""].endswith("The server said no:\nit is full.")
    assert found["Task"] == "Look around\nand tell."
    assert (
        "role         researcher\nmodel        scripted\nmode         auto\n" in found["Contract"]
    )
    assert "can write    nowhere: its tools only read\n" in found["Contract"]
    assert "limits       15 tool calls, 50 turns, 65,536 tokens, " in found["Contract"]
    assert found["Transcript"].split("\n")[:3] == [
        "First a look.",
        "→ list_dir .",
        "    [The directory is empty.]",
    ]
    assert "✗ read_file {\n    [ERROR] The arguments of read_file" in found["Transcript"]
    assert found["Transcript"].endswith("! error: The server said no: it is full.")
    assert found["Receipts"].startswith("✓ list_dir  output ")


async def test_completed_agent(record: Record, contracts: Contracts) -> None:
    write = call("write_file", path="a.txt", content="one\ntwo")
    edit = call("edit_file", path="a.txt", old_text="two", new_text="2\n3")
    events = await record({"": [write, edit, say("Written.")]})
    found = sections(fold(events), "a0", (await contracts())["a0"], events)
    assert found["Answer"] == "Written."
    assert found["Files"] == "a.txt (+4/-1 lines, new file)"
    assert "→ edit_file a.txt\n  - two\n  + 2\n  + 3" in found["Transcript"]
    assert "can write    anywhere in its directory" in found["Contract"]
    assert found["Receipts"].split("\n")[0].startswith("✓ write_file  a.txt (+2 lines, new file)")


async def test_running_and_waiting_agents(record: Record) -> None:
    spawn = calls(
        *(
            call("spawn_agent", role="researcher", task=f"Look {n}", background=True)
            for n in range(3)
        )
    )
    wait = call("spawn_await", job_ids="*")
    script = {"Look": [call("list_dir"), say("ok")], "": [spawn, wait, say("done")]}
    events = await record(script, max_concurrent=1)
    tool = next(e.seq for e in events if e.type == "tool.started" and e.agent_id == "a1")
    view = fold(events[:tool])
    assert sections(view, "a1", None, events[:tool])[""].endswith("\nlist_dir")
    waiting = sections(view, "a3", None, events[:tool])
    assert waiting[""].endswith("Waiting for a slot: other agents are running.")
    assert waiting["Transcript"] == "Nothing yet."


async def test_long_output_is_shortened_unless_full(record: Record) -> None:
    write = call("write_file", path="a.txt", content="\n".join(f"line {n}" for n in range(30)))
    events = await record({"": [write, call("read_file", path="a.txt"), say("ok")]})
    view = fold(events)
    assert "line 29" not in _answers(sections(view, "a0", None, events)["Transcript"])
    assert "… 22 more lines" in sections(view, "a0", None, events)["Transcript"]
    whole = sections(view, "a0", None, events, full=True)["Transcript"]
    assert "line 29" in _answers(whole)


def _answers(transcript: str) -> str:
    return "\n".join(line for line in transcript.split("\n") if line.startswith("    "))


async def test_notes_and_attempts(record: Record, contracts: Contracts) -> None:
    spawn = call("spawn_agent", role="researcher", task="Look", max_tool_calls=5_000)
    events = await record({"Look": [say(""), say("Now.")], "": [spawn, say("done")]})
    found = sections(fold(events), "a1", (await contracts())["a1"], events)
    assert "note         " in found["Contract"]
    assert "! attempt 2/2 after the model answered nothing" in found["Transcript"]


async def test_checks_conflicts_and_diff(record: Record) -> None:
    events = await record({"": [say("Written.")]})
    view = fold(events)
    agent = view.agents["a0"]
    agent.checks = [
        Check(command="make lint", exit_code=0, output_sha256="", output="fine"),
        Check(command="make test", exit_code=2, output_sha256="", output="1 failed\ntest_a"),
    ]
    agent.conflicts = (Conflict(path="a.py", sibling="a2 (root/executor.2)"),)
    agent.unmerged_files = (FileChange(path="a.py", added=3, removed=1),)
    found = sections(view, "a0", None, events)
    assert found["Checks"] == (
        "✓ make lint: passed\n✗ make test: failed (exit code 2)\n    1 failed\n    test_a"
    )
    assert found["Conflicts"] == "a.py (also changed by a2 (root/executor.2))"
    assert found["Kept, not merged"] == "a.py (+3/-1 lines)"
    change = ChangePatch(
        state="made", number=3, agent_id="a0", path="root", title="write a.py", patch=PATCH
    )
    assert sections(view, "a0", None, events, changes=[change])["Diff"] == (
        "step 3, by a0 (root): write a.py\n  a.py (+1 −1)\n  1 - x\n  1 + y"
    )
