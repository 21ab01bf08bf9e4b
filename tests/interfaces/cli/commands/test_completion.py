"""`retinue completion`, in real shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli, Start


# A shell that has learnt to complete, and answers each line that it reads.
BASH = """
eval "$(retinue completion bash)"
while read -r -a COMP_WORDS; do
    if [ "${COMP_WORDS[-1]}" = "_" ]; then COMP_WORDS[-1]=""; fi
    COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )) COMPREPLY=()
    _retinue_completion retinue
    printf "%s\\n" "${COMPREPLY[@]}" "."
done
"""


FISH = """
retinue completion fish | source
while read line
    complete -C (string replace -r "_\\$" "" -- $line)
    echo .
end
"""


COMMANDS = {
    "bash": ("bash", "--norc", "-c", BASH),
    "fish": ("fish", "--no-config", "-c", FISH),
}


@pytest.fixture
def shell(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell finds the command."""
    folder = project.parent / "bin"
    folder.mkdir()
    command = folder / "retinue"
    command.write_text(
        f"#!{sys.executable}\nfrom retinue.interfaces.cli.main import main\nmain()\n"
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.skipif(not shutil.which(name), reason=f"no {name}"))
        for name in COMMANDS
    ]
)
def complete(request: pytest.FixtureRequest, shell: None) -> Iterator[Callable[[str], set[str]]]:
    """Returns the candidates that a shell shows for a typed text."""
    with subprocess.Popen(
        COMMANDS[request.param], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = iter(process.stdout)

        def ask(typed: str) -> set[str]:
            assert process.stdin is not None
            process.stdin.write(f"{typed}_\n" if typed.endswith(" ") else f"{typed}\n")
            process.stdin.flush()
            offered = takewhile(lambda line: line != ".\n", lines)
            return {line.rstrip("\n").split("\t")[0] for line in offered} - {""}

        yield ask
        process.stdin.close()


def test_shells_complete_commands_and_options(complete: Callable[[str], set[str]]) -> None:
    assert complete("retinue show ") == set()
    assert complete("retinue sh") == {"show"}
    assert complete("retinue run --max-to") == {"--max-tokens", "--max-tool-calls"}
    assert complete("retinue spawn re") == {"researcher", "reviewer"}


@pytest.mark.usefixtures("shell")
@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh")
def test_zsh_completes_a_command(shell_in_terminal: Start) -> None:
    term = shell_in_terminal("zsh", "-f", "-i")
    term.type('autoload -Uz compinit; compinit -u -D; eval "$(retinue completion zsh)"\r')
    term.type("print ready-$((1 + 1))\r")
    term.see("ready-2")
    term.type("retinue sh\t")
    term.see("retinue show")
    term.type("\x15retinue spawn re\t\t")
    term.see("researcher", "reviewer", "Gathers information")
    term.type("\x15retinue run --max-tu\t")
    term.see("retinue run --max-turns")


def test_unknown_shell_is_an_error(cli: Cli) -> None:
    done = cli("completion", "tcsh")
    assert done.code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'." in done.err
