"""The command line of a recording, so that `retinue test` can repeat the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from retinue.config.environment import Environment
from retinue.model_registry import redaction_of

# The model and the directory are chosen anew; the others only change what is printed.
LEFT_OUT = frozenset(
    ("model", "directory", "record", "as_json", "result_format", "quiet", "log_format", "log_level")
)
# A session or a file that is read only once cannot be had again.
NOT_REPEATABLE = frozenset(("continue_last", "session", "continues", "file"))
INPUT = "retinue.standard_input"
"""Key in the context of a command that has read its standard input."""


class RepeatedCommand(msgspec.Struct, frozen=True):
    """The object of a click context in which a recorded command runs again."""

    arguments: dict[str, Any]
    """Arguments of `open_runtime` in place of those of the command line."""


def record_command(root: Path, file: str, code: int) -> None:
    """Add the current command to its recording, if it can be repeated."""
    context = click.get_current_context()
    given = [
        parameter
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        and context.params[parameter.name or ""] not in (None, ())
    ]
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
