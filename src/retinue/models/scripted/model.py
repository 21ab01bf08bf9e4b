"""A model that follows a script, for tests and demonstrations.

With rules, the position in the list of steps is the number of assistant messages so far. So the
model keeps no state, and a resumed run continues where it stopped.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

import msgspec

from retinue.domain.messages import (
    AssistantMessage,
    Finish,
    Reply,
    Request,
    SystemMessage,
    Thought,
    Thoughts,
    ToolCall,
    Usage,
    UserMessage,
)
from retinue.domain.plural import plural
from retinue.errors import ModelError, ProviderError


class Waitable(Protocol):
    """Anything with `wait`, such as an asyncio.Event."""

    async def wait(self) -> Any: ...


class ScriptedCall(msgspec.Struct, frozen=True):
    """A tool call to make. `arguments` are sent as they are, even if they are not JSON."""

    name: str
    arguments: str


class ScriptedReply(msgspec.Struct, frozen=True, kw_only=True):
    """A step that replies. Each call has a `name`, and `arguments` as the text of a JSON object.

    ```python
    reply: ScriptedReply = say("It is empty.").using(tokens_in=120, tokens_out=4)
    assert reply.text == "It is empty."
    ```
    """

    thought: str = ""
    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    finish: Finish | None = None
    """By default `TOOLS` with calls, else `STOP`."""
    usage: Usage | None = None
    """By default an estimate."""
    delay_s: float = 0.0
    """How long the reply takes."""

    def using(self, tokens_in: int, tokens_out: int, *, tokens_cached: int = 0) -> ScriptedReply:
        """Copy the step with the tokens that its reply reports."""
        usage = Usage(tokens_in, tokens_cached, tokens_out)
        return msgspec.structs.replace(self, usage=usage)

    def after(self, delay_s: float) -> ScriptedReply:
        """Copy the step with a reply that is streamed over that time."""
        return msgspec.structs.replace(self, delay_s=delay_s)


class ScriptedFailure(msgspec.Struct, frozen=True):
    """A step that raises. The next try takes the step after it."""

    error: ModelError


class ScriptedHold(msgspec.Struct, frozen=True):
    """A step that waits until `gate` is set, then takes another step."""

    gate: Waitable
    then: Step


Step: TypeAlias = "ScriptedReply | ScriptedFailure | ScriptedHold | Callable[[Request], Step]"
Script: TypeAlias = "Sequence[Step] | Mapping[str, Sequence[Step]]"


def say(text: str, *, finish: Finish = Finish.STOP) -> ScriptedReply:
    """A reply with text.

    ```python
    model = ScriptedModel([say("Hi.")])
    assert retinue.run_sync("Greet me.", model=model).response == "Hi."
    ```
    """

    return ScriptedReply(text=text, finish=finish)


def call(tool: str, /, **arguments: Any) -> ScriptedReply:
    """A reply that calls a tool with these arguments.

    ```python
    model = ScriptedModel([call("read_file", path="a.txt"), say("It says hello.")])
    assert retinue.spawn_sync("researcher", "What is in a.txt?", model=model).ok
    ```
    """

    return raw_call(tool, msgspec.json.encode(arguments).decode())


def raw_call(tool: str, arguments: str) -> ScriptedReply:
    """Call one tool with arguments that need not be JSON."""
    return ScriptedReply(calls=(ScriptedCall(tool, arguments),))


def calls(*steps: ScriptedReply, text: str = "") -> ScriptedReply:
    """Make the calls of several steps in one reply.

    ```python
    both = calls(call("read_file", path="a.txt"), call("list_dir", path="."), text="Let me look.")
    model = ScriptedModel([both, say("Seen.")])
    assert retinue.spawn_sync("researcher", "Look.", model=model).usage.tool_calls == 2
    ```
    """
    return ScriptedReply(
        text=text, calls=tuple(planned for step in steps for planned in step.calls)
    )


def think(thought: str, then: ScriptedReply) -> ScriptedReply:
    """Think before a reply. The thought is kept with the calls of the reply.

    ```python
    model = ScriptedModel([think("They greet me.", say("Hi."))])
    assert retinue.run_sync("Hello!", model=model).response == "Hi."
    ```
    """
    return msgspec.structs.replace(then, thought=thought)


def fail(error: ModelError) -> ScriptedFailure:
    """A model call that fails with this error.

    ```python
    refused = fail(retinue.errors.RequestRefused("no such option"))
    model = ScriptedModel([refused], strict=False)
    assert retinue.spawn_sync("researcher", "Look.", model=model, limits={"max_retries": 0}).error
    ```
    """

    return ScriptedFailure(error)


def hold(gate: Waitable, then: Step) -> ScriptedHold:
    """A step that waits for `gate`, such as an `asyncio.Event`, and then does `then`.

    ```python
    gate = asyncio.Event()
    async with retinue.open(".", model=ScriptedModel([hold(gate, say("Now."))])) as rt:
        job = await rt.start("researcher", "Wait for it.")
        gate.set()
        assert (await job.result()).response == "Now."
    ```
    """

    return ScriptedHold(gate, then)


class ScriptedModel:
    """Follows a script instead of asking a model.

    A list of steps is one conversation: every request takes the next step. With a dict, any number
    of conversations can run at once: each follows the first rule whose text is in its system
    message or first user message, and "" matches all. A step may be a function of the `Request`.

    With `strict`, the default, closing the model fails if something is left over: steps of a list
    that were not taken, or rules that no conversation matched. Steps of a rule may be left over.
    `requests` has all requests so far.

    ```python
    model = ScriptedModel([call("read_file", path="a.txt"), say("It says hello.")])
    async with retinue.open(".", model=model) as rt:
        result = await rt.spawn("researcher", "What is in a.txt?")
    assert result.files_read == ("a.txt",)
    assert len(model.requests) == 2
    ```
    """

    def __init__(self, script: Script, *, name: str = "scripted", strict: bool = True) -> None:
        self.name = name
        self._strict = strict
        self._script: _SingleConversation | _RuleSet = (
            _RuleSet(script) if isinstance(script, Mapping) else _SingleConversation(script)
        )
        self.requests: list[Request] = []
        """All requests, in order."""

    @classmethod
    def from_yaml(cls, path: str | Path, *, strict: bool = False) -> ScriptedModel:
        """Read a script from a file, as the model name `scripted:FILE` does.

        ```text
        steps:                    # or rules: [{match: researcher, steps: […]}, …]
          - call: read_file
            args: {path: a.txt}
          - fail: rate_limited    # or timeout, overflow, unavailable, refused
          - say: It says hello.   # beside it: calls: […], delay_s, tokens: {in: 900, out: 12}
        ```
        """
        from retinue.models.scripted.script_file import read_script

        return cls(read_script(path), name=f"scripted:{path}", strict=strict)

    @classmethod
    def from_text(cls, text: str, *, strict: bool = False) -> ScriptedModel:
        """Read a script from YAML, in the format of `from_yaml`."""
        from retinue.models.scripted.script_file import parse_script

        return cls(parse_script(text), strict=strict)

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        # Before the first await, so that concurrent requests take different steps.
        self.requests.append(request)
        position, step = self._script.take(request)
        while not isinstance(step, ScriptedReply):
            match step:
                case ScriptedFailure(error):
                    # A copy, since raising the same error twice would mix up the tracebacks.
                    raise copy.copy(error)
                case ScriptedHold(gate, then):
                    await gate.wait()
                    step = then
                case _:
                    step = step(request)
        await _stream(step, on_text)
        return _reply(step, position, request, self.name)

    def leftovers(self) -> list[str]:
        """Describes the steps or rules that have not been used."""
        return self._script.leftovers()

    def assert_exhausted(self) -> None:
        """Raise AssertionError if steps or rules are left over."""
        left = self.leftovers()
        if left:
            raise AssertionError(f"{self.name}: not used: " + "; ".join(left))

    async def aclose(self) -> None:
        if self._strict:
            self.assert_exhausted()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A test that has failed already leaves steps over; another error would hide why.
        if kind is None:
            await self.aclose()


class _SingleConversation:
    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = tuple(steps)
        self._taken = 0

    def take(self, request: Request) -> tuple[int, Step]:
        position = self._taken
        if position >= len(self._steps):
            raise ProviderError(
                f"The script has {plural(len(self._steps), 'step')} and was asked for one more."
                " Add a step."
            )
        self._taken += 1
        return position, self._steps[position]

    def leftovers(self) -> list[str]:
        return [
            f"step {number}, {_describe(step)}"
            for number, step in enumerate(self._steps[self._taken :], start=self._taken + 1)
        ]


class _RuleSet:
    def __init__(self, rules: Mapping[str, Sequence[Step]]) -> None:
        self._rules = [_Rule(match, steps) for match, steps in rules.items()]

    def take(self, request: Request) -> tuple[int, Step]:
        opening = _opening_texts(request)
        rule = next((r for r in self._rules if any(r.match in text for text in opening)), None)
        if rule is None:
            begins = " / ".join(text[:60] for text in opening)
            known = ", ".join(repr(r.match) for r in self._rules)
            raise ProviderError(
                f"No rule of the script fits the conversation that begins {begins!r}. Rules: "
                f"{known}."
            )
        rule.was_used = True
        return rule.take(request)

    def leftovers(self) -> list[str]:
        return [f"rule {rule.match!r}" for rule in self._rules if not rule.was_used]


class _Rule:
    def __init__(self, match: str, steps: Sequence[Step]) -> None:
        self.match = match
        self.was_used = False
        self._replies: list[Step] = []
        # Failures leave no assistant message behind and so have no position of their own: the
        # failures before a reply are raised first, one for each try.
        self._failures: dict[int, list[ScriptedFailure]] = {}
        self._failed_tries: dict[tuple[Any, ...], int] = {}
        for step in steps:
            if isinstance(step, ScriptedFailure):
                self._failures.setdefault(len(self._replies), []).append(step)
            else:
                self._replies.append(step)

    def take(self, request: Request) -> tuple[int, Step]:
        position = sum(isinstance(message, AssistantMessage) for message in request.messages)
        failures = self._failures.get(position)
        if failures:
            tries = self._failed_tries.get(request.messages, 0)
            if tries < len(failures):
                self._failed_tries[request.messages] = tries + 1
                return position, failures[tries]
        if position >= len(self._replies):
            raise ProviderError(
                f"The rule {self.match!r} of the script has {plural(len(self._replies), 'step')}"
                " and was asked for one more. Add a step."
            )
        return position, self._replies[position]


def _opening_texts(request: Request) -> list[str]:
    texts = [m.content for m in request.messages if isinstance(m, SystemMessage)]
    first_user = next((m.content for m in request.messages if isinstance(m, UserMessage)), None)
    return texts if first_user is None else [*texts, first_user]


async def _stream(step: ScriptedReply, on_text: Callable[[str], None] | None) -> None:
    if step.thought and on_text is not None:
        on_text("")
    words = re.findall(r"\s*\S+\s*$|\s*\S+|\s+", step.text)
    pause_s = step.delay_s / max(len(words), 1)
    if not words and pause_s:
        await asyncio.sleep(pause_s)
    for word in words:
        if on_text is not None:
            on_text(word)
        if pause_s:
            await asyncio.sleep(pause_s)


def _reply(step: ScriptedReply, position: int, request: Request, name: str) -> Reply:
    planned = tuple(
        ToolCall(f"call_{position}_{number}", plan.name, plan.arguments)
        for number, plan in enumerate(step.calls)
    )
    usage = step.usage or Usage.estimate(request, step.thought + step.text, planned)
    finish = step.finish or (Finish.TOOLS if planned else Finish.STOP)
    thoughts = None
    if step.thought and (planned or step.text):
        thoughts = Thoughts(name, (Thought(msgspec.json.encode(step.thought).decode()),))
    return Reply(message=AssistantMessage(step.text, planned, thoughts), usage=usage, finish=finish)


def _describe(step: Step) -> str:
    match step:
        case ScriptedReply(text=text, calls=planned):
            if planned:
                return "call " + ", ".join(f"{plan.name}({plan.arguments})" for plan in planned)
            return f"say {text[:40]!r}"
        case ScriptedFailure(error):
            return f"fail with {type(error).__name__}"
        case ScriptedHold(_, then):
            return f"hold, then {_describe(then)}"
        case _:
            return "a step made by a function"
