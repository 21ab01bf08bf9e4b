"""A conversation with a model, free of any provider's dialect."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from retinue.domain.budget import MICRO


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """`arguments` is the raw JSON text that the model wrote, right or wrong."""

    id: str
    name: str
    arguments: str


class System(msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="system"):
    content: str


class User(msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="user"):
    content: str


class Assistant(
    msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="assistant", omit_defaults=True
):
    content: str = ""
    calls: tuple[ToolCall, ...] = ()


class ToolAnswer(msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="tool"):
    call_id: str
    content: str


Message = System | User | Assistant | ToolAnswer


class Effect(StrEnum):
    """What running a tool can do to the world.

    READ may be repeated, and run beside others. DELEGATE makes children, which may run beside each
    other. REMEMBER writes into the memory, and nothing else.
    """

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    DELEGATE = "delegate"
    REMEMBER = "remember"


class ToolSpec(msgspec.Struct, frozen=True, gc=False):
    """A tool as the model sees it. `parameters` is a JSON schema, already encoded."""

    name: str
    description: str
    parameters: msgspec.Raw


class Usage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What was used. `tokens_in` includes `tokens_cached`."""

    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    cost_microusd: int = 0
    estimated: bool = False

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out

    @property
    def cost_usd(self) -> float:
        return self.cost_microusd / MICRO

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.tokens_in + other.tokens_in,
            self.tokens_cached + other.tokens_cached,
            self.tokens_out + other.tokens_out,
            self.cost_microusd + other.cost_microusd,
            self.estimated or other.estimated,
        )


class Timing(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Where the time of one reply went."""

    queued_s: float = 0.0
    first_token_s: float = 0.0
    generating_s: float = 0.0


class Finish(StrEnum):
    STOP = "stop"
    TOOLS = "tools"
    LENGTH = "length"


class Reply(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    message: Assistant
    usage: Usage
    finish: Finish
    timing: Timing = Timing()
    repairs: tuple[str, ...] = ()
    """What had to be mended in it before it could be used, a line each."""


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One question to a model. `tools` come sorted by name: prefixes must be byte-stable."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int | None = None


def estimate_tokens(text: str | bytes) -> int:
    """Bytes / 4, rounded up: the measure used wherever no server has counted."""
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // 4)
