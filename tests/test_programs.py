"""Programs in a project's folders are never run by retinue itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path


async def test_programs_in_a_virtual_environment_are_not_run(tmp_path: Path) -> None:
    """With a virtual environment active, its folder comes first on the PATH."""
    project = tmp_path / "project"
    folder = project / ".venv" / "bin"
    folder.mkdir(parents=True)
    (project / ".venv" / "pyvenv.cfg").write_text("")
    for name in ("git", "rg", "bwrap"):
        planted = folder / name
        planted.write_text(f'#!/bin/sh\ntouch {tmp_path}/escaped\nexec /usr/bin/{name} "$@"\n')
        planted.chmod(0o755)
    asked = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import asyncio, retinue\n"
        "from retinue import ScriptedModel\n"
        "from retinue.models.scripted.model import call, say\n"
        "async def main():\n"
        "    model = ScriptedModel([call('search', pattern='x'), call('run_command', command='ls'),"
        " say('ok')])\n"
        "    async with retinue.open('.', model=model, mode='auto') as rt:\n"
        "        print((await rt.run('Look.')).status)\n"
        "asyncio.run(main())\n",
        cwd=project,
        env={
            "PATH": f"{folder}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        stdout=subprocess.PIPE,
    )
    told, _ = await asked.communicate()
    assert told == b"completed\n"
    assert not (tmp_path / "escaped").exists()
