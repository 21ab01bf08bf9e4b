"""`!command`: runs a shell command of the user, and keeps its output for the next message."""

from __future__ import annotations

import asyncio

from retinue.domain.grant import Access, Network
from retinue.domain.scope import ANYWHERE
from retinue.errors import UsageError
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.view.styled_text import Tone
from retinue.ports.sandbox import Sandbox, ShellCommand

NO_SHELL = (
    "Shell commands are off: no sandbox is available here. `retinue --unsafe-no-sandbox` runs them"
    " unconfined."
)
TIMEOUT_S = 120.0
MAX_OUTPUT_BYTES = 32_000


def run_shell(chat: Chat, command: str) -> None:
    if not command:
        raise UsageError("Write a command after the exclamation mark: !make test")
    sandbox = chat.runtime.sandbox
    if sandbox is None:
        raise UsageError(NO_SHELL)
    chat.start_background(_run(chat, sandbox, command))


async def _run(chat: Chat, sandbox: Sandbox, command: str) -> None:
    notice = chat.conversation.add_notice(f"$ {command}\n…")
    try:
        # A command of the user may do all that an agent could be allowed to do.
        access = Access(root=str(chat.directory), write_scope=ANYWHERE, network=Network.ALL)
        done = await sandbox.run(ShellCommand(command, access, TIMEOUT_S, MAX_OUTPUT_BYTES))
    except asyncio.CancelledError:
        notice.replace(f"$ {command}\n(stopped)", Tone.STOPPED)
        raise
    outcome = f"killed after {TIMEOUT_S:g} s" if done.timed_out else f"exit {done.exit_code}"
    output = done.output.rstrip()
    notice.replace(
        f"$ {command}\n{output}\n({outcome})" if output else f"$ {command}\n({outcome})",
        Tone.PLAIN if done.exit_code == 0 else Tone.FAILED,
    )
    chat.add_context(f"The user ran `{command}` ({outcome}):\n{output}")
