"""Parses a line that the user typed: a command, a shell command, or a message to an agent."""

from __future__ import annotations

import re
from collections.abc import Callable, Container

import msgspec

_COMMAND = re.compile(r"/([a-z?][a-z-]*)(?:\s+(.*))?$", re.DOTALL)
_MENTION = re.compile(r"(?:^|(?<=\s))@([^\s@]+)")
_ADDRESSED = re.compile(r"@(\S+)\s+(.+)$", re.DOTALL)
# Punctuation at the end of a sentence is not part of a mentioned path.
_TRAILING = ".,;:!?)]}'\""


class CommandInput(msgspec.Struct, frozen=True):
    """`/name argument`"""

    name: str
    argument: str


class ShellInput(msgspec.Struct, frozen=True):
    """`!command`"""

    command: str


class AddressedInput(msgspec.Struct, frozen=True):
    """`@name text`: a message to one agent, or the task of a new agent with that role."""

    name: str
    text: str


class MessageInput(msgspec.Struct, frozen=True):
    """A message to the root agent. `files` are the files that it mentions."""

    text: str
    files: tuple[str, ...] = ()


ParsedInput = CommandInput | ShellInput | AddressedInput | MessageInput


def parse_input(
    text: str, *, names: Container[str] = (), is_file: Callable[[str], bool] = lambda _: False
) -> ParsedInput:
    """Parse `text`. `names` are roles and running agents; `is_file` knows files of the project."""
    text = text.strip()
    if found := _COMMAND.match(text):
        return CommandInput(found[1], (found[2] or "").strip())
    if text.startswith("!"):
        return ShellInput(text[1:].strip())
    if (addressed := _ADDRESSED.match(text)) and addressed[1] in names:
        return AddressedInput(addressed[1], addressed[2].strip())
    mentioned: dict[str, None] = {}
    for word in _MENTION.findall(text):
        path = next((p for p in (word, word.rstrip(_TRAILING)) if is_file(p)), None)
        if path is not None:
            mentioned[path] = None
    return MessageInput(text, tuple(mentioned))
