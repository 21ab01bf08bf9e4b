"""Expands a slash command into a task: arguments, files, and the output of shell commands."""

from __future__ import annotations

import os
import re

import msgspec

from retinue.domain.framing import frame
from retinue.domain.grant import Mode
from retinue.domain.scope import NOWHERE
from retinue.domain.slash_command import split_command
from retinue.errors import ApprovalNeeded, UsageError
from retinue.ports.sandbox import ShellCommand
from retinue.runtime.services import Services

TIMEOUT_S = 60.0
MAX_OUTPUT_BYTES = 16_000
_MENTION = re.compile(r"(?<!\S)@([^\s@]+)")
_TRAILING = ".,;:!?)]}'\""


class ExpandedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a slash command stands for.

    ```python
    command = await rt.expand("/review the last commit")
    if command is not None:  # .retinue/commands/review.md
        await rt.run(command.task, context_files=command.files, tools=command.tools)
    ```
    """

    task: str
    files: tuple[str, ...]
    """Files of the project that the command mentions."""
    role: str | None
    """With a role or a model, a child does the task."""
    model: str | None
    tools: tuple[str, ...] | None


async def expand(line: str, services: Services) -> ExpandedCommand | None:
    """Expand `/name arguments`; None if no command has that name.

    Raises ApprovalNeeded without trust, and UsageError.
    """
    name, arguments = split_command(line)
    policy, command = services.policy, services.commands.get(name)
    if command is None:
        return None
    if not command.trusted:
        raise ApprovalNeeded(
            f"/{name} is a command of the project ({command.place}), and this folder is not"
            " trusted; `retinue trust` allows it."
        )
    if command.runs_commands and policy.mode is Mode.PLAN:
        raise UsageError(f"/{name} runs shell commands, and plan mode runs none.")
    workspace = services.file_tree.workspace(policy.directory)
    files: dict[str, None] = {}
    texts = []
    for text, is_shell in command.parts(arguments):
        if not is_shell:
            texts.append(text)
            for word in _MENTION.findall(text):
                for path in (word, word.rstrip(_TRAILING)):
                    inside = workspace.inside(path)
                    if inside is not None and _is_file(workspace.root, inside):
                        files[inside] = None
                        break
            continue
        if services.sandbox is None:
            raise UsageError(f"/{name} runs shell commands, and there is no sandbox for them.")
        access = workspace.access(NOWHERE)
        done = await services.sandbox.run(ShellCommand(text, access, TIMEOUT_S, MAX_OUTPUT_BYTES))
        if done.timed_out or done.exit_code != 0:
            how = f"took more than {TIMEOUT_S:g} s" if done.timed_out else f"exit {done.exit_code}"
            raise UsageError(f"/{name}: `{text}` failed ({how}): {done.output.strip()[-200:]}")
        texts.append(frame(done.output.rstrip(), kind="output", source=text))
    return ExpandedCommand(
        task="".join(texts).strip(),
        files=tuple(files),
        role=command.agent,
        model=command.model,
        tools=command.tools,
    )


def _is_file(root: str, path: str) -> bool:
    """Whether a file of the project has that path. A link out of the project is none."""
    real = os.path.realpath(os.path.join(root, path))
    return real.startswith(f"{os.path.realpath(root)}/") and os.path.isfile(real)
