"""Children that write files whose calls a host may lose, and what their journals must show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import retinue
from retinue.domain.events import Event, ToolStarted
from retinue.domain.result import Result
from retinue.models.scripted.model import ScriptedReply, call, say
from retinue.testing.server import Received

INTERRUPTED = "interrupted; it may have been done"


class Writer:
    """A model whose child writes a file and adds a line, each once even if it was interrupted."""

    def __init__(self) -> None:
        self.requests = 0
        self.on_request: Callable[[int], None] = lambda number: None

    def __call__(self, request: Received) -> ScriptedReply:
        self.requests += 1
        self.on_request(self.requests)
        messages = request.json["messages"]
        task = next(str(m["content"]) for m in messages if m["role"] == "user")
        name = next(word for word in task.split() if word.endswith(".txt"))
        answers = [str(m["content"]) for m in messages if m["role"] == "tool"]
        done = [answer for answer in answers if INTERRUPTED not in answer]
        add = f"grep -q more {name} || echo more >> {name}"
        if len(done) == len(answers):
            add = f"echo more >> {name}"  # Twice would show.
        steps = [
            call("list_dir", path="."),
            call("write_file", path=name, content="one\n"),
            call("run_command", command=add),
            call("read_file", path=name),
            say("Written."),
        ]
        return steps[len(done)]


def writer_tasks(count: int) -> list[retinue.Task]:
    """Tasks for `Writer`. Each owns its file, so that the children run side by side."""
    return [
        retinue.Task("executor", f"Write {name} now.", write=(name,))
        for name in (f"f{number}.txt" for number in range(count))
    ]


def of_type(events: list[Event], *types: str) -> list[Any]:
    return [event.fact for event in events if event.type in types]


def check_done_once(
    events: list[Event], results: Sequence[Result], requests: int, project: Path
) -> None:
    """Only what was in flight was asked again, no call started twice, and the files are right."""
    lost_three_hosts = [r for r in results if "hosts were lost under it" in (r.error or "")]
    assert [r.error for r in results if not r.ok and r not in lost_three_hosts] == []
    again = [fact for fact in of_type(events, "agent.placed") if fact.host and fact.placement > 1]
    replies = len(of_type(events, "model.replied"))
    assert replies <= requests <= replies + len(again) + len(lost_three_hosts)
    started: set[tuple[str, str]] = set()
    for event in events:
        if event.type == "model.replied":
            started = {one for one in started if one[0] != event.agent_id}
        elif isinstance(fact := event.fact, ToolStarted):
            assert (event.agent_id, fact.call_id) not in started, event
            started.add((event.agent_id, fact.call_id))
    for n, result in enumerate(results):
        if result.ok:
            assert (project / f"f{n}.txt").read_text() == "one\nmore\n", result.agent_id
