"""The peers, each in a venv of its own that is built when it is first needed.

mypy leaves out the peers' scripts in ``benchmarks/contestants``: the libraries they import are in
those venvs, never in the project's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec

LIST = Path(__file__).parent / "contestants" / "peers.toml"


class Peer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    module: str
    distribution: str
    requirements: list[str]
    children: int

    @property
    def version(self) -> str:
        """The version that the list pins; a peer without one cannot be compared later."""
        for requirement in self.requirements:
            name, pinned, version = requirement.partition("==")
            if pinned and name.split("[")[0] == self.distribution:
                return version
        raise ValueError(f"{LIST.name} pins no version of {self.distribution!r}")


def load_peers() -> list[Peer]:
    entries = tomllib.loads(LIST.read_text())
    return [msgspec.convert({"name": name, **entry}, Peer) for name, entry in entries.items()]


def interpreter(peer: Peer, cache: Path) -> Path:
    """The Python of the peer's venv, built now unless one with these requirements is there."""
    venv = cache / f"{peer.name}-{sys.version_info.major}.{sys.version_info.minor}"
    python = venv / "bin" / "python"
    stamp = venv / "requirements.txt"
    wanted = "\n".join(peer.requirements) + "\n"
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(venv, ignore_errors=True)
    cache.mkdir(parents=True, exist_ok=True)
    # The folder hides itself, so that no rule elsewhere has to know about it.
    (cache / ".gitignore").write_text("*\n")
    for command in _build(venv, python, peer.requirements):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(
                f"{peer.name} could not be installed by {Path(command[0]).name}:\n"
                f"{done.stderr.strip()[-2000:]}"
            )
    # Last, so that an install that was interrupted is begun again.
    stamp.write_text(wanted)
    return python


def _build(venv: Path, python: Path, requirements: list[str]) -> list[list[str]]:
    uv = shutil.which("uv")
    if uv is None:
        return [
            [sys.executable, "-m", "venv", str(venv)],
            [str(python), "-m", "pip", "install", "--quiet", *requirements],
        ]
    # Compiled ahead as pip does, or the first lap would pay for it.
    install = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
    return [
        [uv, "venv", "--quiet", "--python", sys.executable, str(venv)],
        [*install, *requirements],
    ]
