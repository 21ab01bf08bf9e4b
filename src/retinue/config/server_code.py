"""Finds the code that an MCP server of a project runs, so that trust covers its content.

A server that runs outside the sandbox, or has network, could otherwise be rewritten by an agent
between the user's approval and its start.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from retinue.config.trust import TrustStore
from retinue.domain.mcp_server import McpServerSpec

MAX_FILES = 2_000
MAX_BYTES = 64 * 1024 * 1024
_SKIPPED = frozenset({".git", ".retinue"})
# Variables that make interpreters and the loader run or find more code.
_CODE_VARIABLES = frozenset((
    "BASH_ENV", "CLASSPATH", "ENV", "JAVA_TOOL_OPTIONS", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "NODE_OPTIONS", "NODE_PATH", "PERL5LIB", "PERL5OPT", "PYTHONHOME", "PYTHONPATH",
    "PYTHONSTARTUP", "PYTHONUSERBASE", "RUBYLIB", "RUBYOPT",
))  # fmt: skip
# Node also imports from `node_modules` in the folders above a file, and reads their package.json.
_NODE = frozenset({"node", "nodejs"})
_NODE_SUFFIXES = (".js", ".cjs", ".mjs")
_IMPORTED_ABOVE = ("node_modules", "package.json")
# These take code from more places: preloads, import maps, configured paths.
_OTHER_RUNTIMES = frozenset({"bun", "bunx", "deno", "ts-node", "tsx"})
_OTHER_SUFFIXES = (".cts", ".jsx", ".mts", ".ts", ".tsx")


def code_digest(server: McpServerSpec, project: Path, trust: TrustStore) -> str:
    """A hash that changes when the code of a server may have changed.

    The code is everything in the folders of the files that the command line names, and what Node
    imports from the folders above. If it cannot be determined (`python -m pkg`, `npm run x`), the
    hash changes with each write of an agent.
    """
    places = _code_places(server, str(project))
    hashed = None if places is None else _hash_places(places)
    return hashed or f"writes {trust.last_agent_write(project)}"


def files_digest(words: Sequence[str], project: str) -> str:
    """A hash of the folders of the project's files that `words` name; "" if they name none.

    Of a file in the project's top folder, only the file itself counts.
    """
    top = os.path.realpath(project)
    named = [os.path.realpath(os.path.join(project, word)) for word in words]
    files = [path for path in named if _is_inside(path, project) and os.path.isfile(path)]
    folders = [os.path.dirname(path) for path in files]
    places = {f if folder == top else folder for f, folder in zip(files, folders, strict=True)}
    return (_hash_places(sorted(places)) or "unreadable") if places else ""


def _code_places(server: McpServerSpec, project: str) -> list[str] | None:
    """The folders and files with the code of a server; None if it may be elsewhere."""
    program = _located(server, server.command[0])
    if program is None or _is_installed_in(project, program) or _is_linked(server, project):
        return None
    if not _CODE_VARIABLES.isdisjoint(server.environment):
        return None
    named = [_located(server, word) for word in server.command[1:] if not word.startswith("-")]
    if _is_inside(program, project):
        named.insert(0, program)
    # A word that names no file may be a module or a command: `python -m pkg file.json`.
    if not named or named[0] is None or not _is_inside(named[0], project):
        return None
    before = itertools.takewhile(lambda word: word.startswith("-"), server.command[1:])
    if program != named[0] and any(len(word) > len("-x") for word in before):
        # An option of the interpreter may name code: `node --require=./lib/x.js srv.js`.
        return None
    inside = [path for path in named if path is not None and _is_inside(path, project)]
    folders = {os.path.dirname(path) for path in inside}
    runtimes = {os.path.basename(server.command[0]), os.path.basename(program)}
    runtimes |= _interpreter(named[0])
    if not _OTHER_RUNTIMES.isdisjoint(runtimes) or named[0].endswith(_OTHER_SUFFIXES):
        return None
    if _NODE.isdisjoint(runtimes) and not any(path.endswith(_NODE_SUFFIXES) for path in inside):
        return sorted(folders)
    above = {
        os.path.join(parent, name)
        for folder in folders
        for parent in _folders_above(folder, os.path.realpath(project))
        for name in _IMPORTED_ABOVE
    }
    return sorted(folders | set(filter(os.path.lexists, above)))


def _interpreter(path: str) -> set[str]:
    """The names in the first line of a script: `#!/usr/bin/env -S node`."""
    with suppress(OSError), open(path, "rb") as file:
        line = file.readline(256)
        if line.startswith(b"#!"):
            return {os.path.basename(word) for word in line[2:].decode(errors="replace").split()}
    return set()


def _folders_above(folder: str, project: str) -> Iterator[str]:
    while folder != project:
        folder = os.path.dirname(folder)
        yield folder


def _located(server: McpServerSpec, word: str) -> str | None:
    """The real path of the file that a word of the command line names, if it names one."""
    path = _path_of(server, word)
    return os.path.realpath(path) if path is not None and os.path.isfile(path) else None


def _path_of(server: McpServerSpec, word: str) -> str | None:
    if word == server.command[0] and os.sep not in word:
        return shutil.which(word, path=server.environment.get("PATH"))
    return os.path.join(server.directory, word)


def _is_linked(server: McpServerSpec, project: str) -> bool:
    """Whether the program is a link of the project to one outside, as `.venv/bin/python` is.

    Such a Python imports packages of the virtual environment.
    """
    path = _path_of(server, server.command[0]) or ""
    at = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return _is_inside(at, project) and not _is_inside(os.path.realpath(path), project)


def _is_installed_in(project: str, program: str) -> bool:
    """Whether a program is in the project's virtual environment or `node_modules`.

    Its code is then not beside it.
    """
    parent = os.path.dirname(os.path.dirname(program))
    is_venv = os.path.exists(os.path.join(parent, "pyvenv.cfg"))
    return _is_inside(program, project) and (is_venv or "node_modules" in program.split(os.sep))


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(f"{os.path.realpath(folder)}/")


def _hash_places(places: list[str]) -> str | None:
    """A hash of the files' paths, modes and contents.

    None if the files are too many or too large, or one cannot be read.
    """
    found = hashlib.sha256()
    count = size = 0
    try:
        for path in _files(places):
            about = os.stat(path)
            count, size = count + 1, size + about.st_size
            if count > MAX_FILES or size > MAX_BYTES:
                return None
            # Not a pipe, which would block.
            data = Path(path).read_bytes() if stat.S_ISREG(about.st_mode) else b""
            head = f"{path}\0{about.st_mode}\0{len(data)}\0"
            found.update(head.encode(errors="surrogateescape") + data)
    except OSError:
        return None
    return found.hexdigest()


def _files(places: list[str]) -> Iterator[str]:
    """The given files, and every file below the given folders, also behind links. Raises OSError.

    Each folder is read once.
    """
    seen = set()
    pending = list(places)
    while pending:
        folder = pending.pop()
        if not os.path.isdir(folder):
            yield folder
            continue
        real = os.path.realpath(folder)
        if real in seen:
            continue
        seen.add(real)
        with os.scandir(folder) as listing:
            for entry in sorted(listing, key=lambda entry: entry.name):
                if entry.is_dir():
                    pending += () if entry.name in _SKIPPED else (entry.path,)
                else:
                    yield entry.path
