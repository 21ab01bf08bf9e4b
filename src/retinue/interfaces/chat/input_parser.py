"""Parses a line that the user typed: a command, a shell command, or a message to an agent."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterator

import msgspec

from retinue.interfaces.mentions import TRAILING, mentioned_files

_COMMAND = re.compile(r"/([a-z?][a-z-]*)(?:\s+(.*))?$", re.DOTALL)
_ADDRESSED = re.compile(r"@(\S+)\s+(.+)$", re.DOTALL)
# A terminal pastes the path of a file that is dropped on it: quoted, escaped, or as a URL.
_IMAGE_PATH = re.compile(
    r"(?:^|(?<=\s))(?:'(/[^'\n]+)'|\"(/[^\"\n]+)\"|(?:file://)?(/(?:\\.|[^\s\\])+))"
)
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp")


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
    """A message to the root agent. `files` are the files that it mentions, and pasted images."""

    text: str
    files: tuple[str, ...] = ()


ParsedInput = CommandInput | ShellInput | AddressedInput | MessageInput


def parse_input(
    text: str,
    *,
    names: Container[str] = (),
    is_file: Callable[[str], bool] = lambda _: False,
    is_image: Callable[[str], bool] = os.path.isfile,
) -> ParsedInput:
    """Parse `text`. `names` are roles and running agents; `is_file` knows files of the project.

    `is_image` says whether there is a file at an absolute path with the suffix of an image.
    """
    text = text.strip()
    if found := _COMMAND.match(text):
        return CommandInput(found[1], (found[2] or "").strip())
    if text.startswith("!"):
        return ShellInput(text[1:].strip())
    if (addressed := _ADDRESSED.match(text)) and addressed[1] in names:
        return AddressedInput(addressed[1], addressed[2].strip())
    pasted = filter(is_image, _pasted_images(text))
    return MessageInput(text, tuple(dict.fromkeys((*mentioned_files(text, is_file), *pasted))))


def _pasted_images(text: str) -> Iterator[str]:
    """Absolute paths in `text` that end like those of images."""
    for quoted, also_quoted, bare in _IMAGE_PATH.findall(text):
        path = quoted or also_quoted or re.sub(r"\\(.)", r"\1", bare)
        path = path if path.lower().endswith(_IMAGE_SUFFIXES) else path.rstrip(TRAILING)
        if path.lower().endswith(_IMAGE_SUFFIXES):
            yield path
