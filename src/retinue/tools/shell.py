"""Tool that runs shell commands in the agent's sandbox."""

from __future__ import annotations

from retinue.domain.grant import Network
from retinue.domain.messages import Effect
from retinue.domain.trace_context import TRACEPARENT
from retinue.errors import ToolFailure
from retinue.ports.sandbox import ShellCommand
from retinue.ports.tool import ToolContext, ToolOutcome
from retinue.tools.excerpt import MAX_BYTES
from retinue.tools.function import tool

MAX_TIMEOUT_S = 600.0


@tool(effect=Effect.EXECUTE)
async def run_command(
    ctx: ToolContext,
    command: str,
    timeout_s: float = 60.0,
) -> ToolOutcome:
    """Run a shell command. timeout_s: 60, at most 600."""
    if ctx.sandbox is None:
        raise ToolFailure(
            "Shell commands are off: no sandbox is available here. Work without them; only the user"
            " can allow commands without a sandbox, with --unsafe-no-sandbox."
        )
    if not command.strip():
        raise ToolFailure("run_command: 'command' is empty.")
    if not timeout_s > 0:
        raise ToolFailure(f"run_command: 'timeout_s' must be positive, not {timeout_s:g}.")
    limit_s = min(timeout_s, MAX_TIMEOUT_S)
    traceparent = ctx.call.traceparent
    variables = {TRACEPARENT: traceparent} if traceparent else {}
    done = await ctx.sandbox.run(ShellCommand(command, ctx.access, limit_s, MAX_BYTES, variables))
    if done.timed_out:
        head = f"Killed after {limit_s:g} s, with everything it had started."
    else:
        head = f"Exit code {done.exit_code}"
    return ToolOutcome(
        content=f"{head}\n{done.output}" if done.output else head,
        ok=done.exit_code == 0 and not done.timed_out,
        command=command,
        exit_code=done.exit_code,
        untrusted=ctx.access.network is Network.ALL,
        changed=done.changed,
    )
