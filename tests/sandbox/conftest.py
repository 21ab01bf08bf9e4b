from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from retinue.domain.grant import Network
from retinue.domain.reach import Reach
from retinue.domain.scope import NOWHERE, Groups
from retinue.errors import RetinueError
from retinue.ports import Completed, Sandbox
from retinue.sandbox.canaries import try_out

ENVIRONMENT = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "HOME": os.environ.get("HOME", "/"),
    "LANG": "C.UTF-8",
}


class Cell(msgspec.Struct, frozen=True):
    """A sandbox, a workspace in it, and a place outside that nothing in it may touch."""

    sandbox: Sandbox
    root: Path
    outside: Path

    async def run(
        self,
        command: str,
        *,
        write: Groups = NOWHERE,
        network: Network = Network.NONE,
        timeout_s: float = 60,
        max_output_bytes: int = 20_000,
    ) -> Completed:
        return await self.sandbox.run(
            command,
            reach=Reach(root=str(self.root), write_scope=write, network=network),
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
        )

    async def python(self, code: str, **options: object) -> Completed:
        (self.root / "attack.py").write_text(code)
        return await self.run("python3 attack.py", **options)  # type: ignore[arg-type]


def _bubblewrap() -> Sandbox:
    from retinue.sandbox.bubblewrap import Bubblewrap

    found = shutil.which("bwrap")
    if found is None:
        pytest.skip("bubblewrap is not installed")
    return Bubblewrap(ENVIRONMENT, bwrap=found)


def _landlock() -> Sandbox:
    from retinue.sandbox.landlock import Landlock, abi

    if abi() == 0:
        pytest.skip("this kernel has no Landlock")
    return Landlock(ENVIRONMENT)


_BACKENDS = {"bubblewrap": _bubblewrap, "landlock": _landlock}


@pytest.fixture(params=_BACKENDS)
async def cell(request: pytest.FixtureRequest, tmp_path: Path) -> Cell:
    """One for each sandbox that works on this machine."""
    if not sys.platform.startswith("linux"):
        pytest.skip("these sandboxes are Linux's")
    sandbox = _BACKENDS[request.param]()
    try:
        trial = await try_out(sandbox)
    except RetinueError as error:
        pytest.skip(str(error))
    if trial.broken:
        pytest.skip(f"{request.param} does not work here: {trial.broken}")
    root, outside = tmp_path / "workspace", tmp_path / "outside"
    for folder in (root / "src", root / "tests", root / ".git" / "hooks", outside):
        folder.mkdir(parents=True)
    (root / "src" / "a.py").write_text("as it was\n")
    (root / "src" / "test_a.py").write_text("as it was\n")
    (outside / "secret").write_text("a secret\n")
    (outside / "writable").write_text("as it was\n")
    return Cell(sandbox, root, outside)


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A pipe whose end is seen only when the last process that has it open is gone."""
    path = tmp_path / "workspace" / "alive"
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield "alive", reader
    os.close(reader)
