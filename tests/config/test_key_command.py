from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config.environment import Environment
from retinue.config.key_command import KeyCommand


@pytest.mark.parametrize("where", ["project", "home"])
async def test_programs_of_the_project_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Neither the command nor what it finds on the PATH, such as `python3`."""
    for folder, key in (("project/.venv/bin", "planted"), ("tools", "mine")):
        program = tmp_path / folder / "print-key"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho {key} | tee -a {tmp_path}/ran\n")
        program.chmod(0o755)
    (tmp_path / "home").mkdir()
    (tmp_path / "tools" / "outer").write_text("#!/bin/sh\nexec print-key\n")
    (tmp_path / "tools" / "outer").chmod(0o755)
    # With -C, the project is not the current directory.
    monkeypatch.chdir(tmp_path / where)
    path = f".venv/bin:{tmp_path}/project/.venv/bin:{tmp_path}/tools:/usr/bin:/bin"
    environment = Environment(variables={"HOME": str(tmp_path / "home"), "PATH": path})
    project = str(tmp_path / "project")
    assert await KeyCommand("print-key", environment, project).key() == "mine"
    assert await KeyCommand("outer", environment, project).key() == "mine"
    assert (tmp_path / "ran").read_text() == "mine\nmine\n"


async def test_key_is_on_standard_output_alone(tmp_path: Path) -> None:
    environment = Environment(variables={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    command = "sh -c 'echo expires in an hour >&2; echo sk-1'"
    assert await KeyCommand(command, environment, str(tmp_path / "project")).key() == "sk-1"
