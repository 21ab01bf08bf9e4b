"""The command that opens the chat."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Mapping
from typing import Any

import click

from retinue.errors import UsageError
from retinue.interfaces.cli.options import limits, opening

LIMITS = ("max_tool_calls", "max_turns", "max_tokens", "max_cost_usd", "timeout_s")


@click.command()
@click.option("-c", "--continue", "go_on", is_flag=True, help="Go on with the last session.")
@click.option("-r", "--resume", "session", metavar="ID", help="Go on with the session of this run.")
@opening
@limits
def chat(go_on: bool, session: str | None, **options: Any) -> None:
    """Talk with an agent about this directory, and watch those that it sends out.

    The name of the command can be left out: `retinue` opens the chat too.

    Example: retinue chat -m openai:qwen3@http://127.0.0.1:8080/v1
    """
    if go_on and session is not None:
        raise UsageError(f"-c means the last session and -r {session} that one; choose one.")
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise UsageError('The chat needs a terminal; `retinue run "…"` does one job without one.')
    # Textual takes a quarter of a second to import, so nobody else pays for it.
    from retinue.interfaces.chat.app import ChatApp
    from retinue.interfaces.chat.chat import LAST, Chat

    async def inside() -> None:
        talk = Chat(
            options["directory"],
            session=LAST if go_on else session,
            model=options["model"],
            mode=options["mode"],
            cache=False if options["no_cache"] else None,
            unsafe_no_sandbox=options["unsafe_no_sandbox"],
            limits=_chosen(options),
        )
        await ChatApp(talk).run_async()

    gc.freeze()
    asyncio.run(inside())


def _chosen(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in LIMITS if options[name] is not None}
