from __future__ import annotations

from pathlib import Path

import pytest

from retinue.config.environment import Environment
from retinue.config.key_command import KeyCommand


async def test_programs_of_the_current_directory_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.chdir(tmp_path / "project")
    path = f".venv/bin:{tmp_path}/project/.venv/bin:{tmp_path}/tools:/usr/bin:/bin"
    environment = Environment(variables={"HOME": str(tmp_path / "home"), "PATH": path})
    assert await KeyCommand("print-key", environment).key() == "mine"
    assert await KeyCommand("outer", environment).key() == "mine"
    assert (tmp_path / "ran").read_text() == "mine\nmine\n"
