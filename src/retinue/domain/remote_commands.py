"""Commands of other processes to a run: cancel, stop, message, answer."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from retinue.errors import UsageError

MAX_COMMAND_BYTES = 32 * 1024
READS_NO_MORE = (
    "{agent} has given its answer and reads no more messages; when it has ended, a new agent can"
    " continue its conversation."
)


class Verb(StrEnum):
    CANCEL = "cancel"
    """End an agent and its descendants for good."""
    STOP = "stop"
    """Suspend the run, so that it can be resumed."""
    MESSAGE = "message"
    """Send `text` to an agent."""
    ANSWER = "answer"
    """Answer a question of an agent."""


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    verb: Verb
    agent_id: str
    by: str
    """Where the command comes from: "cli" or "web"."""
    text: str = ""
    """The message, the answer to a question, or the reason of a no."""
    request: int = 0
    """Number of the event `approval.requested` that is answered; 0 for a question in words."""
    answer: str = ""
    """Answer to an approval: "yes", "always" or "no"."""


def encode_command(command: Command) -> str:
    """One line. Raises UsageError if the text is too long."""
    line = msgspec.json.encode(command).decode()
    if len(line) > MAX_COMMAND_BYTES:
        raise UsageError(f"The text is too long; {MAX_COMMAND_BYTES:,} characters are allowed.")
    return line


def decode_command(line: str) -> Command | None:
    """None for a line that is no command, say of another version."""
    try:
        return msgspec.json.decode(line, type=Command)
    except msgspec.DecodeError:
        return None
