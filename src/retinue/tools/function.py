"""Tools made of plain typed functions: the `@tool` decorator."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar, overload

import msgspec

from retinue.domain.grant import Grant
from retinue.domain.messages import Effect, ToolSpec
from retinue.errors import ToolFailure, UsageError
from retinue.ports.tool import ToolContext, ToolOutcome
from retinue.threads import in_daemon_thread
from retinue.tools.agent_context import AgentContext
from retinue.tools.docstrings import summary
from retinue.tools.parameters import decode, parameters_of
from retinue.tools.schema import schema_outline

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FIELD = re.compile(r"\$\.(\w+)")
_SHOWN_CHARS = 80


class FunctionTool(Generic[P, R]):
    """A tool whose arguments are a function's parameters. Calling it calls the function.

    ```python
    @retinue.tool(effect="read")
    def add(a: int, b: int) -> int:
        "Add two numbers."
        return a + b

    assert isinstance(add, retinue.FunctionTool)
    assert add(2, 3) == 5
    ```
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        effect: Effect = Effect.WRITE,
        preview: Callable[..., Awaitable[str]] | None = None,
    ) -> None:
        self._function = function
        self._preview = preview
        self._name: str = name or str(getattr(function, "__name__", ""))
        if not _NAME.fullmatch(self._name):
            raise UsageError(
                f"A tool cannot be called {self._name!r}; use up to 64 letters, digits, _ and -."
            )
        self.effect: Final = effect
        self._is_async = inspect.iscoroutinefunction(function)
        self._parameters = parameters_of(self._name, function)
        self.spec: Final = ToolSpec(
            self._name,
            summary(function.__doc__) if description is None else description,
            msgspec.Raw(msgspec.json.encode(self._parameters.schema)),
        )

    def spec_for(self, grant: Grant) -> ToolSpec:
        """The tool as the model of an agent with that grant sees it."""
        return self.spec

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"FunctionTool({self._name!r})"

    async def run(self, arguments: Mapping[str, Any], ctx: ToolContext) -> ToolOutcome:
        """Call the function with a model's arguments. The runtime does this."""
        values = self._checked(arguments)
        report = partial(_report, asyncio.get_running_loop(), ctx, self._name)
        agent: AgentContext | None = None
        if name := self._parameters.context:
            if self._parameters.context_type is AgentContext:
                values[name] = agent = AgentContext(ctx, report)
            else:
                values[name] = ctx
        function: Callable[..., Any] = partial(self._function, **values)
        if self._is_async:
            result = await function()
        elif inspect.isasyncgenfunction(self._function):
            result = await _last(function(), report)
        elif inspect.isgeneratorfunction(self._function):
            result = await in_daemon_thread(lambda: _exhaust(function(), report))
        else:
            result = await in_daemon_thread(function)
            if isinstance(result, Awaitable):
                # A plain function may return a coroutine.
                result = await result
        if isinstance(result, ToolOutcome):
            return result
        if agent is None:
            return ToolOutcome(content=_as_text(result))
        files = agent.workspace
        return ToolOutcome(
            content=_as_text(result), read=tuple(files.read), changed=tuple(files.changed)
        )

    async def preview(self, arguments: Mapping[str, Any], ctx: ToolContext) -> str:
        """The change that a call would make, by the tool's function for that; "" without one."""
        return "" if self._preview is None else await self._preview(ctx, **self._checked(arguments))

    def _checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if None in arguments.values():
            # Models send null for arguments that they leave out.
            arguments = {
                name: value
                for name, value in arguments.items()
                if value is not None or name not in self._parameters.optional
            }
        try:
            checked = decode(arguments, self._parameters.struct)
        except msgspec.ValidationError as error:
            raise self._refusal(arguments, error) from None
        sent = {n: getattr(checked, n) for n in self._parameters.names if n in arguments}
        unsent = self._parameters.defaults.items()
        return {**{name: make() for name, make in unsent if name not in sent}, **sent}

    def _refusal(self, arguments: Mapping[str, Any], error: msgspec.ValidationError) -> ToolFailure:
        names, optional = self._parameters.names, self._parameters.optional
        missing = [name for name in names if name not in optional and name not in arguments]
        found = _FIELD.search(str(error))
        if missing:
            what = "missing " + ", ".join(f"'{name}'" for name in missing)
            strange = [name for name in arguments if name not in names]
            if strange:
                what += " (there is no " + ", ".join(f"'{name}'" for name in strange) + ")"
        elif found:
            name = found[1]
            sent = msgspec.json.encode(arguments.get(name), enc_hook=str).decode("utf-8", "replace")
            if len(sent) > _SHOWN_CHARS:
                sent = sent[:_SHOWN_CHARS] + "…"
            reason = str(error).split(" - at ")[0].replace("`", "'")
            what = f"wrong '{name}': {reason}, in {sent}"
        else:
            what = str(error).replace("`", "'")
        wrong = f"{self._name}: {what}."
        return ToolFailure(f"{wrong} Send {schema_outline(self._parameters.schema)}.", shown=wrong)


@overload
def tool(
    function: Callable[P, R],
    *,
    name: str | None = None,
    description: str | None = None,
    effect: str | Effect = Effect.WRITE,
    preview: Callable[..., Awaitable[str]] | None = None,
) -> FunctionTool[P, R]: ...


@overload
def tool(
    function: None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: str | Effect = Effect.WRITE,
    preview: Callable[..., Awaitable[str]] | None = None,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: str | Effect = Effect.WRITE,
    preview: Callable[..., Awaitable[str]] | None = None,
) -> FunctionTool[P, R] | Callable[[Callable[P, R]], FunctionTool[P, R]]:
    """Make a tool from a typed function: `@tool`, or `@tool(effect="read")`.

    The description is the first paragraph of the docstring. A parameter's comes from the docstring
    (Google, NumPy or Sphinx style), from `Annotated[str, "…"]`, or from a pydantic `Field`. Types
    may be enums, optional types, dataclasses, msgspec structs and pydantic models. A parameter of
    type `AgentContext` receives the agent, its workspace and its remaining budget; models do not
    see it. A wrong signature raises UsageError here, and names the parameter.

    A function that is not async runs in a thread. A generator yields its progress; its answer is
    the value that it returns, or the last one that it yields. `effect` is what the tool can do to
    the world; only "read" may be repeated or run in parallel. An exception is an answer to the
    model. `preview` takes the context and the same arguments, and returns the change that the call
    would make to files as a unified diff: people see it when they approve the call.

    ```python
    @retinue.tool(effect="read")
    def word_count(text: str) -> int:
        "Count the words of a text."
        return len(text.split())

    model = ScriptedModel([call("word_count", text="three short words"), say("Three.")])
    async with retinue.open(".", model=model, tools=[word_count]) as rt:
        assert (await rt.run("How many words?")).response == "Three."
    ```
    """
    try:
        checked = Effect(effect)
    except ValueError:
        known = ", ".join(Effect)
        raise UsageError(f"Unknown effect {effect!r}; known: {known}.") from None

    def make(function: Callable[P, R]) -> FunctionTool[P, R]:
        return FunctionTool(
            function, name=name, description=description, effect=checked, preview=preview
        )

    return make if function is None else make(function)


def _report(loop: asyncio.AbstractEventLoop, ctx: ToolContext, tool: str, text: str) -> None:
    """Pass progress on; called in any thread."""
    loop.call_soon_threadsafe(ctx.on_progress, tool, text)


async def _last(values: AsyncIterator[Any], report: Callable[[str], None]) -> Any:
    """The last value of an asynchronous generator; the others are progress."""
    last: Any = None
    first = True
    async for value in values:
        if not first:
            report(_as_text(last))
        last, first = value, False
    return last


def _exhaust(values: Generator[Any, None, Any], report: Callable[[str], None]) -> Any:
    """The value that a generator returns, or else its last one; other values are progress."""
    last: Any = None
    first = True
    try:
        while True:
            value = next(values)
            if not first:
                report(_as_text(last))
            last, first = value, False
    except StopIteration as end:
        if end.value is None:
            return last
        if not first:
            report(_as_text(last))
        return end.value


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if hasattr(value, "model_dump_json"):
        return str(value.model_dump_json())  # pydantic, without importing it
    return msgspec.json.encode(value, enc_hook=str).decode()
