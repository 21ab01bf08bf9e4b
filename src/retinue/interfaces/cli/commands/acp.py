"""`retinue acp`: an agent for editors that speak the Agent Client Protocol."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from retinue.interfaces.cli.options import runtime_options

if TYPE_CHECKING:
    from retinue.runtime.runtime import Runtime


@click.command()
@runtime_options
def acp(**options: Any) -> None:
    """Serve the Agent Client Protocol on standard input and output, for an editor.

    The editor chooses the directory of each session. Mode and model are what you name here and in
    your settings, until you choose others in the editor.

    Example: retinue acp -m openai:qwen3@http://127.0.0.1:8080/v1
    """
    from retinue.interfaces.cli.event_loop import run_async
    from retinue.interfaces.cli.terminal.standard_streams import take_output

    run_async(_serve(take_output(), options))


async def _serve(output: int, options: dict[str, Any]) -> None:
    from retinue.interfaces.acp.agent import AcpAgent
    from retinue.interfaces.cli.terminal.interrupts import Interrupts
    from retinue.interfaces.json_rpc import LineReader

    with Interrupts() as interrupts:
        agent = AcpAgent(partial(_open_runtime, options), mode=options["mode"])
        await agent.serve(LineReader(0), output, interrupts)


def _open_runtime(options: dict[str, Any], **session: Any) -> AbstractAsyncContextManager[Runtime]:
    # Imported with the first prompt: the editor waits for the handshake before.
    from retinue.app import open_runtime
    from retinue.interfaces.cli.invocation import runtime_arguments
    from retinue.interfaces.cli.options import given_limits

    return open_runtime(
        **{**runtime_arguments(options), "limits": given_limits(options), **session}
    )
