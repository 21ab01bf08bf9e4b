"""States of tasks on disk, so that a client can fetch a result after it has connected again."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import Any

import msgspec

from retinue.config.environment import Environment

KEPT_S = 24 * 3600
_TASK_ID = re.compile(r"[A-Za-z0-9_-]{43}")


class TaskFiles:
    """The states of one project's tasks, each in a file that only the user can read.

    The files are outside of the project, where no agent and no clone can write them.
    """

    def __init__(self, directory: str) -> None:
        self._project = os.path.realpath(directory)
        self._folder = Environment.current().state_dir / "mcp-tasks"

    def save(self, state: dict[str, Any]) -> None:
        """Replace the state of a task, and remove those that are too old. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / state["taskId"]
        part = path.with_suffix(".part")
        data = msgspec.json.encode({"project": self._project, "state": state})
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
        part.replace(path)
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):  # Another server removes old files too.
                if entry.stat().st_mtime < time.time() - KEPT_S:
                    os.unlink(entry)

    def load(self, task_id: str) -> dict[str, Any] | None:
        """The last state of a task; None if there is no such task in this project."""
        if not _TASK_ID.fullmatch(task_id):
            return None
        with suppress(OSError, msgspec.DecodeError):
            kept = msgspec.json.decode((self._folder / task_id).read_bytes())
            if kept["project"] == self._project:
                state: dict[str, Any] = kept["state"]
                return state
        return None
