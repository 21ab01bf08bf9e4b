"""The transcript that hooks find at the path in their input, while they run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

from retinue.domain.hook_transcript import transcript
from retinue.ports.hooks import HookCall

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@asynccontextmanager
async def transcript_file(call: HookCall | None) -> AsyncIterator[None]:
    """Write the conversation of the call, if it has one, and remove the file at the end.

    The journal has the conversation already; a file that stays would outlive it.
    """
    if call is None or not call.messages:
        yield
        return
    path: str = call.input.get("agent_transcript_path") or call.input["transcript_path"]
    await asyncio.to_thread(_write, path, call)
    try:
        yield
    finally:
        _remove(path)


def _write(path: str, call: HookCall) -> None:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    data = transcript(call.messages, session=call.session, root=call.input["cwd"], time=now)
    # A hook that does not read it must not fail because of a full disk.
    with suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(os.open(path, _FLAGS, 0o600), "wb") as file:
            file.write(data)


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
        os.removedirs(os.path.dirname(path))
