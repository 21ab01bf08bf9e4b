"""Messages, requests and replies, independent of any provider's dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import count

import msgspec

from retinue.domain.account import MICROUSD_PER_USD
from retinue.domain.images import Image
from retinue.domain.sampling import NO_SAMPLING, Sampling


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A call in a reply. `arguments` is the text that the model wrote, valid JSON or not.

    ```python
    call = retinue.ToolCall("call_1", "read_file", '{"path": "a.txt"}')
    ```
    """

    id: str
    name: str
    arguments: str


class SystemMessage(msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="system"):
    """Instructions for the model, which come first.

    ```python
    assert retinue.SystemMessage("Be brief.").content == "Be brief."
    ```
    """

    content: str


class UserMessage(
    msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="user", omit_defaults=True
):
    """A message of the user, or of the parent or program that the agent works for.

    ```python
    assert retinue.UserMessage("What is in a.txt?").images == ()
    ```
    """

    content: str
    images: tuple[Image, ...] = ()


class Thought(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A block of thinking, exactly as it came: JSON that may be signed or encrypted.

    `after_text` and `after_calls` are its position: how many characters and calls precede it.

    ```python
    thought = retinue.Thought('{"type": "thinking", "thinking": "Hm.", "signature": "x"}')
    ```
    """

    block: str
    after_text: int = 0
    after_calls: int = 0


class Thoughts(msgspec.Struct, frozen=True, gc=False):
    """What the provider needs back with the reply, such as thinking and its signatures.

    `by` is the name of the model; the thoughts are sent to no other model. A model drops the
    thoughts of a reply that was cut off at its limit (`Finish.LENGTH`).

    ```python
    thoughts = retinue.Thoughts("my-model", (retinue.Thought('"Hm."'),))
    message = retinue.AssistantMessage("Yes.", thoughts=thoughts)
    ```
    """

    by: str
    blocks: tuple[Thought, ...]

    @property
    def size_bytes(self) -> int:
        """Length of all blocks."""
        return sum(len(thought.block.encode()) for thought in self.blocks)


class AssistantMessage(
    msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="assistant", omit_defaults=True
):
    """What the model said: text, tool calls, or both.

    ```python
    call = retinue.ToolCall("call_1", "read_file", '{"path": "a.txt"}')
    message = retinue.AssistantMessage("Let me look.", (call,))
    assert message.calls[0].name == "read_file"
    ```
    """

    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    thoughts: Thoughts | None = None


class ToolMessage(
    msgspec.Struct, frozen=True, gc=False, tag_field="role", tag="tool", omit_defaults=True
):
    """The answer to the tool call with the id `call_id`.

    ```python
    answer = retinue.ToolMessage("call_1", "[ERROR] There is no a.txt.", failed=True)
    ```
    """

    call_id: str
    content: str
    failed: bool = False
    images: tuple[Image, ...] = ()


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage


class Effect(StrEnum):
    """What running a tool can change.

    READ changes nothing: it may be repeated, and run in parallel. DELEGATE spawns children, which
    may run in parallel. REMEMBER writes only into the memory. EXTERNAL acts outside the workspace,
    where neither write scopes nor the sandbox apply. CHECK runs a command that the user chose, in
    the sandbox; an agent that may not write runs it on a copy.

    ```python
    @retinue.tool(effect=retinue.Effect.READ)
    def now() -> str:
        "Tell the time."
        return "noon"
    ```
    """

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    DELEGATE = "delegate"
    REMEMBER = "remember"
    EXTERNAL = "external"
    CHECK = "check"


class ToolSpec(msgspec.Struct, frozen=True, gc=False):
    """A tool as the model sees it. `parameters` is a JSON schema, already encoded.

    ```python
    messages = (retinue.UserMessage("What is in a.txt?"),)
    request = retinue.Request(messages=messages)
    for tool in request.tools:
        print(tool.name, tool.description, bytes(tool.parameters), tool.tokens)
    ```
    """

    name: str
    description: str
    parameters: msgspec.Raw

    @property
    def tokens(self) -> int:
        """An estimate of what it takes in a prompt."""
        about = estimate_tokens(self.name + self.description)
        return about + estimate_tokens(bytes(self.parameters))


class Usage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Tokens and cost of one or more replies.

    `tokens_in` includes `tokens_cached`, which were in a cache, and `tokens_written`, which were
    written into one and have their own price. It also includes `tokens_repeated`, which an earlier
    request of the conversation has had: they are billed again, and count once for `max_tokens`.
    `tokens_out` includes `tokens_reasoning`.

    ```python
    usage = retinue.Usage(tokens_in=100, tokens_cached=60, tokens_out=20)
    assert (usage + usage).tokens == 240
    ```
    """

    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    cost_microusd: int = 0
    estimated: bool = False
    tokens_written: int = 0
    tokens_reasoning: int = 0
    tokens_repeated: int = 0

    @classmethod
    def estimate(cls, request: Request, text: str, calls: Sequence[ToolCall] = ()) -> Usage:
        """What a reply to `request` takes, for a model that does not count tokens."""
        asked = msgspec.json.encode((request.messages, request.tools))
        written = text + "".join(call.name + call.arguments for call in calls)
        return cls(estimate_tokens(asked), 0, estimate_tokens(written), estimated=True)

    @property
    def tokens(self) -> int:
        """Each token once: what was read and written."""
        return self.tokens_in - self.tokens_repeated + self.tokens_out

    @property
    def billed_tokens(self) -> int:
        """All tokens of all requests, those that were sent again included."""
        return self.tokens_in + self.tokens_out

    @property
    def cost_usd(self) -> float:
        """The cost in US dollars."""
        return self.cost_microusd / MICROUSD_PER_USD

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.tokens_in + other.tokens_in,
            self.tokens_cached + other.tokens_cached,
            self.tokens_out + other.tokens_out,
            self.cost_microusd + other.cost_microusd,
            self.estimated or other.estimated,
            self.tokens_written + other.tokens_written,
            self.tokens_reasoning + other.tokens_reasoning,
            self.tokens_repeated + other.tokens_repeated,
        )


class Timing(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How long a reply was queued, took to its first token, and was generated after that.

    ```python
    timing = retinue.Timing(queued_s=0.5, first_token_s=0.2, generating_s=1.5)
    assert str(timing) == "queued 0.5s, first token 0.2s, generating 1.5s"
    ```
    """

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
    """Why a reply ended: it is complete, it calls tools, or it reached its limit.

    ```python
    text = retinue.AssistantMessage("Once upon a")
    reply = retinue.Reply(message=text, usage=retinue.Usage(), finish=retinue.Finish.LENGTH)
    ```
    """

    STOP = "stop"
    TOOLS = "tools"
    LENGTH = "length"


class Reply(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The reply of a model to a `Request`.

    ```python
    reply = retinue.Reply(
        message=retinue.AssistantMessage("Hi."),
        usage=retinue.Usage(tokens_in=10, tokens_out=2),
        finish=retinue.Finish.STOP,
    )
    ```
    """

    message: AssistantMessage
    usage: Usage
    finish: Finish
    timing: Timing = Timing()
    repairs: tuple[str, ...] = ()
    """What was repaired in the reply, one line each."""
    model: str = ""
    """The model of a pool that answered."""


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A request to a model. `tools` are sorted by name: prefixes must be byte-stable.

    `schema` is a JSON schema for the final answer. Where the server supports that, the answer is
    constrained to it; the caller must still check the answer.

    ```python
    messages = (retinue.SystemMessage("Be brief."), retinue.UserMessage("Who are you?"))
    reply = await ScriptedModel([say("A script.")]).reply(retinue.Request(messages=messages))
    assert reply.message.content == "A script."
    ```
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int | None = None
    """The longest reply that is paid for, at most that of `sampling`."""
    sampling: Sampling = NO_SAMPLING
    schema: str | None = None
    task_tokens: int | None = None
    """How many tokens the agent's whole task may take; models that can be told pace themselves."""
    agent_path: str = ""
    """The path of the agent, for recordings. Never sent."""


class QueuedRequest(Request, frozen=True, gc=False, kw_only=True):
    """A request of an agent, with what decides when and where it is sent. None of it is sent."""

    queue_key: str = ""
    """Requests with the same key share the turns at an endpoint: a run's children, or its root."""
    asked_at: float = 0.0
    """When the request was first made; the oldest of a group goes first, also at a retry."""
    preferred_model: str = ""
    """The model that gave the last reply, and may have the conversation in its cache."""
    timeouts: int = 0
    """How often the request has timed out."""
    on_sent: Callable[[], None] | None = None
    """Called when the request has left the queues and is sent. If it raises, nothing is sent."""

    @classmethod
    def of(cls, request: Request) -> QueuedRequest:
        """`request`, which may have no agent behind it."""
        if isinstance(request, cls):
            return request
        return cls(**{name: getattr(request, name) for name in Request.__struct_fields__})


def estimate_tokens(text: str | bytes) -> int:
    """Bytes / 4, rounded up; used wherever no server has counted."""
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // 4)


def images_of(messages: Iterable[Message]) -> list[Image]:
    """All images in the messages, in their order."""
    return [
        image
        for message in messages
        if isinstance(message, UserMessage | ToolMessage)
        for image in message.images
    ]


def generate_call_ids(taken: Iterable[str | None], earlier: Sequence[Message]) -> Iterator[str]:
    """Yield ids for calls that come without one.

    The ids are unique in the conversation, and the same in every retry. `taken` are the ids of the
    new reply, `earlier` the messages before it.
    """
    before = [call.id for m in earlier if isinstance(m, AssistantMessage) for call in m.calls]
    used = {*before, *taken}
    for number in count(len(before)):
        if (call_id := f"call_{number}") not in used:
            yield call_id
