"""Finds the code that an MCP server of a project runs, so that trust covers its content.

A server that runs outside the sandbox, or has network, could otherwise be rewritten by an agent
between the user's approval and its start.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from retinue.config.trust import TrustStore
from retinue.domain.mcp_server import McpServerSpec

MAX_FILES = 2_000
MAX_BYTES = 64 * 1024 * 1024
_SKIPPED = frozenset({".git", ".retinue"})


def code_digest(server: McpServerSpec, project: Path, trust: TrustStore) -> str:
    """A hash that changes when the code of a server may have changed.

    The code is everything in the folders of the files that the command line names. If it cannot be
    determined (`python -m pkg`, `npm run x`), the hash changes with each write of an agent.
    """
    folders = _code_folders(server, str(project))
    hashed = None if folders is None else _hash_folders(folders)
    return hashed or f"writes {trust.last_agent_write(project)}"


def _code_folders(server: McpServerSpec, project: str) -> list[str] | None:
    """The folders of the files that the command line names; None if the code is elsewhere."""
    program = _located(server, server.command[0])
    if program is None or _is_installed_in(project, program):
        return None
    named = [_located(server, word) for word in server.command[1:] if not word.startswith("-")]
    if _is_inside(program, project):
        named.insert(0, program)
    # A word that names no file may be a module or a command: `python -m pkg file.json`.
    if not named or named[0] is None or not _is_inside(named[0], project):
        return None
    inside = [path for path in named if path is not None and _is_inside(path, project)]
    return sorted({os.path.dirname(path) for path in inside})


def _located(server: McpServerSpec, word: str) -> str | None:
    """The real path of the file that a word of the command line names, if it names one."""
    path: str | None = os.path.join(server.directory, word)
    if word == server.command[0] and os.sep not in word:
        path = shutil.which(word, path=server.environment.get("PATH"))
    return os.path.realpath(path) if path is not None and os.path.isfile(path) else None


def _is_installed_in(project: str, program: str) -> bool:
    """Whether a program is in the project's virtual environment or `node_modules`.

    Its code is then not beside it.
    """
    parent = os.path.dirname(os.path.dirname(program))
    is_venv = os.path.exists(os.path.join(parent, "pyvenv.cfg"))
    return _is_inside(program, project) and (is_venv or "node_modules" in program.split(os.sep))


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(f"{os.path.realpath(folder)}/")


def _hash_folders(folders: list[str]) -> str | None:
    """A hash of names, modes and contents; None if there is too much to read each time."""
    found = hashlib.sha256()
    count = size = 0
    for path in _files(folders):
        try:
            about = os.stat(path)
        except OSError:
            continue
        count, size = count + 1, size + about.st_size
        if count > MAX_FILES or size > MAX_BYTES:
            return None
        # Not a pipe, which would block.
        data = Path(path).read_bytes() if stat.S_ISREG(about.st_mode) else b""
        head = f"{path}\0{about.st_mode}\0{len(data)}\0"
        found.update(head.encode(errors="surrogateescape") + data)
    return found.hexdigest()


def _files(folders: list[str]) -> Iterator[str]:
    """Every file below the folders, also behind links, each folder once."""
    seen = set()
    pending = list(folders)
    while pending:
        folder = pending.pop()
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        with suppress(OSError), os.scandir(folder) as listing:
            for entry in sorted(listing, key=lambda entry: entry.name):
                if entry.is_dir():
                    pending += () if entry.name in _SKIPPED else (entry.path,)
                else:
                    yield entry.path
