"""`retinue init`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from retinue.config.init_files import settings_template

if TYPE_CHECKING:
    from tests.interfaces.cli.conftest import Cli


AGENT = ".retinue/agents/translator.md"
EMPTY = """\
In ~/project:
  languages     none that retinue knows
  tests         no command found
  instructions  none; write what agents should know to AGENTS.md

"""
END = "\n`retinue agents` lists agents; `retinue help settings` explains the settings.\n"


def test_init_writes_settings_and_an_agent(cli: Cli, project: Path) -> None:
    assert cli("init") == (0, f"{EMPTY}created retinue.toml\ncreated {AGENT}\n{END}", "")
    assert (project / "retinue.toml").read_text() == settings_template()
    listed = cli("agents")
    assert listed.code == 0
    assert [line for line in listed.out.splitlines() if line.endswith(AGENT)]
    assert "problem" not in listed.out + listed.err


def test_init_says_what_it_found_and_writes_what_fits(cli: Cli, project: Path) -> None:
    for name in ("a.py", "tests/test_a.py", "web/a.ts", "node_modules/x/a.js", ".venv/b.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    (project / "pyproject.toml").write_text("[tool.ruff]\n")
    for name in ("GEMINI.md", ".cursorrules", "ENVIRONMENT.md", ".mcp.json"):
        (project / name).write_text("{}")
    (project / ".claude" / "agents").mkdir(parents=True)
    (project / ".claude" / "agents" / "critic.md").touch()
    assert cli("init") == (
        0,
        """\
In ~/project:
  languages     Python (2 files), TypeScript (1 file)
  tests         python -m pytest -q
  linter        ruff check .
  instructions  GEMINI.md, ENVIRONMENT.md, which agents read
  not read      .cursorrules, since there is GEMINI.md
  for agents    .claude/agents (1 file)
  MCP servers   .mcp.json

created retinue.toml

`retinue trust` lets agents run the tests in the sandbox without asking.
Remove the # before `checks` in retinue.toml to lint the work of children.
`retinue agents` lists agents; `retinue help settings` explains the settings.
""",
        "",
    )
    written = (project / "retinue.toml").read_text()
    assert '\ntest = "python -m pytest -q"\n' in written
    assert '\n# checks = ["ruff check ."]\n' in written
    assert "note: test: takes effect once you run `retinue trust`\n" in cli("config").out


def test_existing_files_are_kept(cli: Cli, project: Path) -> None:
    (project / "retinue.toml").write_text('mode = "plan"\n')
    assert f"\nkept    retinue.toml\ncreated {AGENT}\n" in cli("init").out
    (project / AGENT).write_text("mine")
    assert f"{AGENT}\n" not in cli("init").out, "the project has an agent"
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
