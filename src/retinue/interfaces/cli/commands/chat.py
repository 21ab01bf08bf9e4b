"""The command that opens the chat."""

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
from retinue.interfaces.cli.commands.trust import settle
from retinue.interfaces.cli.main import at_terminal
from retinue.interfaces.cli.options import going_on, limits, limits_from, opening
from retinue.interfaces.cli.terminal.console import way_back
from retinue.project import project

if TYPE_CHECKING:
    from retinue.interfaces.chat.app import ChatApp

LEAVING_S = 5
BRIEF = (2_000, 5, 10)


@click.command()
@going_on
@opening
@limits
def chat(go_on: bool, session: str | None, **options: Any) -> None:
    """Talk with an agent about this directory, and watch those that it sends out.

    The name of the command can be left out: `retinue` opens the chat too.

    Example: retinue chat -m openai:qwen3@http://127.0.0.1:8080/v1
    """
    if go_on and session is not None:
        raise UsageError(f"-c means the last session and -r {session} that one; choose one.")
    require("terminal", "The chat")
    if not at_terminal():
        raise UsageError('The chat needs a terminal; `retinue run "…"` does one job without one.')
    settings = load_settings(
        Environment.current().user_settings_file, project(options["directory"])
    ).merged
    settle(options["directory"], model=options["model"])
    # Textual takes a quarter of a second to import, so nobody else pays for it.
    from retinue.interfaces.chat.app import ChatApp
    from retinue.interfaces.chat.chat import LAST, Chat
    from retinue.interfaces.chat.event_loop import PoliteLoop

    async def inside() -> None:
        talk = Chat(
            options["directory"],
            session=LAST if go_on else session,
            model=options["model"],
            mode=options["mode"],
            cache=False if options["no_cache"] else None,
            unsafe_no_sandbox=options["unsafe_no_sandbox"],
            record=options["record"],
            limits=limits_from(options),
            notify_after_s=settings.notify_after_s,
        )
        app = ChatApp(talk)
        # Whoever is killed, or loses the terminal, still closes every agent.
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, app.action_leave)
        loop.add_signal_handler(signal.SIGHUP, lambda: loop.create_task(_vanish(app)))
        await app.run_async()
        if talk.interrupted is not None:
            click.echo(way_back("interrupted", talk.interrupted.id, options["directory"]), err=True)

    gc.freeze()
    # While agents work, the collector waits for many objects, and then takes 20 ms. Nobody should
    # have to wait for that whose key comes meanwhile.
    gc.set_threshold(*BRIEF)
    with asyncio.Runner(loop_factory=PoliteLoop) as runner:
        runner.run(inside())


async def _vanish(app: ChatApp) -> None:
    """End without a terminal, which Textual would wait for without end: close, and be gone."""
    signal.alarm(LEAVING_S)  # The kernel sees to it, if we do not.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nowhere, output)
    await app.closed()
    os._exit(128 + signal.SIGHUP)
