"""`retinue plan` and `retinue run --plan`, with and without a terminal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from retinue.domain.plan.plan_file import parse
from retinue.models.scripted.model import say

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Script, Serve, Serving, Start


PLANNED = {
    "summary": "Look, then tell.",
    "steps": [
        {"name": "look", "role": "researcher", "task": "Look around."},
        {"name": "tell", "role": "reviewer", "task": "Tell of it.", "depends_on": ["look"]},
        {"name": "other", "role": "researcher", "task": "Look elsewhere.", "writes": []},
    ],
}

RULES = """\
rules:
  - match: You are a planner
    steps: [{{say: {answer}}}]
  - match: Look
    steps: [{{say: It is all there.}}]
  - match: Tell of it.
    steps: [{{say: Told.}}]
"""


def script_of(answer: Any) -> str:
    return RULES.format(answer=json.dumps(json.dumps(answer)))


@pytest.fixture
def model(script: Script) -> str:
    return script(script_of(PLANNED))


def test_plan_is_printed_without_a_terminal(cli: Cli, model: str, project: Path) -> None:
    done = cli("plan", "-m", model, "-q", "Know it")
    assert done.code == 0, done.err
    plan = parse(done.out)
    assert plan["goal"] == "Know it"
    assert [step["name"] for step in plan["steps"]] == ["look", "tell", "other"]
    (project / "plan.toml").write_text(done.out)
    ran = cli("run", "-m", model, "--plan", "plan.toml", "-q")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("# Know it\n\n> Look, then tell.\n\n- Run: ")
    assert "| tell | reviewer | done |" in ran.out


def test_yes_runs_the_plan_without_asking(cli: Cli, model: str) -> None:
    done = cli("plan", "-m", model, "--yes", "-q", "Know it")
    assert done.code == 0, done.err
    assert "- Steps: 3 of 3 done" in done.out


def test_out_writes_the_plan_to_a_file(cli: Cli, model: str, project: Path) -> None:
    done = cli("plan", "-m", model, "--out", "plan.toml", "Know it")
    assert (done.code, done.out) == (0, "")
    assert "The plan is in plan.toml. Run it with: retinue run --plan plan.toml" in done.err
    note = "In normal mode the steps of a plan only read; in auto mode they may write.\n"
    assert done.err.startswith(note)
    assert note not in cli("plan", "-m", model, "--mode", "auto", "--out", "p.toml", "Know it").err
    assert parse((project / "plan.toml").read_text())["summary"] == "Look, then tell."


def test_plan_is_not_written_through_a_link(
    cli: Cli, model: str, project: Path, tmp_path: Path
) -> None:
    (project / "plan.toml").symlink_to(tmp_path / "planted")
    done = cli("plan", "-m", model, "--out", "plan.toml", "-q", "Know it")
    assert (done.code, done.out) == (2, "")
    assert "plan.toml is a symbolic link; remove it, or name another file." in done.err
    assert not (tmp_path / "planted").exists()


def test_invalid_plan_is_saved_for_correction(cli: Cli, script: Script, project: Path) -> None:
    wrong = {"steps": [{"name": "a", "role": "researcher", "task": "Look.", "depends_on": ["b"]}]}
    model = script(script_of(wrong))
    done = cli("plan", "-m", model, "--out", "plan.toml", "-q", "Know it")
    assert done.code == 2
    assert done.err == (
        "retinue: The plan cannot be run; 1 problem:\n"
        "- step 'a': depends_on: 'b' is not a step; there are: a\n"
        "The plan is in plan.toml; correct it there.\n"
    )
    text = (project / "plan.toml").read_text()
    assert text.startswith("# step 'a': depends_on: 'b' is not a step; there are: a\n")


WRITING = {"steps": [{"name": "do", "role": "executor", "task": "Do it.", "writes": ["src/**"]}]}
NOT_HERE = (
    "The plan cannot be run; 1 problem:\n"
    "- step 'do': writes: in normal mode no child may write; use mode auto (--mode auto)\n"
)


def test_writing_plan_is_saved_with_the_mode_it_needs(
    cli: Cli, script: Script, project: Path
) -> None:
    model = script(script_of(WRITING))
    done = cli("plan", "-m", model, "--out", "p.toml", "Do it")
    assert done.code == 0, done.err
    assert "The plan is in p.toml. Run it with: retinue run --mode auto --plan p.toml\n" in done.err
    ran = cli("plan", "-m", model, "--yes", "-q", "Do it")
    assert (ran.code, ran.err) == (2, f"retinue: {NOT_HERE}The plan is in .retinue/plan.toml.\n")
    assert (project / ".retinue" / "plan.toml").read_text() == (project / "p.toml").read_text()


def test_running_a_plan_is_not_offered_where_the_mode_forbids_it(
    terminal: Start, script: Script
) -> None:
    model = script(script_of(WRITING))
    shown = terminal("plan", "--mode", "plan", "-m", model, "Do it", columns=100, lines=50)
    shown.see("└─ do", "in plan mode no child may write; use mode auto", "[e]dit it, [N]either?")
    shown.type("r\n")
    shown.see("nothing was run; the planner's plan is in .retinue/plan.toml.")
    assert shown.end() == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run"], "Give either a TASK or --plan FILE."),
        (["run", "x", "--plan", "p.toml"], "Give either a TASK or --plan FILE."),
        (
            ["run", "--plan", "p.toml", "-c"],
            "A plan does not belong to a session; leave out -c and -r.",
        ),
        (
            ["run", "--plan", "p.toml", "-f", "x"],
            "A plan names files for each step, in context_files; leave out -f.",
        ),
        (["run", "--plan", "no.toml"], "Cannot read the plan no.toml: No such file or directory."),
        (
            ["run", "--plan", "/dev/zero"],
            "/dev/zero is not a plan: it has more than 1,000,000 characters.",
        ),
        (["run", "--plan", "latin.toml"], "Cannot read the plan latin.toml: it is not UTF-8."),
        (
            ["run", "--plan", "bad.toml"],
            "bad.toml is not TOML: Invalid value (at end of document).",
        ),
        (
            ["plan", " ", "-m", "scripted:script.yaml"],
            "The goal is empty; say what the plan is for.",
        ),
        (
            ["plan", "x", "--out", "no/where", "-m", "scripted:script.yaml", "-q"],
            "Cannot write the plan to no/where: No such file or directory.",
        ),
    ],
)
def test_wrong_options_are_errors(
    cli: Cli, model: str, project: Path, argv: list[str], message: str
) -> None:
    (project / "bad.toml").write_text("goal =")
    (project / "latin.toml").write_bytes(b"goal = '\xe4'")
    done = cli(*argv)
    assert (done.code, done.err) == (2, f"retinue: {message}\n")


def test_failed_plan_can_be_resumed(cli: Cli, script: Script, project: Path) -> None:
    model = script("rules: [{match: '', steps: [{fail: refused}]}]")
    (project / "plan.json").write_text(json.dumps({"goal": "G", **PLANNED}))
    done = cli("run", "-m", model, "--plan", "plan.json", "-q")
    assert done.code == 1
    assert "## What to do next" in done.out
    assert "retinue: error: 3 of 3 steps were not done" in done.err


def test_show_has_the_decisions_of_the_plan(cli: Cli, script: Script, project: Path) -> None:
    model = script("rules: [{match: '', steps: [{fail: refused, message: No.}]}]")
    (project / "plan.json").write_text(json.dumps({"goal": "G", **PLANNED}))
    ran = cli("run", "-m", model, "--plan", "plan.json", "-q", "--max-concurrent", "1")
    run_id = cli("runs").out.split()[0]
    assert ran.code == 1
    decided = [line for line in cli("show", run_id, "a0").out.splitlines() if line[:1] == "·"]
    assert decided == [
        "· plan of 3 steps: G",
        "· step look started",
        "· step look error (No.); stop",
    ]


def test_all_problems_of_a_plan_file_are_listed(cli: Cli, model: str, project: Path) -> None:
    (project / "plan.toml").write_text('goal = "G"\n[[steps]]\nname = "a"\nrole = "cook"\n')
    done = cli("run", "-m", model, "--plan", "plan.toml")
    assert done.code == 2
    assert done.err.splitlines()[:3] == [
        "retinue: The plan cannot be run; 2 problems:",
        "- step 'a': task: is missing",
        "- step 'a': role: 'cook' is unknown; there are: executor, general, planner, researcher,"
        " reviewer, tester",
    ]


def test_plan_is_reviewed_edited_and_run(
    terminal: Start, model: str, tmp_path: Path, monkeypatch: Any
) -> None:
    editor = tmp_path / "editor"
    # The first time it spoils the plan, then it mends it.
    editor.write_text(
        "#!/bin/sh\n"
        'if grep -q "^#! step .other.: role" "$1"; then sed -i "s/cook/planner/" "$1"\n'
        'else sed -i "s/name = \\"other\\"/name = \\"other\\"\\nexpect_s = 5.0/;'
        ' /name = \\"other\\"/,\\$ s/researcher/cook/" "$1"; fi\n'
    )
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    shown = terminal("plan", "-m", model, "Know it", columns=100, lines=50)
    shown.see("Look, then tell.", "├─ look", "│  └─ tell", "└─ other", "[N]either?")
    shown.type("e\n")
    shown.see("step 'other': role: 'cook' is unknown", "[e]dit it again, [N]o?")
    shown.type("e\n")
    shown.until(lambda: shown.text.count("[N]either?") == 2, "the plan again")
    assert "other  planner" in shown.text
    shown.type("n\n")
    shown.see("nothing was run")
    assert shown.end() == 0


def test_plan_is_edited_from_the_chat(
    terminal: Start, model: str, tmp_path: Path, monkeypatch: Any
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/, then tell/ and tell/" "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    shown = terminal("chat", "-m", model, columns=100, lines=50)
    shown.see("/help lists commands and keys.")
    shown.type("/plan Know it\r")
    shown.see("Look, then tell.", "│  └─ tell", "r run it   e edit it   n neither")
    shown.type("e\r")
    shown.see("Look and tell.", "n neither")
    shown.type("r\r")
    shown.see("other: Look elsewhere.", "✓ other.1 Look elsewhere.")
    shown.type("/quit\r")
    assert shown.end() == 0, shown.text


def test_invalid_edit_of_a_plan_is_kept(
    terminal: Start, model: str, tmp_path: Path, monkeypatch: Any
) -> None:
    # Fails, spoils the plan, empties it, and then adds what can be told from what was there.
    editor = tmp_path / "editor"
    editor.write_text(
        '#!/bin/sh\ncd "$(dirname "$0")"\necho x >> times\n'
        'case "$(wc -l < times)" in\n'
        "1) exit 1;;\n"
        '2) sed -i "s/researcher/cook/" "$2";;\n'
        '3) cp "$2" third; : > "$2";;\n'
        '4) sed "s/cook/researcher/" "$2" > mended; cat mended > "$2";;\n'
        "esac\n"
    )
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", f"{editor} --wait")
    shown = terminal("plan", "-m", model, "Know it", columns=100, lines=50)

    def asked(times: int) -> None:
        shown.until(lambda: shown.text.count("[N]either?") == times, "the plan again")

    asked(1)
    shown.type("e\n")
    # A long path puts the edge of the terminal anywhere, between two words too.
    shown.until(lambda: "Editing failed." in " ".join(shown.text.split()), "what went wrong")
    shown.see("[e]dit it again, [N]o?")
    shown.type("e\n")
    shown.see("'cook' is unknown")
    shown.until(lambda: shown.text.count("[e]dit it again, [N]o?") == 2, "the question again")
    shown.type("n\n")
    asked(2)
    shown.type("e\n")
    asked(3)
    again = (tmp_path / "third").read_text()
    assert again.startswith("#! step 'look': role: 'cook' is unknown")
    assert 'role = "cook"' in again, "what was written is there again"
    shown.type("e\n")
    asked(4)
    shown.type("r\n")
    shown.see("• Steps: 3 of 3 done")
    assert shown.end() == 0, shown.text


def test_plan_is_accepted(terminal: Start, model: str) -> None:
    shown = terminal("plan", "-m", model, "Know it", columns=100, lines=50)
    shown.see("[N]either?")
    shown.type("r\n")
    shown.see("Know it", "• Steps: 3 of 3 done")
    assert shown.end() == 0, shown.text


def test_plan_is_read_from_standard_input(model: str, project: Path) -> None:
    argv = ["run", "-m", model, "--plan", "-", "-q"]
    code = "from retinue.interfaces.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        input=json.dumps({"goal": "G", **PLANNED}).encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"# G\n")


@pytest.fixture
def server(serve: Serve) -> Serving:
    """Answers the first step, and nobody else for a while; from then on everybody."""
    return serve(say("Found."), say("never").after(600), say("Looked."), say("Told."))


@pytest.fixture
def under_way(
    program: Callable[..., subprocess.Popen[bytes]], server: Serving, project: Path
) -> subprocess.Popen[bytes]:
    """A plan whose second step waits for its model."""
    (project / "plan.json").write_text(json.dumps({"goal": "G", **PLANNED}))
    started = program("run", "-m", server.model, "--plan", "plan.json", "--max-concurrent", "1")
    server.received(2)
    return started


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_plan_is_resumed(
    under_way: subprocess.Popen[bytes], server: Serving, cli: Cli, sent: signal.Signals
) -> None:
    under_way.send_signal(sent)
    under_way.send_signal(sent)
    _, said = under_way.communicate()
    assert under_way.returncode == 130, said
    run_id = cli("runs").out.split()[0]
    assert f"retinue: interrupted; resume with: retinue resume {run_id}\n" in said.decode()
    assert "interrupted" in cli("runs").out
    done = cli("resume", run_id)
    assert done.code == 0, done.err
    assert "- Status: completed\n- Steps: 3 of 3 done\n" in done.out
    assert len(server.requests) == 4, "the first step was not asked again"
    assert "completed" in cli("runs").out


def test_killed_plan_is_resumed(
    under_way: subprocess.Popen[bytes], server: Serving, cli: Cli
) -> None:
    under_way.kill()
    under_way.communicate()
    run_id = cli("runs").out.split()[0]
    done = cli("resume")
    assert done.code == 0, done.err
    assert "Found." in done.out
    assert "- Steps: 3 of 3 done\n" in done.out
    assert len(server.requests) == 4
    again = cli("resume", run_id)
    assert again.code == 1
    assert again.err == (
        f"retinue: Run {run_id} is over (completed); there is nothing to resume.\n"
    )


def test_interrupted_planner_is_resumed(
    program: Callable[..., subprocess.Popen[bytes]], serve: Serve, cli: Cli
) -> None:
    server = serve(say("never").after(600), say(json.dumps(PLANNED)))
    started = program("plan", "-m", server.model, "Know it")
    server.received(1)
    started.kill()
    started.communicate()
    done = cli("resume", "-q")
    assert done.code == 0, done.err
    assert [step["name"] for step in parse(done.out)["steps"]] == ["look", "tell", "other"]
    assert parse(done.out)["goal"] == "Know it"
