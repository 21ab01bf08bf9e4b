"""Seals of runs: each proves that this user has started a run in this project.

A journal lies in the project, so a clone or an archive can bring one. A seal is a signature of the
run's id and of a random id of the project. The user's state directory stores the id under the
project's path, so the id never travels with the project. A project that was moved is recognised by
the inode of its `.retinue`: a rename keeps the inode, a clone or a copy has another one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from retinue.config.environment import Environment
from retinue.config.user_key import UserKey, create_once
from retinue.errors import ConfigError


class KnownProject(msgspec.Struct, frozen=True, kw_only=True):
    """A project that this user has worked in."""

    path: str
    """The real path of its `.retinue`."""
    inode: int
    id: str


class ProjectSeal:
    """A `Seal` for the runs of one project. Threads and processes may use it at once."""

    def __init__(self, state_folder: Path, environment: Environment, *, register: bool) -> None:
        """`state_folder` is the `.retinue` of the project.

        Without `register`, nothing is written: an unknown project stays unknown.
        """
        self._folder = state_folder
        self._known = environment.state_dir / "projects"
        self._register = register
        self._id: str | None = None
        root, key_file = state_folder.parent, environment.key_file
        # The default key file lies in the home, which the user may trust as a workspace.
        chosen = environment.get("RETINUE_KEY_FILE")
        if chosen and Path(os.path.realpath(key_file)).is_relative_to(root):
            raise ConfigError(
                f"The key file {key_file} lies in the project, where agents can read it; set"
                " RETINUE_KEY_FILE to a file outside."
            )
        self._key = UserKey(key_file)

    def __call__(self, run_id: str) -> str:
        """Seal of a run; empty if the project is unknown, or the user's state cannot be written."""
        if self._id is None:
            with suppress(OSError):
                self._id = self._find_id()
        return "" if self._id is None else self._key.sign(f"run {self._id} {run_id}")

    def forget(self) -> None:
        """Make the project unknown, since it is about to be deleted."""
        self._file(os.path.realpath(self._folder)).unlink(missing_ok=True)

    def _find_id(self) -> str | None:
        path = os.path.realpath(self._folder)
        file, inode = self._file(path), os.stat(path).st_ino
        known = _read(file) or self._moved_here(path, inode)
        if self._register and (known is None or known.path != path):
            project_id = secrets.token_hex(16) if known is None else known.id
            here = KnownProject(path=path, inode=inode, id=project_id)
            create_once(file, msgspec.json.encode(here))
            if known is not None:
                self._file(known.path).unlink(missing_ok=True)
            known = _read(file)
        return None if known is None else known.id

    def _moved_here(self, path: str, inode: int) -> KnownProject | None:
        """The known project that has been renamed to `path`."""
        for file in self._known.glob("*.json"):
            known = _read(file)
            if known is None or known.inode != inode or known.path == path:
                continue
            if not os.path.exists(known.path) or os.path.samefile(known.path, path):
                return known
        return None

    def _file(self, path: str) -> Path:
        return self._known / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"


def known_projects(environment: Environment) -> list[Path]:
    """The projects that this user has worked in, and that are still there."""
    found = []
    for file in (environment.state_dir / "projects").glob("*.json"):
        if (known := _read(file)) is None:
            continue
        with suppress(OSError):
            # Another folder at the same path, such as a clone, is another project.
            if os.stat(known.path).st_ino == known.inode:
                found.append(Path(known.path).parent)
    return sorted(found)


def _read(file: Path) -> KnownProject | None:
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(file.read_bytes(), type=KnownProject)
    return None
