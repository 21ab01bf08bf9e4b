"""Slash commands: prompts that people keep in files, with places for arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import msgspec

_PLACE = re.compile(r"\$ARGUMENTS(?:\[(\d{1,3})\])?|\$(\d{1,3})")
_SHELL = re.compile(r"(?<!\S)!`([^`\n]+)`")


class SlashCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command file. `model`, `agent` and `tools` are what its front matter asks for.

    ```python
    for name, command in rt.commands.items():
        print(f"/{name}", command.description, command.place)
    ```
    """

    name: str
    description: str
    body: str
    place: str
    """Path of the file in messages."""
    of_project: bool = False
    trusted: bool = True
    first: int = 1
    """The number of the first argument: Claude Code counts from 0, others from 1."""
    last_takes_rest: bool = False
    """Whether the placeholder with the highest number stands for all further words too."""
    model: str | None = None
    agent: str | None = None
    tools: tuple[str, ...] | None = None
    problems: tuple[str, ...] = ()

    @property
    def runs_commands(self) -> bool:
        """Whether it contains shell commands."""
        return _SHELL.search(self.body) is not None

    def parts(self, arguments: str) -> list[tuple[str, bool]]:
        """The prompt with its arguments, in parts; True marks a shell command.

        Only the file has shell commands: an argument that looks like one stays text. In a shell
        command, arguments are quoted.
        """
        words = _words(arguments)
        numbers = [int(n) for pair in _PLACE.findall(self.body) for n in pair if n]
        last = max(numbers, default=-1) if self.last_takes_rest else -1

        def fill(text: str, quote: Callable[[str], str]) -> str:
            def value(found: re.Match[str]) -> str:
                number = found[1] or found[2]
                if number is None:
                    return arguments if quote is str else " ".join(map(quote, words))
                index = int(number) - self.first
                end = len(words) if int(number) == last else index + 1
                return " ".join(map(quote, words[index:end])) if index >= 0 else ""

            return _PLACE.sub(value, text)

        split = _SHELL.split(self.body)
        parts = [(fill(t, shlex.quote if n % 2 else str), n % 2 == 1) for n, t in enumerate(split)]
        if arguments and not _PLACE.search(self.body):
            parts.append((f"\n\n{'' if self.first else 'ARGUMENTS: '}{arguments}", False))
        return parts


def _words(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError:  # A single quotation mark, as in "don't".
        return arguments.split()


def split_command(text: str) -> tuple[str, str]:
    """`/name arguments` as name and arguments; the name is "" if the text is no command."""
    first, *rest = text.strip().split(maxsplit=1) or [""]
    return (first[1:], "".join(rest)) if first.startswith("/") else ("", "")
