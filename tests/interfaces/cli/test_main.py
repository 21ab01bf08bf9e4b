"""The command itself: its help, its version, and its options."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from retinue.interfaces.cli.main import COMMANDS, GROUPS
from retinue.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interfaces.cli.conftest import Cli, Script, Serve


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(cli: Cli, command: str) -> None:
    done = cli(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"Usage: retinue {command} " in done.out
    assert f"Example: retinue {command}" in done.out
    assert cli(command, "-h") == done


def test_help_lists_every_command_and_the_exit_codes(cli: Cli) -> None:
    done = cli("--help")
    assert done.code == 0
    for command, (_, text) in COMMANDS.items():
        assert f"  {command} " in done.out
        assert text in done.out
    words = " ".join(done.out.split())
    assert "Exit codes: 0 done, 1 failed, 2 usage, 3 a limit was reached" in words
    assert "130 interrupted." in words


def test_every_command_has_one_purpose() -> None:
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)


def test_a_typo_gets_a_suggestion(cli: Cli) -> None:
    assert cli("rnu") == (
        2,
        "",
        "retinue: There is no command 'rnu'. Did you mean 'run'? See `retinue --help`.\n",
    )
    assert 'For a task: retinue run "…".' in cli("frobnicate").err


def test_a_task_without_a_command_is_run(cli: Cli, script: Script, settings: Any) -> None:
    settings(f'model = "{script("steps: [{say: Hello.}]")}"\n')
    assert cli("Greet me")[:2] == (0, "Hello.\n")
    assert cli("-p", "Greet")[:2] == (0, "Hello.\n"), "one word is enough for -p"


def test_help_is_printed_without_a_terminal(cli: Cli) -> None:
    assert cli() == cli("--help")
    assert cli("chat") == (
        2,
        "",
        'retinue: The chat needs a terminal. Without one, use `retinue run "…"`.\n',
    )
    assert cli("-c").err == cli("chat").err, "options of the chat need no name of it"


def test_options_before_the_command(cli: Cli, script: Script) -> None:
    model = script("steps: [{say: Hello.}]")
    assert cli("-m", model, "--mode", "plan", "run", "-q", "Greet me") == (0, "Hello.\n", "")
    assert "The chat needs a terminal" in cli("-m", "run").err


def test_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"retinue, version {VERSION}\n", "")


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [(["--version"], f"retinue, version {VERSION}\n"), ([], "Usage: retinue ")],
    ids=["an option", "nothing"],
)
def test_python_m_retinue(arguments: list[str], printed: str) -> None:
    command = [sys.executable, "-m", "retinue", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(printed)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit address space")
def test_limit_of_threads_is_an_error_without_a_traceback(serve: Serve) -> None:
    """A thread's stack is as large as `ulimit -s`, so none fits; `ulimit -u` does not bind root."""
    command = f"from retinue.interfaces.cli.main import main; main()' run -q x -m {serve().model}"
    limited = f"ulimit -s 8000000; ulimit -v 4000000; exec {sys.executable} -c '{command}"
    done = subprocess.run(["sh", "-c", limited], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        "retinue: no process or thread can be started: raise the limits (`ulimit -u`,"
        " `ulimit -v`).\n",
    )


def test_too_many_open_files_are_told(project: Path) -> None:
    command = "from retinue.interfaces.cli.main import main; main()"
    limited = f"ulimit -n 12; exec {sys.executable} -c '{command}' run -m scripted:x go"
    done = subprocess.run(["/bin/sh", "-c", limited], cwd=project, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "retinue: too many files are open: raise the limit (`ulimit -n`)."
    )
    assert "Traceback" not in done.stderr
