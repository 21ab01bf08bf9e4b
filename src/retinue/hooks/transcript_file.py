"""The transcript that hooks find at the path in their input, while they run."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

from retinue.domain.hook_transcript import transcript
from retinue.ports.hooks import HookCall
from retinue.threads import in_thread_shielded

_STATE_DIR = ".retinue"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@asynccontextmanager
async def transcript_file(call: HookCall | None) -> AsyncIterator[None]:
    """Write the conversation of the call, if it has one, and remove the file at the end.

    The journal has the conversation already; a file that stays would outlive it.
    """
    if call is None or not call.messages:
        yield
        return
    path: str = call.input.get("agent_transcript_path") or call.input["transcript_path"]
    project, _, inside = path.rpartition(f"/{_STATE_DIR}/")
    try:
        await in_thread_shielded(lambda: _write(project, inside, call))
        yield
    finally:
        _remove(project, inside)


def _write(project: str, inside: str, call: HookCall) -> None:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    data = transcript(call.messages, session=call.session, root=call.input["cwd"], time=now)
    # A hook that does not read it must not fail because of a full disk.
    with suppress(OSError):
        folder, name = _open_folder(project, inside)
        try:
            with open(os.open(name, _FILE, 0o600, dir_fd=folder), "wb") as file:
                file.write(data)
        finally:
            os.close(folder)


def _open_folder(project: str, inside: str) -> tuple[int, str]:
    """The folder of the file, which is made, and the file's name in it.

    No link that a project has put in the way is followed.
    """
    *folders, name = inside.split("/")
    here = os.open(project, _FOLDER)
    for folder in (_STATE_DIR, *folders):
        try:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700, dir_fd=here)
            below = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here, name


def _remove(project: str, inside: str) -> None:
    state_dir = os.path.join(project, _STATE_DIR)
    with suppress(OSError):
        os.unlink(os.path.join(state_dir, inside))
        while inside := os.path.dirname(inside):
            os.rmdir(os.path.join(state_dir, inside))
