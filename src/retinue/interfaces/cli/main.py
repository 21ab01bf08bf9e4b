"""The command `retinue`: its subcommands are imported when they are called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

import click

from retinue.version import VERSION

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# name -> (module, one line for the help). Importing them all would cost more than the help does.
COMMANDS = {
    "chat": ("chat", "Talk with an agent; plain `retinue` does so too."),
    "run": ("work", "Let an agent do one job in this directory."),
    "spawn": ("work", "Give one task to one child."),
    "fan-out": ("work", "Give many tasks to children side by side."),
    "plan": ("plan", "Have a goal planned, look at the plan, and carry it out."),
    "resume": ("work", "Go on with a run that was left before its end."),
    "tasks": ("records", "List the tasks that were given to children."),
    "runs": ("records", "List the runs in this directory's journal."),
    "show": ("show", "Show a run, or one of its agents."),
    "watch": ("watch", "Follow a run in another terminal until it ends."),
    "cancel": ("watch", "Stop a run, or one of its agents."),
    "diff": ("undo", "Show what a run, or one of its agents, did to the files."),
    "undo": ("undo", "Take that back."),
    "redo": ("undo", "Make again what was undone, or bring in what a child left."),
    "clean": ("clean", "Remove what is old, and tell how much disk the rest takes."),
    "export": ("export", "Write a run to a file, to be read elsewhere."),
    "audit": ("records", "Check that a run's journal is what was written."),
    "help": ("help", "Tell about a topic, such as sessions or budgets."),
    "completion": ("completion", "Make your shell complete what you type."),
    "agents": ("agents", "List the roles and profiles there are."),
    "models": ("models", "List the models that are served."),
    "doctor": ("doctor", "Say what is found, what is wrong, and the way out."),
    "tools": ("tools", "List the tools there are, those of MCP servers too."),
    "trust": ("trust", "Let a project start its own MCP servers and choose the model."),
    "init": ("init", "Begin a project: a commented retinue.toml and an agent."),
    "demo": ("demo", "See children at work on a small bundled repository."),
}


class LazyGroup(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Without a command it is the chat, with or without options; help where nobody can talk.
        if not args:
            args = ["chat"] if at_terminal() else ["--help"]
        elif args[0].startswith("-") and args[0] not in ("-h", "--help", "--version"):
            args = _command_first(args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"retinue.interfaces.cli.commands.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _command_first(args: list[str]) -> list[str]:
    """Options may stand before the command, as in `-m MODEL run TASK`; without one it is the chat.

    A word behind an option is its value.
    """
    for place in range(2, len(args)):
        if args[place] in COMMANDS and not args[place - 1].startswith("-"):
            return [args[place], *args[:place], *args[place + 1 :]]
    return ["chat", *args]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="retinue")
def cli() -> None:
    """Children for your agent, bound by contracts.

    Exit codes: 0 done, 1 failed, 2 usage, 3 a limit ended it, 4 an approval was needed and nobody
    was there, 130 interrupted.
    """


def at_terminal() -> bool:
    """Is there a person who sees what is drawn and can type?"""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    from retinue.errors import ApprovalNeeded, RetinueError, UsageError

    try:
        code = cli.main(argv, prog_name="retinue", standalone_mode=False)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "retinue"
        fail(f"{error.format_message()} `{where} --help` tells more.", 2)
    except click.ClickException as error:
        fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except UsageError as error:
        fail(str(error), 2)
    except ApprovalNeeded as error:
        fail(str(error), 4)
    except RetinueError as error:
        fail(str(error), 1)
    sys.exit(code if isinstance(code, int) else 0)


def fail(message: str, code: int) -> NoReturn:
    from retinue.interfaces.cli.terminal.output import tell

    tell(f"retinue: {message}")
    sys.exit(code)
