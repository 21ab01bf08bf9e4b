from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from retinue.ports.sandbox import Sandbox
from retinue.sandbox.limits import DEFAULT_LIMITS, ProcessLimits
from retinue.sandbox.self_test import run_self_test
from tests.sandbox.probe import UNCHANGED, SandboxProbe

ENVIRONMENT = {
    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
    "HOME": os.environ.get("HOME", "/"),
    "LANG": "C.UTF-8",
}


def _bubblewrap(limits: ProcessLimits = DEFAULT_LIMITS) -> Sandbox:
    from retinue.sandbox.bubblewrap import Bubblewrap

    found = shutil.which("bwrap")
    if found is None:
        pytest.skip("bubblewrap is not installed")
    return Bubblewrap(ENVIRONMENT, bwrap=found, limits=limits)


def _landlock(limits: ProcessLimits = DEFAULT_LIMITS) -> Sandbox:
    from retinue.sandbox.landlock import MIN_ABI, Landlock, abi_version

    if abi_version() < MIN_ABI:
        pytest.skip("this kernel's Landlock is too old")
    return Landlock(ENVIRONMENT, limits=limits)


_BACKENDS = {"bubblewrap": _bubblewrap, "landlock": _landlock}
_broken: dict[str, str] = {}


@pytest.fixture(params=_BACKENDS)
async def probe(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxProbe:
    """A probe for each sandbox that works on this machine."""
    if not sys.platform.startswith("linux"):
        pytest.skip("these sandboxes are Linux's")
    name: str = request.param
    sandbox = _BACKENDS[name]()
    if name not in _broken:
        result = await run_self_test(sandbox)
        assert not result.escaped
        _broken[name] = result.broken
    if _broken[name]:
        pytest.skip(f"{name} does not work here: {_broken[name]}")
    root, outside = tmp_path / "workspace", tmp_path / "outside"
    for folder in (root / "src", root / "tests", root / ".git" / "hooks", outside):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "src" / "a.py").write_text(UNCHANGED)
    (root / "src" / "test_a.py").write_text(UNCHANGED)
    (outside / "secret").write_text("a secret\n")
    (outside / "writable").write_text(UNCHANGED)
    return SandboxProbe(sandbox, root, outside)


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A pipe that ends when the last process that has it open is gone."""
    path = tmp_path / "workspace" / "pipes" / "alive"
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield "pipes/alive", reader
    os.close(reader)


@pytest.fixture
def with_limits(probe: SandboxProbe) -> Callable[[ProcessLimits], SandboxProbe]:
    """Makes the same probe with other limits."""

    def make(limits: ProcessLimits) -> SandboxProbe:
        name = "bubblewrap" if probe.full else "landlock"
        return msgspec.structs.replace(probe, sandbox=_BACKENDS[name](limits))

    return make
