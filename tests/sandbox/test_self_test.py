"""The self-test leaves nothing behind, however its process ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio
from retinue.sandbox.self_test import run_self_test

class Hanging:
    async def run(self, *arguments, **options):
        print("running", flush=True)
        await asyncio.Event().wait()

asyncio.run(run_self_test(Hanging()))
"""


def test_killed_process_leaves_no_folder(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        (folder,) = tmp_path.iterdir()
        assert folder.name.startswith("retinue-trial-")
        process.kill()
        # The process that removes the folder inherited the pipe, so the pipe ends with it.
        assert process.stdout.read() == b""
    assert list(tmp_path.iterdir()) == []
