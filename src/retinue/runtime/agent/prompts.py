"""System prompts of agents: bootstrap files, then the prompt file, then the instructions.

The files come first: most children share them, and the order decides how long their common prefix
is. They are read once per run, so that an edit of AGENTS.md does not change the prefix.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from retinue.domain.messages import estimate_tokens
from retinue.domain.result import cap
from retinue.domain.role import BOOTSTRAP_FILES, INSTRUCTION_FILES, Role
from retinue.errors import ToolFailure
from retinue.ports.workspace import Workspace

MAX_FILE_BYTES = 256 * 1024
MAX_DESCRIPTION_CHARS = 200
WINDOW_SHARE = 4  # Project files may take at most a quarter of the window.
# Names to try if the first one is missing.
ALTERNATIVE_NAMES = {INSTRUCTION_FILES[0]: INSTRUCTION_FILES[1:]}


class Prompts:
    """The system prompts of a run's agents, by role."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._files: dict[str, str | None] = {}
        self._made: dict[tuple[str, int], tuple[str, list[str]]] = {}

    async def assemble(self, role: Role, extra: str | None = None) -> tuple[str, list[str]]:
        """The prompt for `role`, ending with `extra`; and a note for each file that is left out."""
        # The window decides how much of the files fits, and it depends on the model.
        key = role.name, role.budget.context_tokens
        if extra is None and key in self._made:
            return self._made[key]
        text, notes = await self._assemble(role, extra)
        if extra is None:
            # A fan-out needs the same prompt ten thousand times.
            self._made[key] = text, notes
        return text, notes

    async def _assemble(self, role: Role, extra: str | None) -> tuple[str, list[str]]:
        notes: list[str] = []
        room = role.budget.context_tokens // WINDOW_SHARE
        parts: list[str] = []
        names = [*role.bootstrap_files, *([role.prompt_file] if role.prompt_file else [])]
        for name in names:
            text = await self._text(name)
            if text is None:
                # Default files are optional; a file that the user named should exist.
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
        for candidate in (name, *ALTERNATIVE_NAMES.get(name, ())):
            try:
                data = await read_file_fast(self._workspace, candidate, MAX_FILE_BYTES)
            except ToolFailure:
                continue
            return data.decode("utf-8", "replace").lstrip("\ufeff")
        return None


async def read_file_fast(workspace: Workspace, path: str, max_bytes: int) -> bytes:
    """Read a file of the workspace, in a thread unless it is cached. Raises ToolFailure."""
    data = workspace.read_now(path, max_bytes=max_bytes)
    if data is not None:
        return data
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, lambda: workspace.read(path, max_bytes=max_bytes))


def profile_list(roles: Iterable[Role]) -> str:
    """The part of a prompt that lists the user's profiles; "" if there are none."""
    rows = [
        f'  <profile name="{role.name}">{_safe_description(role)}</profile>'
        for role in roles
        if role.profile
    ]
    if not rows:
        return ""
    return "\n".join(["<available_spawn_profiles>", *rows, "</available_spawn_profiles>"])


def _safe_description(role: Role) -> str:
    """Description and tools, shortened, without characters that could end the block around."""
    text = _shortened(role.description)
    if role.tools is None:
        return text
    end = "" if text.endswith((".", "!", "?", "…")) else "."
    return f"{text}{end} Tools: {_shortened(', '.join(role.tools) or 'none')}."


def _shortened(text: str) -> str:
    text = text.replace("<", "‹").replace(">", "›")
    return text if len(text) <= MAX_DESCRIPTION_CHARS else text[: MAX_DESCRIPTION_CHARS - 1] + "…"
