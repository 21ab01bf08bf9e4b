"""A conversation with a model, free of any provider's dialect."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from retinue.domain.account import MICROUSD_PER_USD


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """`arguments` is the raw JSON text that the model wrote, right or wrong."""

    id: str
    name: str
    arguments: str


class SystemMessage(msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="system"):
    content: str


class UserMessage(msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="user"):
    content: str


class Thought(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A piece of thinking, exactly as it came: JSON that may be signed or encrypted.

    It stood behind so many characters of the reply's text and so many of its calls.
    """

    block: str
    after_text: int = 0
    after_calls: int = 0


class Thoughts(msgspec.Struct, frozen=True, gc=False):
    """What a model wants to be given back with its reply. Nobody else can read it.

    `by` is the name of that model; to others these thoughts are not sent.
    """

    by: str
    blocks: tuple[Thought, ...]

    @property
    def size_bytes(self) -> int:
        return sum(len(thought.block.encode()) for thought in self.blocks)


class AssistantMessage(
    msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="assistant", omit_defaults=True
):
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    thoughts: Thoughts | None = None


class ToolMessage(
    msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="tool", omit_defaults=True
):
    call_id: str
    content: str
    failed: bool = False


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage


class Effect(StrEnum):
    """What running a tool can do to the world.

    READ may be repeated, and run beside others. DELEGATE makes children, which may run beside each
    other. REMEMBER writes into the memory, and nothing else. EXTERNAL acts beyond the workspace,
    where neither a write scope nor a sandbox holds it.
    """

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    DELEGATE = "delegate"
    REMEMBER = "remember"
    EXTERNAL = "external"


class ToolSpec(msgspec.Struct, frozen=True, gc=False):
    """A tool as the model sees it. `parameters` is a JSON schema, already encoded."""

    name: str
    description: str
    parameters: msgspec.Raw


class Usage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What was used.

    `tokens_in` includes `tokens_cached`, which a cache had, and `tokens_written`, which were put
    into one for a price of their own.
    """

    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    cost_microusd: int = 0
    estimated: bool = False
    tokens_written: int = 0

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out

    @property
    def cost_usd(self) -> float:
        return self.cost_microusd / MICROUSD_PER_USD

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.tokens_in + other.tokens_in,
            self.tokens_cached + other.tokens_cached,
            self.tokens_out + other.tokens_out,
            self.cost_microusd + other.cost_microusd,
            self.estimated or other.estimated,
            self.tokens_written + other.tokens_written,
        )


class Timing(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Where the time of a reply went: waiting for its turn, for its first token, for the rest."""

    queued_s: float = 0.0
    first_token_s: float = 0.0
    generating_s: float = 0.0

    def __add__(self, other: Timing) -> Timing:
        return Timing(
            self.queued_s + other.queued_s,
            self.first_token_s + other.first_token_s,
            self.generating_s + other.generating_s,
        )

    def __str__(self) -> str:
        return (
            f"queued {self.queued_s:.1f}s, first token {self.first_token_s:.1f}s,"
            f" generating {self.generating_s:.1f}s"
        )


class Finish(StrEnum):
    STOP = "stop"
    TOOLS = "tools"
    LENGTH = "length"


class Reply(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    message: AssistantMessage
    usage: Usage
    finish: Finish
    timing: Timing = Timing()
    repairs: tuple[str, ...] = ()
    """What had to be mended in it before it could be used, a line each."""
    model: str = ""
    """Which model of a pool it is from."""


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One question to a model. `tools` come sorted by name: prefixes must be byte-stable.

    `schema` is a JSON schema that a final answer should fit. A model that can be held to it is; who
    asks has to check the answer all the same.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int | None = None
    schema: str | None = None
    agent_path: str = ""
    """The path of the agent that asks, for whoever keeps apart who asked what. Never sent."""
    # What follows is for whoever has to choose between requests, and is never sent either.
    run_id: str = ""
    """Whose request it is: the children of a run share what there is with its root, and with other
    runs."""
    asked_at: float = 0.0
    """When it was first made; the oldest of a lane goes first, also when it is made again."""
    preferred_model: str = ""
    """The model that gave the last reply of the conversation, and may remember it."""
    timeouts: int = 0
    """How often it was given up because no answer came in time."""


def estimate_tokens(text: str | bytes) -> int:
    """Bytes / 4, rounded up: the measure used wherever no server has counted."""
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // 4)
