"""What a parent gives along with a task: words, and files, framed as data."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.domain.framing import frame
from retinue.domain.messages import estimate_tokens
from retinue.domain.result import cap
from retinue.errors import ToolFailure
from retinue.ports.workspace import Workspace
from retinue.runtime.agent.prompts import read_soon

MAX_FILES = 20
MAX_BYTES = 1024 * 1024


async def enclose(
    workspace: Workspace, *, context: str, files: Sequence[str], max_tokens: int
) -> tuple[str, list[str]]:
    """The text to give along, inside `max_tokens`, and for each file left out the reason."""
    parts: list[str] = []
    notes: list[str] = []
    room = max_tokens
    if context.strip():
        kept, cut = cap(context, room)
        if cut:
            notes.append(f"context was cut to {room:,} tokens")
        parts.append(frame(kept, kind="context", source="parent"))
        room -= estimate_tokens(kept)
    for number, name in enumerate(dict.fromkeys(files)):
        reason = None
        text = ""
        if number >= MAX_FILES:
            reason = f"more than {MAX_FILES} files"
        else:
            try:
                data = await read_soon(workspace, name, MAX_BYTES)
            except ToolFailure as failure:
                reason = str(failure)
            else:
                if b"\0" in data:
                    reason = "it is not text"
                else:
                    text = data.decode("utf-8", "replace")
                    if estimate_tokens(text) > room:
                        reason = (
                            f"its {estimate_tokens(text):,} tokens do not fit the {max(room, 0):,}"
                            " that are left; read it with read_file"
                        )
        if reason is not None:
            notes.append(f"skipped {name}: {reason}")
            continue
        parts.append(frame(text, kind="file", source=name))
        room -= estimate_tokens(text)
    return "\n\n".join(parts), notes
