"""What a line that the user typed means: a command, a shell command, or words for an agent."""

from __future__ import annotations

import re
from collections.abc import Callable, Container

import msgspec

_COMMAND = re.compile(r"/([a-z?][a-z-]*)(?:\s+(.*))?$", re.DOTALL)
_MENTION = re.compile(r"(?:^|(?<=\s))@([^\s@]+)")
_ADDRESSED = re.compile(r"@(\S+)\s+(.+)$", re.DOTALL)
# What ends a sentence is no part of a path that stands there.
_TRAILING = ".,;:!?)]}'\""


class Slash(msgspec.Struct, frozen=True):
    name: str
    argument: str


class Shell(msgspec.Struct, frozen=True):
    command: str


class Addressed(msgspec.Struct, frozen=True):
    """Words for one agent, or for a new one of a role."""

    name: str
    text: str


class Message(msgspec.Struct, frozen=True):
    """Words for the one who leads. `files` are those it mentions."""

    text: str
    files: tuple[str, ...] = ()


Line = Slash | Shell | Addressed | Message


def parse(
    text: str, *, names: Container[str] = (), is_file: Callable[[str], bool] = lambda _: False
) -> Line:
    """`names` are those of roles and of agents at work; a file is one of the project's."""
    text = text.strip()
    if found := _COMMAND.match(text):
        return Slash(found[1], (found[2] or "").strip())
    if text.startswith("!"):
        return Shell(text[1:].strip())
    if (addressed := _ADDRESSED.match(text)) and addressed[1] in names:
        return Addressed(addressed[1], addressed[2].strip())
    mentioned: dict[str, None] = {}
    for word in _MENTION.findall(text):
        path = next((p for p in (word, word.rstrip(_TRAILING)) if is_file(p)), None)
        if path is not None:
            mentioned[path] = None
    return Message(text, tuple(mentioned))
