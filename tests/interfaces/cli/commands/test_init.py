"""`retinue init`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from retinue.config.init_files import settings_template

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli


AGENT = ".retinue/agents/translator.md"
END = "\n`retinue agents` lists agents; `retinue help settings` explains the settings.\n"


def test_init_writes_settings_and_an_agent(cli: Cli, project: Path) -> None:
    assert cli("init") == (0, f"created retinue.toml\ncreated {AGENT}\n{END}", "")
    assert (project / "retinue.toml").read_text() == settings_template()
    listed = cli("agents")
    assert listed.code == 0
    assert [line for line in listed.out.splitlines() if line.endswith(AGENT)]
    assert "problem" not in listed.out + listed.err


def test_existing_files_are_kept(cli: Cli, project: Path) -> None:
    (project / "retinue.toml").write_text('mode = "plan"\n')
    assert cli("init").out.startswith(f"kept    retinue.toml\ncreated {AGENT}\n")
    (project / AGENT).write_text("mine")
    assert cli("init").out.startswith(f"kept    retinue.toml\nkept    {AGENT}\n")
    assert (project / "retinue.toml").read_text() == 'mode = "plan"\n'
    assert (project / AGENT).read_text() == "mine"


def test_init_does_not_follow_symbolic_links(cli: Cli, project: Path, tmp_path: Path) -> None:
    (project / "retinue.toml").symlink_to(tmp_path / "elsewhere.toml")
    (project / ".retinue").symlink_to(tmp_path)
    done = cli("init")
    assert done.code == 2
    assert done.err.endswith(
        f"{project}/.retinue is a symbolic link; remove it, or name another file.\n"
    )
    assert not (tmp_path / "elsewhere.toml").exists()
    assert not (tmp_path / "agents").exists()


def test_unwritable_path_is_named(cli: Cli, project: Path) -> None:
    (project / ".retinue").write_text("a file")
    done = cli("init")
    assert (done.code, done.err) == (
        2,
        f"retinue: Cannot write {project}/{AGENT}: Not a directory.\n",
    )
