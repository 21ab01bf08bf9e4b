"""`retinue test`: recorded runs as regression tests."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retinue.interfaces.cli.recorded_test import project_copy
from retinue.models.scripted.model import call, say
from retinue.testing.server import failing

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Serve

ROLE = """---
name: {name}
description: Answers questions.
tools: read_file
---
You answer {how}.
"""


def write_role(project: Path, name: str, how: str) -> None:
    folder = project / ".retinue" / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(ROLE.format(name=name, how=how))


def record(cli: Cli, serve: Serve, file: Path, role: str, task: str) -> None:
    server = serve(call("read_file", path="a.txt"), say("A heron."))
    done = cli("spawn", role, task, "-q", "-m", server.model, "--record", str(file))
    assert done.code == 0, done.err


@pytest.fixture(autouse=True)
def _files(project: Path) -> None:
    (project / "a.txt").write_text("A heron.\n")
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    for name in ("brief", "polite"):
        write_role(project, name, "in few words")


@pytest.mark.parametrize("count", [7, pytest.param(20, marks=pytest.mark.slow)])
def test_a_changed_word_is_found_in_every_run_with_the_role_and_in_no_other(
    cli: Cli, serve: Serve, project: Path, tmp_path: Path, count: int
) -> None:
    files = [str(tmp_path / f"{number:02}.jsonl") for number in range(count)]
    for number, file in enumerate(files):
        role = "brief" if number % 3 == 0 else "polite"
        record(cli, serve, Path(file), role, f"What is in a.txt? ({number})")
    done = cli("test", *files)
    assert done.code == 0, done
    assert done.out.splitlines()[-1] == f"{count} passed"
    write_role(project, "brief", "in many words")
    done = cli("test", "--json", *files)
    outcomes = [json.loads(line) for line in done.out.splitlines()]
    assert done.code == 1
    assert [outcome["file"] for outcome in outcomes if not outcome["ok"]] == files[::3]
    first = outcomes[0]
    assert first["difference"].startswith("root/brief")
    assert "-You answer in few words." in first["diff"]
    assert "+You answer in many words." in first["diff"]


def test_difference_is_shown_and_accepted(
    cli: Cli, serve: Serve, project: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    record(cli, serve, file, "brief", "What is in a.txt?")
    (project / "a.txt").write_text("A crane.\n")
    done = cli("test", str(file))
    assert done.code == 1
    assert f"failed  {file}" in done.out
    assert "A crane." in done.out
    assert done.out.splitlines()[-1] == "0 passed, 1 failed"
    updated = cli("test", "--update", str(file))
    assert (updated.code, updated.out.splitlines()[-1]) == (0, "1 passed, 1 of them updated")
    assert cli("test", str(file)) == (0, f"passed  {file}\n1 passed\n", "")


def test_the_project_is_not_changed(cli: Cli, serve: Serve, project: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    server = serve(call("write_file", path="b.txt", content="New.\n"), say("Done."))
    arguments = ("--mode", "auto", "-q", "-m", server.model, "--record", str(file))
    assert cli("run", "Write b.txt", *arguments).code == 0
    (project / "b.txt").unlink()
    state = tmp_path / ".local" / "state" / "retinue"
    before = sorted(state.rglob("*"))
    assert cli("test", "--trust-recordings", str(file)).code == 0
    assert not (project / "b.txt").exists()
    assert {path for path in state.rglob("*") if path.is_file()} <= {*before}


def test_linked_worktree(cli: Cli, serve: Serve, project: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    linked = tmp_path / "linked"
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for command in (
        ("add", "a.txt"),
        (*author, "commit", "-qm", "One"),
        ("worktree", "add", "-q", str(linked)),
    ):
        subprocess.run(["git", *command], cwd=project, check=True)
    server = serve(call("read_file", path="a.txt"), say("A heron."))
    arguments = ("-q", "-C", str(linked), "-m", server.model, "--record", str(file))
    assert cli("spawn", "researcher", "What is in a.txt?", *arguments).code == 0
    assert cli("test", "-C", str(linked), str(file)).code == 0


@pytest.mark.parametrize("place", [".retinue/skills/notes", ".retinue/skills", "notes"])
@pytest.mark.parametrize("in_git", [True, False])
def test_what_a_link_leads_to_is_not_copied(
    project: Path, tmp_path: Path, place: str, in_git: bool
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "key.txt").write_text("secret\n")
    if not in_git:
        shutil.rmtree(project / ".git")
    (project / place).parent.mkdir(parents=True, exist_ok=True)
    (project / place).symlink_to(private)
    with project_copy(project, ()) as copy:
        assert (copy / ".retinue" / "agents" / "brief.md").is_file()
        copied = [path for path in copy.rglob("*") if path.is_file()]
        assert all(path.read_bytes() != b"secret\n" for path in copied if not _is_linked(path))


def _is_linked(path: Path) -> bool:
    return any(part.is_symlink() for part in (path, *path.parents))


def test_store_in_postgres_is_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("asyncpg")
    (tmp_path / "run.jsonl").touch()
    monkeypatch.setenv("RETINUE_STORE", "postgresql://localhost/retinue")
    done = cli("test", str(tmp_path / "run.jsonl"))
    assert done.code == 2
    assert "your store is in Postgres. Leave out RETINUE_STORE, or `store`" in done.err


def test_another_exit_code_is_a_difference(
    cli: Cli, serve: Serve, project: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    record(cli, serve, file, "brief", "What is in a.txt?")
    text = file.read_text().replace('"exit_code":0', '"exit_code":3')
    file.write_text(text)
    done = cli("test", str(file))
    assert done.code == 1
    assert "`retinue spawn` exits with 0; recorded is 3" in done.out


def test_request_that_is_no_longer_sent_is_a_difference(
    cli: Cli, serve: Serve, project: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    record(cli, serve, file, "brief", "What is in a.txt?")
    record(cli, serve, file, "brief", "And in b.txt?")
    lines = [line for line in file.read_text().splitlines() if '"And in b.txt?"]' not in line]
    file.write_text("".join(f"{line}\n" for line in lines))
    done = cli("test", str(file))
    assert done.code == 1
    assert "was recorded and is not sent" in done.out


def test_recording_with_too_few_replies_cannot_be_updated(
    cli: Cli, serve: Serve, project: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    record(cli, serve, file, "brief", "What is in a.txt?")
    kept = [line for line in file.read_text().splitlines() if '"content":"A heron."' not in line]
    file.write_text("".join(f"{line}\n" for line in kept))
    done = cli("test", "--update", str(file))
    assert done.code == 2
    assert "an agent now asks for more replies than it has. Record it again." in done.err


def test_recording_without_a_command_is_refused(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text('{"type":"recording","format":1,"retinue":"0"}\n')
    done = cli("test", str(file))
    assert done.code == 2
    assert "has no command to repeat. Record one with `retinue run`" in done.err


def write_recording(file: Path, *arguments: str) -> None:
    lines = (
        {"type": "recording", "format": 1, "retinue": "0"},
        {"type": "command", "arguments": arguments, "exit_code": 0},
    )
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--mode", "auto"), "--mode"),
        (("--mode=dangerous", "--check", "make"), "--check, --mode"),
        (("--unsafe-no-sandbox",), "--unsafe-no-sandbox"),
        (("--plan", "/etc/passwd"), "--plan"),
        (("--web-hosts", "example.org"), "--web-hosts"),
    ],
)
def test_permissions_of_a_strangers_recording_are_refused(
    cli: Cli, tmp_path: Path, options: tuple[str, ...], named: str
) -> None:
    file = tmp_path / "run.jsonl"
    write_recording(file, "run", *options, "--", "Read a.txt")
    done = cli("test", str(file))
    assert done == (
        2,
        "",
        f"retinue: {str(file)!r} repeats `retinue run` with {named}, which lets its agents do"
        " more. If you trust the recording, add --trust-recordings.\n",
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("trust", "--yes"), "`retinue trust` is not a command that a recording repeats."),
        (("test", "x"), "`retinue test` is not a command that a recording repeats."),
        (("plan", "--out", "x", "--", "y"), "--out of `retinue plan` cannot be repeated."),
        (("run", "-C", "/", "--", "y"), "-C of `retinue run` cannot be repeated."),
        (("run", "-c", "--", "y"), "--continue of `retinue run` cannot be repeated."),
    ],
)
def test_what_a_recording_cannot_repeat_even_if_trusted(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], why: str
) -> None:
    file = tmp_path / "run.jsonl"
    write_recording(file, *arguments)
    done = cli("test", "--trust-recordings", str(file))
    assert done == (2, "", f"retinue: {str(file)!r}: {why} Record it again.\n")


def test_recordings_that_are_not_what_retinue_writes(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    write_recording(file)
    assert "`retinue ` is not a command that a recording repeats" in cli("test", str(file)).err
    write_recording(file, "run", "--", "x")
    header, command = file.read_text().splitlines()
    nested = '{"type":"exchange","reply":' + '{"a":' * 50_000 + "1" + "}" * 50_001
    file.write_text(f"{header}\n{nested}\n{command}\n")
    assert f"Line 2 of the recording {str(file)!r} is damaged" in cli("test", str(file)).err


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--live",), "--live and -m MODEL go together: a replay asks no model."),
        (("-m", "x"), "--live and -m MODEL go together: a replay asks no model."),
        (("--live", "-m", "x", "--update"), "--update is for replays; leave out --live."),
    ],
)
def test_flags_that_contradict_each_other(
    cli: Cli, tmp_path: Path, flags: tuple[str, ...], why: str
) -> None:
    (tmp_path / "run.jsonl").touch()
    assert cli("test", *flags, str(tmp_path / "run.jsonl")) == (2, "", f"retinue: {why}\n")


def test_live_run_is_compared_with_the_one_before(
    cli: Cli, serve: Serve, project: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    record(cli, serve, file, "brief", "What is in a.txt?")
    first = cli("test", "--live", "-m", serve(say("A bird.")).model, "--json", str(file))
    assert first.code == 0, first.err
    assert json.loads(first.out)["ok"]
    assert json.loads(first.out)["tokens"] > 0
    second = cli("test", "--live", "-m", serve(say("A bird.")).model, str(file))
    assert second.code == 0
    row, total = second.out.splitlines()
    assert ": yes, " in row
    assert total.split()[:2] == ["all", "100%"]
    assert "100%, " in total


def test_live_run_that_fails_says_why(cli: Cli, serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    record(cli, serve, file, "brief", "What is in a.txt?")
    unusable = cli("test", "--live", "-m", "nosuch", str(file))
    assert unusable.code == 1
    assert unusable.out.split()[:2] == [str(file), "no"]
    assert f"{file}: Model 'nosuch' needs a key: " in unusable.err
    failed = cli(
        "test", "--live", "-m", serve(failing(400, "I will not.")).model, "--json", str(file)
    )
    assert failed.code == 1
    assert "I will not." in json.loads(failed.out)["error"]


def test_live_results_are_not_written_through_a_link(
    cli: Cli, serve: Serve, project: Path, tmp_path: Path
) -> None:
    file, victim = tmp_path / "run.jsonl", tmp_path / "victim"
    record(cli, serve, file, "brief", "What is in a.txt?")
    victim.write_text("mine\n")
    (project / ".retinue" / "live-tests.json").symlink_to(victim)
    server = serve(say("A bird."))
    done = cli("test", "--live", "-m", server.model, str(file))
    assert done.code == 2
    assert "live-tests.json is a symbolic link; remove it" in done.err
    assert victim.read_text() == "mine\n"
    assert not server.requests
