"""What could be meant by what is being typed: commands and their arguments, agents, files."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgspec

from retinue.errors import RetinueError, UsageError
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.slash_commands import BY_NAME, COMMANDS
from retinue.interfaces.view.formatting import one_line
from retinue.workspace.directory import DirectoryWorkspace

MOST = 8
MOST_FILES = 20_000
_ARGUMENT = re.compile(r"/([a-z?-]+)\s+(\S*)$")
_MENTION = re.compile(r"(?:^|\s)@(\S*)$")


class Proposal(msgspec.Struct, frozen=True):
    """`text` would stand in the place of all behind `start`."""

    text: str
    help: str
    start: int


class FileNames:
    """The names of the files of a project; they are read when they are first needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names: list[str] = []

    async def load(self) -> None:
        self._names = await asyncio.to_thread(self._read)

    def _read(self) -> list[str]:
        try:
            tree = DirectoryWorkspace(self._directory)
            return list(tree.find("**", under=".", limit=MOST_FILES)[0])
        except RetinueError:
            return []

    def like(self, part: str, limit: int) -> list[str]:
        """Files whose path begins so, then those whose name does, then those that have it."""
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


def proposals(chat: Chat, files: FileNames, before: str) -> list[Proposal]:
    """What could stand at the end of `before`, the text up to the cursor."""
    if before.startswith("/") and not re.search(r"\s", before):
        part = before[1:]
        return [
            Proposal(f"/{command.name} ", command.help, 0)
            for command in COMMANDS
            if any(name.startswith(part) for name in (command.name, *command.aliases))
        ][:MOST]
    if (argument := _ARGUMENT.match(before)) and argument[1] in BY_NAME:
        try:
            choices = list(BY_NAME[argument[1]].choices(chat))
        except UsageError:
            return []  # There is no runtime yet that could tell.
        return _beginning_with(argument[2], choices, len(before) - len(argument[2]))
    if mention := _MENTION.search(before):
        part, start = mention[1], len(before) - len(mention[1])
        named = _beginning_with(part, _names(chat), start) if start == 1 else []
        found = [Proposal(f"{name} ", "", start) for name in files.like(part, MOST)]
        return (named + found)[:MOST]
    return []


def _names(chat: Chat) -> list[tuple[str, str]]:
    agents = [(agent.id, f"{agent.path}  {agent.title}") for _, agent in chat.at_work()]
    roles = chat.runtime.roles.values() if chat.engine.ready else ()
    return [*agents, *((role.name, role.description) for role in roles)]


def _beginning_with(part: str, choices: list[tuple[str, str]], start: int) -> list[Proposal]:
    return [
        Proposal(f"{name} ", one_line(text), start)
        for name, text in choices
        if name.startswith(part)
    ][:MOST]
