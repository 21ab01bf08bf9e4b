"""The `retinue` command. Subcommands are imported when they are called."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

import click

from retinue.version import VERSION

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# The commands by purpose: name -> (module, help line). Importing every module would make `--help`
# slow.
GROUPS = {
    "Work": {
        "chat": ("chat", "Chat with an agent (the default)."),
        "run": ("run", "Run an agent on a task."),
        "spawn": ("spawn", "Run one child on a task."),
        "fan-out": ("fan_out", "Run many children at the same time."),
        "race": ("race", "Run several candidates on a task, and merge the best work."),
        "plan": ("plan", "Plan a goal, review the plan, and execute it."),
        "commit": ("commit", "Write a message for staged changes, and commit them."),
        "resume": ("resume", "Resume a suspended or interrupted run."),
        "fork": ("fork", "Start a new run from a moment of another one."),
        "cancel": ("cancel", "Cancel a run, or one of its agents."),
        "demo": ("demo", "Show children at work on a small example repository."),
    },
    "Inspect": {
        "runs": ("runs", "List the runs of this directory."),
        "sessions": ("sessions", "List sessions, rename or delete one."),
        "tasks": ("tasks", "List the tasks of children."),
        "show": ("show", "Show a run, or one of its agents."),
        "watch": ("watch", "Follow a run in another terminal."),
        "web": ("web", "Show runs in a browser, and control them there."),
        "diff": ("diff", "Show the changes that a run made to the files."),
        "audit": ("audit", "Verify that a run's journal is unchanged."),
        "export": ("export", "Write a run to a file."),
        "compare": ("compare", "Compare two runs: conversation, usage and files."),
        "stats": ("stats", "Compare roles, models and tools over all runs."),
        "metrics": ("metrics", "Print metrics of all runs for Prometheus."),
        "test": ("test", "Replay recorded runs, and report what differs."),
        "store": ("store", "Show where the journal is, or copy runs to another store."),
    },
    "Change back": {
        "undo": ("undo", "Undo the changes of a run."),
        "redo": ("undo", "Apply undone changes again, or merge those of a failed child."),
        "clean": ("clean", "Remove old data, and show how much disk the rest takes."),
    },
    "Set up": {
        "setup": ("setup", "Choose the model that agents use by default."),
        "config": ("config", "Show settings and where they come from, and change one."),
        "init": ("init", "Look at this project, and write settings that fit."),
        "doctor": ("doctor", "Check the setup, and say how to fix problems."),
        "models": ("models", "List the models that are served."),
        "agents": ("agents", "List roles and profiles."),
        "tools": ("tools", "List built-in tools and those of MCP servers."),
        "skills": ("skills", "List skills, and what is wrong with invalid ones."),
        "commands": ("skills", "List slash commands, and what is wrong with invalid ones."),
        "nodes": ("nodes", "List the nodes of a cluster, and the children there."),
        "trust": ("trust", "Let a project start its own MCP servers and choose the model."),
        "completion": ("completion", "Print the completion script for your shell."),
        "help": ("help", "Show the manual's page on a topic."),
    },
    "Connect": {
        "mcp": ("mcp", "Serve children to other agents, over MCP."),
        "acp": ("acp", "Serve an agent to editors, over ACP."),
        "serve": ("web", "Serve runs as an HTTP API, without the page."),
    },
}
COMMANDS = {name: about for group in GROUPS.values() for name, about in group.items()}


class LazyGroup(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Without a command, open the chat, or print the help where there is no terminal.
        if not args:
            args = ["chat"] if at_terminal() else ["--help"]
        elif args[0] in ("-p", "--print"):
            args = ["run", *args[1:]]
        elif len(args) == 1 and " " in args[0].strip():
            # A task; a single word is always a command.
            args = ["chat", *args] if at_terminal() else ["run", *args]
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, COMMANDS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else 'For a task: retinue run "…".'
            ctx.fail(f"There is no command {name!r}. {hint}")
        return super().resolve_command(ctx, args)

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
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in group.items()])


def _command_first(args: list[str]) -> list[str]:
    """Move the command before its options, as in `-m MODEL run TASK`; default to the chat.

    A word after an option is that option's value, not a command.
    """
    for index in range(2, len(args)):
        if args[index] in COMMANDS and not args[index - 1].startswith("-"):
            return [args[index], *args[:index], *args[index + 1 :]]
    return ["chat", *args]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="retinue")
def cli() -> None:
    """Run agents and their children, each with a contract and a budget.

    \b
    retinue                   open the chat
    retinue "fix the tests"   open the chat with this message
    retinue -p "explain it"   run one task, print the answer; a pipe is read too

    Exit codes: 0 done, 1 failed, 2 usage, 3 a limit was reached, 4 an approval was needed, 130
    interrupted.
    """


def at_terminal() -> bool:
    """Whether a person can read the output and type."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    from retinue.interfaces.cli.terminal.standard_streams import safe_streams

    with safe_streams():
        _main(argv)


def _main(argv: Sequence[str] | None) -> NoReturn:
    from retinue.errors import ApprovalNeeded, RetinueError, UnknownRun, UsageError

    try:
        code = cli.main(argv, prog_name="retinue", standalone_mode=False)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "retinue"
        # Some messages of click end without a full stop.
        message = error.format_message()
        message += "" if message.endswith((".", "?", "!", "…")) else "."
        fail(f"{message} See `{command} --help`.", 2)
    except click.ClickException as error:
        fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except RetinueError as error:
        is_usage = isinstance(error, (UsageError, UnknownRun))
        is_approval = isinstance(error, ApprovalNeeded)
        fail(str(error), 2 if is_usage else 4 if is_approval else 1)
    except (OSError, RuntimeError) as error:
        if error.args[:1] == (errno.EMFILE,):
            fail("too many files are open: raise the limit (`ulimit -n`).", 1)
        # Starting a process or a thread fails so at the limit, and nothing else is to blame.
        if error.args[:1] not in ((errno.EAGAIN,), ("can't start new thread",)):
            raise
        fail("no process or thread can be started: raise the limits (`ulimit -u`, `ulimit -v`).", 1)
    sys.exit(code if isinstance(code, int) else 0)


def fail(message: str, code: int) -> NoReturn:
    from retinue.interfaces.cli.terminal.output import print_error

    print_error(f"retinue: {message}")
    sys.exit(code)
