"""`retinue resume`, of killed and interrupted runs."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from retinue.models.scripted.model import call, say
from retinue.testing.server import Response, ResponseEnding

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Repo
    from tests.interfaces.cli.conftest import Cli, Program, Serve


RETINUE = "from retinue.interfaces.cli.main import main; main()"
HANG = Response(ending=ResponseEnding.HANG)


def run_id(cli: Cli) -> str:
    return str(json.loads(cli("runs", "--json").out.splitlines()[0])["id"])


def test_killed_run_is_resumed(cli: Cli, serve: Serve, program: Program) -> None:
    spawn = call("spawn_agent", task="Look around.", role="researcher")
    server = serve(spawn, call("list_dir"), HANG, say("Nothing here."), say("An empty project."))
    process = program("run", "-q", "What is this?", "-m", server.model)
    server.received(3)
    run = run_id(cli)
    held = cli("resume", run)
    assert (held.code, held.err) == (
        1,
        f"retinue: Another process works on run {run}; `retinue watch {run}` follows it, and"
        f" `retinue cancel {run}` stops it.\n",
    )
    process.send_signal(signal.SIGSTOP)
    stopped = cli("resume")
    assert stopped.code == 1
    assert f"another process works on run {run}." in stopped.err
    assert "If the process is stopped (Ctrl-Z), continue it with `fg`" in stopped.err
    process.kill()
    process.communicate()
    done = cli("resume", run)
    assert (done.code, done.out) == (0, "An empty project.\n")
    # What was there before is known, and not told again.
    assert "list_dir" not in done.err
    assert '[researcher] Completed: "Look around."' in done.err
    assert len(server.requests) == 5, "what was paid for is not bought again"
    assert cli("audit", run).code == 0
    assert "  completed " in cli("runs").out
    over = cli("resume")
    assert (over.code, over.err) == (
        1,
        "retinue: There is no run to resume.\n",
    )


def test_all_runs_without_a_process_are_resumed(cli: Cli, serve: Serve, program: Program) -> None:
    server = serve(HANG, HANG, HANG, say("First."), say("Second."))
    processes = []
    for number, task in enumerate(("One?", "Two?", "Three?"), 1):
        processes.append(program("run", "-q", task, "-m", server.model))
        server.received(number)
    for process in processes[:2]:
        process.kill()
        process.communicate()
    runs = [json.loads(line) for line in cli("runs", "--json").out.splitlines()]
    third, second, first = (run["id"] for run in runs)
    both = cli("resume", first, "--all")
    assert both.code == 2
    assert f"--all resumes every run, {first} only one" in both.err
    done = cli("resume", "--all", "-q")
    assert (done.code, done.out) == (0, "First.\nSecond.\n")
    assert f"Resuming run {first}, 1 of 2." in done.err
    assert f"Resuming run {second}, 2 of 2." in done.err
    # That of a living process is left to it.
    assert third not in done.err
    nothing = cli("resume", "--all")
    assert (nothing.code, nothing.err) == (1, "retinue: There is no run to resume.\n")
    processes[2].kill()
    processes[2].communicate()


def test_unreadable_run_keeps_no_other_from_being_resumed(
    cli: Cli, serve: Serve, program: Program, project: Path
) -> None:
    server = serve(HANG, HANG, say("Second."))
    for number in (1, 2):
        process = program("run", "-q", "x", "-m", server.model)
        server.received(number)
        process.kill()
        process.communicate()
    runs = [json.loads(line)["id"] for line in cli("runs", "--json").out.splitlines()]
    with closing(sqlite3.connect(project / ".retinue" / "retinue.db")) as connection:
        connection.execute("DROP TRIGGER events_append_only_update")
        damage = "UPDATE events SET payload = 'x' WHERE seq = 1 AND run_id = ?"
        connection.execute(damage, (runs[1],))
        connection.commit()
    done = cli("resume", "--all", "-q")
    assert (done.code, done.out) == (1, "Second.\n")
    assert f"Run {runs[1]}: " in done.err
    assert "Traceback" not in done.err


def test_copies_of_a_stopped_process_are_not_taken_over(
    cli: Cli, serve: Serve, program: Program, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the lock file of the run was deleted."""
    repo.init().commit({"a": "1"})
    monkeypatch.chdir(repo.root)
    writes = [call("write_file", path=path, content="x") for path in ("b", "c")]
    server = serve(*writes, HANG, *[say("Done.")] * 4)
    options = ("--role", "executor", "--write", "**", "--mode", "dangerous", "-m", server.model)
    process = program("fan-out", "one", "two", *options)
    server.received(3)
    process.send_signal(signal.SIGSTOP)
    run = run_id(cli)
    (repo.root / ".retinue" / "live" / run).unlink()
    events = cli("show", run, "--json").out
    assert events
    resuming = program("resume", run)
    _, err = resuming.communicate(timeout=60)
    assert resuming.returncode == 1
    assert re.fullmatch(
        rf"retinue: Process {process.pid} works in the working copy \S+/{run}-a1; if the process is"
        rf" stopped .* end it with `kill -KILL {process.pid}`\.\n",
        err.decode(),
    )
    assert events
    assert cli("show", run, "--json").out == events, "nothing is recorded"
    process.kill()
    process.communicate()
    done = cli("resume", run)
    assert done.code == 0, done.err
    assert len(re.findall(r"\[ok\]", done.out)) == 2
    assert cli("audit", run).code == 0
    assert (repo.root / "b").read_text() == "x"


def test_tasks_that_had_not_started_run_after_resume(
    cli: Cli, serve: Serve, program: Program
) -> None:
    server = serve(HANG, *[say(f"Done {n}.") for n in range(3)])
    process = program("fan-out", "one", "two", "three", "--max-concurrent", "1", "-m", server.model)
    server.received(1)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    found = re.search(rb"resume with: retinue resume (\w+)\n$", err)
    assert found is not None
    done = cli("resume")
    assert done.code == 0
    assert re.findall(r"^## (.*)\n+(.*)$", done.out, re.MULTILINE) == [
        ("a1 researcher [ok] one", "Done 0."),
        ("a2 researcher [ok] two", "Done 1."),
        ("a3 researcher [ok] three", "Done 2."),
    ]
    assert run_id(cli) == found[1].decode()


def test_resume_as_json_prints_only_new_events(cli: Cli, serve: Serve, program: Program) -> None:
    server = serve(HANG, say("Done."))
    process = program("run", "-q", "x", "-m", server.model, "--web-hosts", "docs.test")
    server.received(1)
    process.kill()
    process.communicate()
    done = cli("resume", "--json")
    *events, result = [json.loads(line) for line in done.out.splitlines()]
    assert [events[0]["type"], events[-1]["type"]] == ["run.resumed", "run.finished"]
    assert (result["type"], result["answer"]) == ("result", "Done.")
    assert {event["epoch"] for event in events} == {2}
    assert done.err == ""
    # The run keeps the hosts that it was started with.
    tools = [
        {tool["function"]["name"] for tool in json.loads(r.body)["tools"]} for r in server.requests
    ]
    assert [("web_fetch" in names) for names in tools] == [True, True]


def test_full_disk_suspends_the_run(
    cli: Cli, serve: Serve, settings: Callable[[str], Path]
) -> None:
    settings("[sampling]\nmax_output_tokens = 500_000\n")
    # Nothing that could be compressed.
    noise = b64encode(Random(1).randbytes(1_500_000)).decode()
    server = serve(say(noise), say("Short."))
    limited = f"ulimit -f 1000; exec {sys.executable} -c '{RETINUE}' run -q x -m {server.model}"
    done = subprocess.run(["sh", "-c", limited], capture_output=True, text=True)
    run = run_id(cli)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 2, done.stderr
    told, why = done.stderr.splitlines()
    assert told == (f"retinue: the journal could not be written; resume with: retinue resume {run}")
    assert re.search(r"disk of .*retinue\.db", why)
    assert "  abandoned " in cli("runs").out
    assert cli("audit", run).code == 0
    assert cli("resume", "-q") == (0, "Short.\n", "")
    assert cli("audit", run).code == 0


def test_journal_that_is_deleted_during_a_run_is_an_error(
    serve: Serve, program: Program, project: Path
) -> None:
    server = serve(HANG)
    process = program("run", "-q", "What is this?", "-m", server.model)
    server.received(1)
    for file in (project / ".retinue").glob("retinue.db*"):
        file.unlink()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 1
    assert b"was deleted or replaced while a run was recorded in it" in err
    assert b"retinue resume" not in err, "there is nothing to resume"
