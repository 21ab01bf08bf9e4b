"""The command line of a recording, so that `retinue test` can repeat the command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.core import ParameterSource

from retinue.config.environment import Environment
from retinue.domain.grant import Mode
from retinue.errors import UsageError
from retinue.interfaces.cli.options import LIMIT_FLAGS, SAMPLING_FLAGS
from retinue.model_registry import redaction_of

if TYPE_CHECKING:
    from retinue.models.replay.recording import CommandLine

# The model and the directory are chosen anew; the others only change what is printed.
LEFT_OUT = frozenset({
    "model", "directory", "record", "as_json", "result_format", "quiet", "log_format", "log_level",
    "cluster",
})  # fmt: skip
# A session or a file that is read only once cannot be had again; `out` writes into the project.
NOT_REPEATABLE = frozenset(("continue_last", "session", "continues", "file", "out"))
# These limit a run or say what it is about. All others give agents more than they have without.
_HARMLESS = frozenset({
    "words", "role", "task", "tasks", "goal", "each", "context_files", "workspace", "on_conflict",
    "yes", "max_concurrent", "no_cache", "budget", *LIMIT_FLAGS, *SAMPLING_FLAGS,
})  # fmt: skip
_REPEATABLE_COMMANDS = ("run", "spawn", "fan-out", "plan")
INPUT = "retinue.standard_input"
"""Key in the context of a command that has read its standard input."""


class RepeatedCommand(msgspec.Struct, frozen=True):
    """The object of a click context in which a recorded command runs again."""

    arguments: dict[str, Any]
    """Arguments of `open_runtime` in place of those of the command line."""


def permissions_of(command: CommandLine, commands: click.Group) -> list[str]:
    """Options of a recorded command that give agents more. Raises UsageError.

    A recording is data, which may come from a stranger: only what `record_command` writes is
    accepted.
    """
    name, *arguments = command.arguments or ("",)
    found = None
    if name in _REPEATABLE_COMMANDS:
        found = commands.get_command(click.Context(commands), name)
    if found is None:
        raise UsageError(f"`retinue {name}` is not a command that a recording repeats.")
    with found.make_context(name, arguments, resilient_parsing=True) as context:
        given = [parameter for parameter in found.params if _is_given(context, parameter)]
    for parameter in given:
        if parameter.name in LEFT_OUT | NOT_REPEATABLE:
            raise UsageError(f"{parameter.opts[-1]} of `retinue {name}` cannot be repeated.")
    return [
        parameter.opts[-1]
        for parameter in given
        if parameter.name not in _HARMLESS
        and not (parameter.name == "mode" and not Mode(context.params["mode"]).autonomous)
    ]


def _is_given(context: click.Context, parameter: click.Parameter) -> bool:
    source = context.get_parameter_source(parameter.name or "")
    return source is ParameterSource.COMMANDLINE and context.params.get(
        parameter.name or ""
    ) not in (None, ())


def record_command(root: Path, file: str, code: int) -> None:
    """Add the current command to its recording, if it can be repeated."""
    context = click.get_current_context()
    given = [parameter for parameter in context.command.params if _is_given(context, parameter)]
    if context.meta.get(INPUT) or NOT_REPEATABLE & {parameter.name for parameter in given}:
        return
    from retinue.models.replay.recorder import append_command
    from retinue.models.replay.recording import CommandLine

    options: list[str] = [str(context.info_name)]
    words: list[str] = []
    for parameter in given:
        value = context.params[parameter.name or ""]
        values = map(str, value if isinstance(value, tuple) else [value])
        if isinstance(parameter, click.Argument):
            words += values
        elif parameter.name not in LEFT_OUT:
            flag = parameter.opts[-1]
            is_flag = isinstance(parameter, click.Option) and parameter.is_flag
            options += [flag] if is_flag else [part for one in values for part in (flag, one)]
    command = CommandLine(arguments=(*options, "--", *words), exit_code=code)
    append_command(root / file, command, redaction_of(root, Environment.current()))
