"""Program of the process that answers questions about the code.

The process reads files as the file tools do: no link leads it out of the project, and what the
user's rules hide is left out.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

import msgspec

from retinue.errors import ToolFailure
from retinue.workspace.atomic_write import read_regular
from retinue.workspace.code_index import queries
from retinue.workspace.code_index.client import Answer, CodeRequest
from retinue.workspace.code_index.database import (
    MAX_FILE_BYTES,
    Index,
    file_state,
    is_indexable,
)
from retinue.workspace.file_listing import list_files
from retinue.workspace.safe_open import DIRECTORY, READ, best_opener, closing_fd


def main() -> None:
    """In the process: a request on standard input, the answer on standard output."""
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=CodeRequest)
    try:
        answer = Answer(_answer(request))
    except ToolFailure as failure:
        answer = Answer(str(failure), failed=True)
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
                    text = queries.overview(index, under, query.max_tokens, paths, content)
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
