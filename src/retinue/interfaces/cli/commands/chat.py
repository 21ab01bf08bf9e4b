"""`retinue chat`: opens the chat. `retinue` without a command does the same."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from typing import TYPE_CHECKING, Any

import click

from retinue.config.environment import Environment
from retinue.config.settings_file import load_settings
from retinue.errors import UsageError
from retinue.extras import require
from retinue.interfaces.cli.invocation import ask_for_trust, chosen_session, runtime_arguments
from retinue.interfaces.cli.main import at_terminal
from retinue.interfaces.cli.model_setup import choose_model_if_none
from retinue.interfaces.cli.options import given_limits, runtime_options, session_options
from retinue.interfaces.cli.terminal.background import ask_background
from retinue.interfaces.cli.terminal.console import resume_hint
from retinue.project import project_root

if TYPE_CHECKING:
    from retinue.interfaces.chat.app import ChatApp

CLOSING_S = 5
GC_THRESHOLDS = (2_000, 5, 10)


@click.command()
@click.argument("message", required=False)
@session_options
@runtime_options
def chat(message: str | None, continue_last: bool, session: str | None, **options: Any) -> None:
    """Chat with an agent about this directory, and watch its children.

    MESSAGE is sent at once. `retinue` without a command opens the chat too.

    \b
    /help           list all commands and keys; tab completes
    @src/a.py       add a file to your message
    @reviewer look  start a child with that role
    @a2 stop there  send a message to a running agent
    !make test      run a command in the sandbox, and show its output to the agent

    Example: retinue chat -m openai:qwen3@http://127.0.0.1:8080/v1
    """
    session = chosen_session(continue_last, session)
    require("terminal", "The chat")
    if not at_terminal():
        raise UsageError('The chat needs a terminal. Without one, use `retinue run "…"`.')
    directory = options["directory"]
    settings = load_settings(Environment.current(), project_root(directory)).merged
    ask_for_trust(directory, model=options["model"])
    options["model"] = choose_model_if_none(directory, options["model"])
    # Textual takes a quarter of a second to import; only the chat pays for it.
    from retinue.interfaces.chat.app import ChatApp
    from retinue.interfaces.chat.chat import Chat
    from retinue.interfaces.chat.event_loop import UiPriorityLoop
    from retinue.interfaces.chat.slash_commands import submit

    async def inside() -> None:
        chat_state = Chat(
            **runtime_arguments(options),
            session=session,
            limits=given_limits(options),
            notify_after_s=settings.notify_after_s,
        )
        if message:
            submit(chat_state, message)
        app = ChatApp(
            chat_state,
            theme=settings.theme,
            dark_background=background.is_dark,
            draft=background.typed,
        )
        # A killed chat, or one that loses its terminal, still closes every agent.
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, app.action_quit_chat)
        loop.add_signal_handler(signal.SIGHUP, lambda: loop.create_task(_exit_on_hangup(app)))
        await app.run_async()
        if chat_state.interrupted_run is not None:
            hint = resume_hint("interrupted", chat_state.interrupted_run.id, directory)
            click.echo(hint, err=True)

    # Before Textual reads the answers of the terminal as keys.
    background = ask_background(Environment.current())
    gc.freeze()
    # With the thresholds for working agents a collection takes 20 ms, and delays keys.
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=UiPriorityLoop) as runner:
        runner.run(inside())


async def _exit_on_hangup(app: ChatApp) -> None:
    """Close every agent and exit. Textual would wait forever for the terminal that is gone."""
    signal.alarm(CLOSING_S)  # The kernel ends the process if closing hangs.
    devnull = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(devnull, output)
    await app.close()
    os._exit(128 + signal.SIGHUP)
