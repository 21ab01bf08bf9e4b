"""Answers questions about the code in a process of its own, since parsing takes time and memory.

The process reads files as the file tools do: no link leads it out of the project, and what the
user's rules hide is left out.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

import msgspec

from retinue.domain.protected_paths import ProtectedPaths
from retinue.errors import ToolFailure
from retinue.ports.workspace import CodeQuery
from retinue.processes.function_process import FunctionLimits, run_function
from retinue.workspace.atomic_write import read_regular
from retinue.workspace.code_index import queries
from retinue.workspace.code_index.database import (
    MAX_FILE_BYTES,
    Index,
    file_state,
    is_indexable,
)
from retinue.workspace.file_listing import list_files
from retinue.workspace.git import Repository
from retinue.workspace.safe_open import DIRECTORY, READ, best_opener, closing_fd

UPDATE_LIMIT_S = 60.0
ANSWER_LIMIT_S = 30.0
MAX_MEMORY_BYTES = 2 << 30


class CodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is asked. `root` is the tree, `named_root` its path in the project."""

    query: CodeQuery
    root: str
    named_root: str
    repository: Repository | None
    database: str
    seal: str
    protected: ProtectedPaths
    update_limit_s: float = UPDATE_LIMIT_S


class _Answer(msgspec.Struct, frozen=True):
    text: str
    failed: bool = False


async def ask(request: CodeRequest) -> str:
    """Ask a new process. Raises ToolFailure if it does not answer."""
    limit_s = request.update_limit_s + ANSWER_LIMIT_S
    limits = FunctionLimits(cpu_s=int(limit_s), wall_s=limit_s, memory_bytes=MAX_MEMORY_BYTES)
    try:
        done = await run_function(__name__, main.__name__, msgspec.msgpack.encode(request), limits)
        if done.timed_out:
            raise ToolFailure("The code index took too long; name a path, or use search_files.")
        answer = msgspec.msgpack.decode(done.data, type=_Answer)
    except (OSError, msgspec.DecodeError):
        raise ToolFailure("The code index failed; use search_files instead.") from None
    if answer.failed:
        raise ToolFailure(answer.text)
    return answer.text


def main() -> None:
    """In the process: a request on standard input, the answer on standard output."""
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=CodeRequest)
    try:
        answer = _Answer(_answer(request))
    except ToolFailure as failure:
        answer = _Answer(str(failure), failed=True)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))


def _answer(request: CodeRequest) -> str:
    query, protected = request.query, request.protected
    opener = best_opener()
    with closing_fd(os.open(request.root, DIRECTORY)) as root_fd:

        def read(path: str) -> tuple[bytes, os.stat_result] | None:
            with suppress(OSError), closing_fd(opener(root_fd, path, READ)) as fd:
                found = os.fstat(fd)
                data = read_regular(fd, MAX_FILE_BYTES) if is_indexable(found) else None
                # A file with a NUL is no text.
                return None if data is None or b"\0" in data else (data, found)
            return None

        def content(path: str) -> bytes | None:
            found = None if protected.hides(request.named_root, path) else read(path)
            return None if found is None else found[0]

        def state(path: str) -> bytes | None:
            with suppress(OSError):
                found = os.stat(path, dir_fd=root_fd, follow_symlinks=False)
                return file_state(found) if is_indexable(found) else None
            return None

        listing = list_files(request.repository, root_fd, opener, ".")
        paths = [path for path in listing.paths if not protected.hides(request.named_root, path)]
        index = Index(request.database, request.root, seal=request.seal)
        try:
            deadline = time.monotonic() + request.update_limit_s
            progress = index.update(paths, state, read, deadline)
            if progress.parsed:
                index.forget_trees(os.path.isdir)
            under = query.path
            match query.what:
                case "overview":
                    text = queries.overview(index, under, query.max_tokens)
                case "find_symbol":
                    text = queries.find_symbol(index, query.name, under, content)
                case _:
                    text = queries.docs_coverage(index, under)
        finally:
            index.close()
    if progress.missing:
        text += (
            f"\n[{progress.missing:,} of {progress.files:,} files are not indexed yet; make the"
            " same call again to index them]"
        )
    return text
