"""Asks a process of its own about the code, since parsing takes time and memory.

Nothing of what parses is imported here: the modules take long to load, on the event loop.
"""

from __future__ import annotations

import msgspec

from retinue.domain.protected_paths import ProtectedPaths
from retinue.errors import ToolFailure
from retinue.ports.workspace import CodeQuery
from retinue.processes.function_process import FunctionLimits, run_function
from retinue.workspace.git import Repository

PROGRAM = ("retinue.workspace.code_index.process", "main")
UPDATE_LIMIT_S = 60.0
ANSWER_LIMIT_S = 30.0
MAX_MEMORY_BYTES = 2 << 30


class CodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A query for the process. `root` is the tree, `named_root` its path in the project."""

    query: CodeQuery
    root: str
    named_root: str
    repository: Repository | None
    database: str
    seal: str
    protected: ProtectedPaths
    update_limit_s: float = UPDATE_LIMIT_S


class Answer(msgspec.Struct, frozen=True):
    text: str
    failed: bool = False


async def ask(request: CodeRequest) -> str:
    """Ask a new process. Raises ToolFailure if it does not answer."""
    limit_s = request.update_limit_s + ANSWER_LIMIT_S
    limits = FunctionLimits(cpu_s=int(limit_s), wall_s=limit_s, memory_bytes=MAX_MEMORY_BYTES)
    try:
        done = await run_function(*PROGRAM, msgspec.msgpack.encode(request), limits)
        if done.timed_out:
            raise ToolFailure("The code index took too long; name a path, or use search_files.")
        answer = msgspec.msgpack.decode(done.data, type=Answer)
    except (OSError, msgspec.DecodeError):
        raise ToolFailure(
            "The code index failed; use search_files instead.", shown="The code index failed."
        ) from None
    if answer.failed:
        raise ToolFailure(answer.text)
    return answer.text
