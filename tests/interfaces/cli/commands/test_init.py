"""init as a user meets it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from retinue.config.init_files import settings_template


class Done(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Done]
AGENT = ".retinue/agents/translator.md"
END = "\n`retinue agents` lists agents; `retinue help settings` explains the settings.\n"


def test_it_writes_settings_and_an_agent_that_is_listed(cli: Cli, project: Path) -> None:
    assert cli("init") == (0, f"created retinue.toml\ncreated {AGENT}\n{END}", "")
    assert (project / "retinue.toml").read_text() == settings_template()
    listed = cli("agents")
    assert listed.code == 0
    assert [line for line in listed.out.splitlines() if line.endswith(AGENT)]
    assert "problem" not in listed.out + listed.err


def test_what_is_there_stays_as_it_is(cli: Cli, project: Path) -> None:
    (project / "retinue.toml").write_text('mode = "plan"\n')
    assert cli("init").out.startswith(f"kept    retinue.toml\ncreated {AGENT}\n")
    (project / AGENT).write_text("mine")
    assert cli("init").out.startswith(f"kept    retinue.toml\nkept    {AGENT}\n")
    assert (project / "retinue.toml").read_text() == 'mode = "plan"\n'
    assert (project / AGENT).read_text() == "mine"


def test_it_writes_through_no_link(cli: Cli, project: Path, tmp_path: Path) -> None:
    (project / "retinue.toml").symlink_to(tmp_path / "elsewhere.toml")
    (project / ".retinue").symlink_to(tmp_path)
    done = cli("init")
    assert done.code == 2
    assert done.err.endswith(f"{project}/.retinue is a symbolic link; remove it.\n")
    assert not (tmp_path / "elsewhere.toml").exists()
    assert not (tmp_path / "agents").exists()


def test_a_place_that_cannot_be_written_is_named(cli: Cli, project: Path) -> None:
    (project / ".retinue").write_text("a file")
    done = cli("init")
    assert (done.code, done.err) == (
        2,
        f"retinue: Cannot write {project}/{AGENT}: Not a directory.\n",
    )
