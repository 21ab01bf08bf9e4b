"""Tools made of plain typed functions: the `@tool` decorator."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar, Union, overload

import msgspec

from retinue.domain.grant import Grant
from retinue.domain.messages import Effect, ToolSpec
from retinue.errors import ToolFailure, UsageError
from retinue.ports.tool import ToolContext, ToolOutcome
from retinue.threads import in_daemon_thread
from retinue.tools.schema import compact_schema, schema_outline

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FIELD = re.compile(r"\$\.(\w+)")
_SHOWN_CHARS = 80


class FunctionTool(Generic[P, R]):
    """A tool whose arguments are a function's parameters. Calling it calls the function."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        effect: Effect = Effect.WRITE,
    ) -> None:
        self._function = function
        self._name: str = name or str(getattr(function, "__name__", ""))
        if not _NAME.fullmatch(self._name):
            raise UsageError(
                f"A tool cannot be called {self._name!r}; use up to 64 letters, digits, _ and -."
            )
        self.effect: Final = effect
        self._is_async = inspect.iscoroutinefunction(function)
        self._takes_ctx, parameters = _parameters(self._name, function)
        self._optional = frozenset(
            p.name for p in parameters.values() if p.default is not inspect.Parameter.empty
        )
        self._arguments = _struct(self._name, parameters)
        self._fields = tuple(parameters)
        try:
            self._schema = compact_schema(self._arguments)
        except TypeError as error:
            raise UsageError(f"Tool {self._name!r}: {error}") from error
        self.spec: Final = ToolSpec(
            self._name,
            _description(function) if description is None else description,
            msgspec.Raw(msgspec.json.encode(self._schema)),
        )

    def spec_for(self, grant: Grant) -> ToolSpec:
        return self.spec

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"FunctionTool({self._name!r})"

    async def run(self, arguments: Mapping[str, Any], ctx: ToolContext) -> ToolOutcome:
        values = self._checked(arguments)
        function: Callable[..., Any] = self._function
        given = (ctx,) if self._takes_ctx else ()
        if self._is_async:
            result = await function(*given, **values)
        else:
            result = await in_daemon_thread(partial(function, *given, **values))
            if isinstance(result, Awaitable):
                # A plain function may return a coroutine.
                result = await result
        if isinstance(result, ToolOutcome):
            return result
        if not isinstance(result, str):
            result = msgspec.json.encode(result, enc_hook=str).decode()
        return ToolOutcome(content=result)

    def _checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if None in arguments.values():
            # Models send null for arguments that they leave out.
            arguments = {
                name: value
                for name, value in arguments.items()
                if value is not None or name not in self._optional
            }
        try:
            checked = msgspec.convert(arguments, self._arguments, strict=False)
        except msgspec.ValidationError as error:
            raise self._refusal(arguments, error) from None
        return {name: getattr(checked, name) for name in self._fields if name in arguments}

    def _refusal(self, arguments: Mapping[str, Any], error: msgspec.ValidationError) -> ToolFailure:
        missing = [n for n in self._fields if n not in self._optional and n not in arguments]
        found = _FIELD.search(str(error))
        if missing:
            what = "missing " + ", ".join(f"'{name}'" for name in missing)
            strange = [name for name in arguments if name not in self._fields]
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
        return ToolFailure(f"{self._name}: {what}. Send {schema_outline(self._schema)}.")


@overload
def tool(
    function: Callable[P, R],
    *,
    name: str | None = None,
    description: str | None = None,
    effect: str | Effect = Effect.WRITE,
) -> FunctionTool[P, R]: ...


@overload
def tool(
    function: None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: str | Effect = Effect.WRITE,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: str | Effect = Effect.WRITE,
) -> FunctionTool[P, R] | Callable[[Callable[P, R]], FunctionTool[P, R]]:
    """Make a tool from a typed function: `@tool`, or `@tool(effect="read")`.

    The description is the first paragraph of the docstring; a parameter's comes from
    `Annotated[str, msgspec.Meta(description="…")]`. A first parameter of type `ToolContext`
    receives the agent's workspace, sandbox and identity; the model does not see that parameter. A
    function that is not async runs in a thread. `effect` is what the tool can do to the world;
    only "read" may be repeated or run in parallel.
    """
    try:
        checked = Effect(effect)
    except ValueError:
        known = ", ".join(Effect)
        raise UsageError(f"Unknown effect {effect!r}; known: {known}.") from None

    def make(function: Callable[P, R]) -> FunctionTool[P, R]:
        return FunctionTool(function, name=name, description=description, effect=checked)

    return make if function is None else make(function)


def _parameters(
    tool_name: str, function: Callable[..., Any]
) -> tuple[bool, dict[str, inspect.Parameter]]:
    """Whether the first parameter is the ToolContext, and the others, with their types resolved."""
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
            inspect.Parameter.POSITIONAL_ONLY,
        ):
            raise UsageError(
                f"Tool {tool_name!r}: parameter '{parameter}' cannot be described to a model;"
                " use plain named parameters."
            )
        if parameter.annotation is inspect.Parameter.empty:
            raise UsageError(
                f"Tool {tool_name!r}: parameter '{parameter.name}' has no type;"
                f" write for example '{parameter.name}: str'."
            )
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise UsageError(f"Tool {tool_name!r}: its types cannot be resolved: {error}.") from error
    takes_ctx = bool(parameters) and hints[parameters[0].name] is ToolContext
    return takes_ctx, {
        p.name: p.replace(annotation=hints[p.name]) for p in parameters[int(takes_ctx) :]
    }


def _struct(tool_name: str, parameters: Mapping[str, inspect.Parameter]) -> type[msgspec.Struct]:
    # Defaults stay with the function: an argument that is not sent is not passed.
    fields = [
        (p.name, p.annotation)
        if p.default is inspect.Parameter.empty
        # Union[] takes any annotation; `|` needs a type that defines the operator.
        else (p.name, Union[p.annotation, msgspec.UnsetType], msgspec.UNSET)  # noqa: UP007
        for p in parameters.values()
    ]
    try:
        return msgspec.defstruct(tool_name, fields, kw_only=True)
    except TypeError as error:
        raise UsageError(f"Tool {tool_name!r}: {error}.") from error


def _description(function: Callable[..., Any]) -> str:
    first_paragraph = (inspect.getdoc(function) or "").split("\n\n")[0]
    return " ".join(first_paragraph.split())
