"""Putting a child's prompt together: bootstrap files, then the prompt file, then the instructions.

The files come first, since most children share them, and the order decides how long their common
prefix is. They are read once per run: a prefix must not change because somebody edits AGENTS.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from retinue.domain.messages import estimate_tokens
from retinue.domain.result import cap
from retinue.domain.role import BOOTSTRAP_FILES, Role
from retinue.errors import ToolFailure
from retinue.ports.workspace import Workspace

MAX_FILE_BYTES = 256 * 1024
MAX_DESCRIPTION_CHARS = 200
SHARE = 4  # A quarter of the window is the most that project files may take.
# What projects call the same thing, where the first name is missing.
STAND_INS = {"AGENTS.md": ("CLAUDE.md",)}


class Prompts:
    """The system prompts of a run's agents, by role."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._files: dict[str, str | None] = {}
        self._made: dict[tuple[str, int], tuple[str, list[str]]] = {}

    async def assemble(self, role: Role, extra: str | None = None) -> tuple[str, list[str]]:
        """The prompt for `role`, `extra` as its last word; and a note for what was left out."""
        # How much of the files fits depends on the window, which depends on the model.
        key = role.name, role.budget.max_context_tokens
        if extra is None and key in self._made:
            return self._made[key]
        text, notes = await self._assemble(role, extra)
        if extra is None:
            # A fan-out asks for the same one ten thousand times.
            self._made[key] = text, notes
        return text, notes

    async def _assemble(self, role: Role, extra: str | None) -> tuple[str, list[str]]:
        notes: list[str] = []
        room = role.budget.max_context_tokens // SHARE
        parts: list[str] = []
        names = [*role.bootstrap_files, *([role.prompt_file] if role.prompt_file else [])]
        for name in names:
            text = await self._text(name)
            if text is None:
                # The default files are there or not; one that somebody named should be.
                if name == role.prompt_file or role.bootstrap_files != BOOTSTRAP_FILES:
                    notes.append(f"without {name}: it cannot be read")
                continue
            if room <= 0:
                notes.append(f"without {name}: the prompt's share of the window is used up")
                continue
            kept, cut = cap(text.strip(), room)
            if cut:
                notes.append(f"{name} was cut to {room:,} tokens")
            room -= estimate_tokens(kept)
            parts.append(kept)
        parts += [part for part in (role.instructions, extra) if part]
        return "\n\n".join(parts), notes

    async def _text(self, name: str) -> str | None:
        if name not in self._files:
            self._files[name] = await self._read(name)
        return self._files[name]

    async def _read(self, name: str) -> str | None:
        for candidate in (name, *STAND_INS.get(name, ())):
            try:
                data = await read_soon(self._workspace, candidate, MAX_FILE_BYTES)
            except ToolFailure:
                continue
            return data.decode("utf-8", "replace").lstrip("\ufeff")
        return None


async def read_soon(workspace: Workspace, path: str, max_bytes: int) -> bytes:
    """A file of the workspace, by a thread where it cannot be had at once. Raises ToolFailure."""
    data = workspace.read_now(path, max_bytes=max_bytes)
    if data is not None:
        return data
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, lambda: workspace.read(path, max_bytes=max_bytes))


def listed_profiles(roles: Iterable[Role]) -> str:
    """The block that tells of the user's profiles; nothing where there are none."""
    rows = [
        f'  <profile name="{role.name}">{_described(role)}</profile>'
        for role in roles
        if role.profile
    ]
    if not rows:
        return ""
    return "\n".join(["<available_spawn_profiles>", *rows, "</available_spawn_profiles>"])


def _described(role: Role) -> str:
    """Its description, short and without anything that could end the block it stands in."""
    text = role.description.replace("<", "‹").replace(">", "›")
    return text if len(text) <= MAX_DESCRIPTION_CHARS else text[: MAX_DESCRIPTION_CHARS - 1] + "…"
