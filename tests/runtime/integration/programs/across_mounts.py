"""Merge and undo a child's work where `.retinue`, or a folder of the project, is another mount.

Arguments: an empty directory, and the folder to mount. Run it in a mount namespace of its own.
Prints a JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import retinue
from retinue.config.environment import Environment
from retinue.models.scripted.model import ScriptedModel, call, say

BEFORE = {"a.txt": "1\n", "data/b.txt": "1\n"}


def files(project: Path) -> dict[str, str]:
    found = {}
    for folder, folders, names in os.walk(project):
        folders[:] = [name for name in folders if name not in (".git", ".retinue")]
        for name in names:
            path = Path(folder, name)
            found[str(path.relative_to(project))] = path.read_text()
    return found


async def work(project: Path, home: Path) -> dict[str, object]:
    model = ScriptedModel(
        [
            call("write_file", path="a.txt", content="2\n"),
            call("write_file", path="data/b.txt", content="2\n"),
            call("write_file", path="data/new/c.txt", content="2\n"),
            say("Done."),
        ]
    )
    environment = Environment(variables={"HOME": str(home), "PATH": os.environ["PATH"]})
    async with retinue.open(
        project, model=model, mode="auto", environment=environment, shell=False
    ) as rt:
        child = await rt.spawn("executor", "Write.")
        after = files(project)
        undone = await rt.undo(child.run_id, child.agent_id)
        back = files(project)
        redone = await rt.redo(child.run_id, child.agent_id)
        again = files(project)
    return {
        "status": child.status,
        "error": child.error,
        "after": after,
        "refused": [*undone.refused, *redone.refused],
        "back": back,
        "again": again == after,
        "mode": oct((project / "data/b.txt").stat().st_mode & 0o777),
    }


def main(place: Path, mounted: str) -> None:
    project, home = place / "project", place / "home"
    target = project / mounted
    target.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(target)], check=True)
    for path, text in BEFORE.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)
    (project / "data/b.txt").chmod(0o640)
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    print(json.dumps(asyncio.run(work(project, home))))


main(Path(sys.argv[1]), sys.argv[2])
