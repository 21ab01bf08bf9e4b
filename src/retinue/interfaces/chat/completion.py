"""Completions for the text being typed: commands and their arguments, agents, roles, files."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgspec

from retinue.errors import RetinueError, UsageError
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.slash_commands import (
    COMMANDS,
    COMMANDS_BY_NAME,
    active_choices,
    role_choices,
)
from retinue.interfaces.view.formatting import one_line
from retinue.workspace.directory import DirectoryWorkspace

MAX_COMPLETIONS = 8
MAX_FILES = 20_000
_ARGUMENT = re.compile(r"/([a-z?-]+)\s+(\S*)$")
_MENTION = re.compile(r"(?:^|\s)@(\S*)$")


class Completion(msgspec.Struct, frozen=True):
    """`text` replaces everything from `start` up to the cursor."""

    text: str
    help: str
    start: int


class ProjectFiles:
    """Paths of the files of a project. `load` reads them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: list[str] = []

    async def load(self) -> None:
        self._names = await asyncio.to_thread(self._read)

    def _read(self) -> list[str]:
        try:
            tree = DirectoryWorkspace(self._directory)
            return list(tree.find("**", under=".", limit=MAX_FILES)[0])
        except RetinueError:
            return []

    def matching(self, part: str, limit: int) -> list[str]:
        """Files whose path starts with `part`, then whose name does, then that contain it."""
        lower = part.lower()
        ranked = []
        for name in self._names:
            low = name.lower()
            if low.startswith(lower):
                ranked.append((0, len(name), name))
            elif low.rpartition("/")[2].startswith(lower):
                ranked.append((1, len(name), name))
            elif lower in low:
                ranked.append((2, len(name), name))
        return [name for _, _, name in sorted(ranked)[:limit]]


def completions(chat: Chat, files: ProjectFiles, before: str) -> list[Completion]:
    """Completions at the end of `before`, the text up to the cursor."""
    if before.startswith("/") and not re.search(r"\s", before):
        part = before[1:]
        found = [
            command
            for command in COMMANDS
            if any(name.startswith(part) for name in (command.name, *command.aliases))
        ]
        # A whole name comes before longer ones: /mode before /model.
        found.sort(key=lambda command: part not in (command.name, *command.aliases))
        shown = [Completion(f"/{c.name} ", c.help, 0) for c in found]
        shown += [
            Completion(f"/{name} ", command.description, 0)
            for name, command in chat.commands.items()
            if name.startswith(part) and name not in COMMANDS_BY_NAME
        ]
        return shown[:MAX_COMPLETIONS]
    if (argument := _ARGUMENT.match(before)) and argument[1] in COMMANDS_BY_NAME:
        try:
            choices = list(COMMANDS_BY_NAME[argument[1]].choices(chat))
        except UsageError:
            return []  # The choices come from the runtime, which is not open.
        return _matching_choices(argument[2], choices, len(before) - len(argument[2]))
    if mention := _MENTION.search(before):
        part, start = mention[1], len(before) - len(mention[1])
        choices = active_choices(chat) if start == 1 else []
        if start == 1 and chat.host.ready:
            choices += role_choices(chat)
        named = _matching_choices(part, choices, start)
        paths = [
            Completion(f"{name} ", "", start) for name in files.matching(part, MAX_COMPLETIONS)
        ]
        return (named + paths)[:MAX_COMPLETIONS]
    return []


def _matching_choices(part: str, choices: list[tuple[str, str]], start: int) -> list[Completion]:
    return [
        Completion(f"{name} ", one_line(text), start)
        for name, text in choices
        if name.startswith(part)
    ][:MAX_COMPLETIONS]
