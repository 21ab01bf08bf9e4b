"""Writes the pages of the reference from the code: `python docs/reference.py FOLDER`.

They are written whenever the documentation is built, so they are never out of date. With --schemas,
writes the JSON schemas of events and results: `python docs/reference.py --schemas docs/schemas`;
with --api, the snapshot of the public API: `python docs/reference.py --api docs/api.txt`.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import json
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import get_args

import click
import msgspec

import retinue
from retinue import errors, events, testing
from retinue.config.init_files import settings_template
from retinue.config.settings import (
    BudgetSettings,
    ClusterSettings,
    EndpointSettings,
    HookGroupSettings,
    McpServerSettings,
    PoolSettings,
    ProfileSettings,
    RoleSettings,
    Settings,
    SubAgentSettings,
)
from retinue.domain.events import Event, Fact
from retinue.domain.price import Price
from retinue.domain.sampling import Sampling
from retinue.interfaces.cli.exit_codes import EXIT_CODES
from retinue.interfaces.cli.main import COMMANDS, cli
from retinue.interfaces.view.run_output import event_schema, result_schema

TABLES = {
    "": Settings,
    "budget": BudgetSettings,
    "sampling": Sampling,
    "sub_agents": SubAgentSettings,
    "roles.NAME": RoleSettings,
    "profiles.NAME": ProfileSettings,
    "pools.NAME": PoolSettings,
    'servers."ADDRESS"': EndpointSettings,
    "prices.NAME": Price,
    "mcp.NAME": McpServerSettings,
    "cluster": ClusterSettings,
    "[hooks.EVENT]": HookGroupSettings,
}


def pages() -> dict[str, str]:
    """The text of each page by the name of its file."""
    made = {"commands": _commands, "settings": _settings, "events": _events, "python": _python}
    return {f"{name}.md": "\n".join(lines()) + "\n" for name, lines in made.items()}


def _commands() -> Iterator[str]:
    yield "# Commands\n"
    yield "`retinue` alone opens the chat.\n"
    context = click.Context(cli, info_name="retinue", **cli.context_settings)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        with click.Context(command, info_name=name, parent=context, terminal_width=90) as inner:
            yield f"## {name}\n\n```text\n{command.get_help(inner)}\n```\n"
    yield "## Exit codes\n\n| code | meaning |\n|---|---|"
    yield from (f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())


def _settings() -> Iterator[str]:
    yield "# Settings\n"
    yield "`retinue init` writes this file, with every default and examples:\n"
    yield f"```toml\n{settings_template()}```\n"
    yield "The keys of each table:\n"
    for table, kind in TABLES.items():
        yield f"## {f'`[{table}]`' if table else 'Top level'}\n\n{_docstring(kind)}"
        yield from _fields(kind)


def _events() -> Iterator[str]:
    yield "# Events\n"
    yield "Each line of `--json` is an event. Its `payload` is one of the facts below.\n"
    yield f"## The event\n\n{_docstring(Event)}"
    yield from _fields(Event)
    for fact in get_args(Fact):
        yield f"## `{fact.__struct_config__.tag}`\n\n`retinue.events.{fact.__name__}`\n"
        yield _docstring(fact)
        yield from _fields(fact)


MODULES = (retinue, errors, testing)
INTRODUCTION = """# Python

Everything here can be imported from the module that its heading names. The
[guide](../guides/python.md) has programs to copy. The classes of [events](events.md) are in
`retinue.events`, and the fixtures for pytest at the end of this page.

The examples are run as tests, in an async function. In them, `rt` is an open runtime whose model
always answers, and the names of `retinue.testing` are imported:

```text
import asyncio
import retinue
from retinue.testing import *

async with retinue.open(".", model=…) as rt:
    …
```
"""


def _python() -> Iterator[str]:
    yield INTRODUCTION
    for module in MODULES:
        for name in module.__all__:
            thing = getattr(module, name)
            title = f"{module.__name__}.{name}"
            if inspect.isclass(thing):
                yield f"## `{title}{_constructor(thing)}`\n\n{_docstring(thing)}"
                if issubclass(thing, msgspec.Struct):
                    yield from _fields(thing, stored=False)
                elif issubclass(thing, Enum):
                    yield "Values: " + ", ".join(f"`{one.value}`" for one in thing) + ".\n"
                elif "__annotations__" in vars(thing):
                    yield from _attributes(thing)
                for method, found in public_members(thing):
                    if "test_" not in method.partition("(")[0]:
                        yield f"### `{method}`\n\n{_docstring(found)}"
            elif get_args(thing):
                kinds = ", ".join(f"`{kind.__name__}`" for kind in get_args(thing))
                yield f"## `{title}`\n\nOne of {kinds}.\n"
            elif callable(thing):
                yield f"## `{title}{_signature(thing)}`\n\n{_docstring(thing)}"
    # Read, not imported: the plugin needs pytest.
    plugin = ast.parse(Path(testing.__file__).with_name("plugin.py").read_text("utf-8"))
    yield f"## `retinue.testing.plugin`\n\n{ast.get_docstring(plugin)}\n"


def _constructor(kind: type) -> str:
    """The arguments of a class that is made by tests; the runtime makes the others."""
    is_made = kind.__name__ in testing.__all__ and "__init__" in vars(kind)
    return _signature(kind).removesuffix(" -> None") if is_made else ""


def public_members(kind: type) -> Iterator[tuple[str, Callable[..., object]]]:
    """The methods and properties of a class, with their signatures.

    Those of a base that is no public name itself count as the class's own.
    """
    own = [kind, *(base for base in kind.__mro__[1:] if _is_hidden(base))]
    members = {name: one for base in reversed(own) for name, one in vars(base).items()}
    for name, member in sorted(members.items()):
        if name.startswith("_"):
            continue
        if isinstance(member, property) and member.fget is not None:
            returns = inspect.signature(member.fget).return_annotation
            yield f"{name}: {_annotation(returns)}", member.fget
        else:
            function = getattr(member, "__func__", member)
            if inspect.isfunction(function):
                is_async = inspect.iscoroutinefunction(function)
                yield f"{'async ' * is_async}{name}{_signature(function)}", function


def _is_hidden(base: type) -> bool:
    public = (base.__name__ in module.__all__ for module in (*MODULES, events))
    return base.__module__.startswith("retinue.") and not any(public)


def api() -> str:
    """Every public name with its signature, a line each: a snapshot that a test compares."""
    lines = []
    for module in (*MODULES, events):
        for name in module.__all__:
            thing, title = getattr(module, name), f"{module.__name__}.{name}"
            if inspect.isclass(thing):
                lines.append(
                    f"class {title}({', '.join(base.__name__ for base in thing.__bases__)})"
                )
                if issubclass(thing, msgspec.Struct):
                    lines += [f"  {name}: {kind}" for name, kind in _annotations(thing).items()]
                elif issubclass(thing, Enum):
                    lines += [f"  {one.name} = {one.value!r}" for one in thing]
                lines += [f"  {member}" for member, _ in public_members(thing)]
            elif inspect.isfunction(thing):
                lines.append(f"def {title}{_signature(thing)}")
            else:
                lines.append(title)
    return "\n".join(lines) + "\n"


def _annotations(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The types of the fields of a struct and its bases, as they are written."""
    found = {k: v for base in reversed(kind.__mro__) for k, v in _own_annotations(base).items()}
    return {name: found[name] for name in kind.__struct_fields__}


def _own_annotations(kind: type) -> dict[str, str]:
    return {
        name: getattr(text, "__forward_arg__", str(text))
        for name, text in vars(kind).get("__annotations__", {}).items()
    }


def _attributes(kind: type) -> Iterator[str]:
    """A table of the fields of a dataclass, a named tuple or a TypedDict."""
    yield "| name | type | description |\n|---|---|---|"
    descriptions = _descriptions(kind)
    for name, text in _own_annotations(kind).items():
        if not name.startswith("_"):
            shown = text.replace("|", "\\|")
            yield f"| `{name}` | `{shown}` | {descriptions.get(name, '')} |"
    yield ""


def _fields(kind: type[msgspec.Struct], *, stored: bool = True) -> Iterator[str]:
    """A table of the fields, by the names in JSON and TOML if `stored`, else by those in Python."""
    yield "| name | type | default | description |\n|---|---|---|---|"
    descriptions, annotations = _descriptions(kind), _annotations(kind)
    for field in msgspec.structs.fields(kind):
        default = "" if field.default is msgspec.NODEFAULT else f"`{_shown(field.default)}`"
        if field.default_factory is not msgspec.NODEFAULT:
            default = f"`{field.default_factory()!r}`"
        text = annotations[field.name].replace("|", "\\|")
        name = field.encode_name if stored else field.name
        description = descriptions.get(field.name, "")
        yield f"| `{name}` | `{text}` | {default or 'required'} | {description} |"
    yield ""


def _shown(default: object) -> str:
    """A default as a program would write it."""
    match default:
        case Enum():
            return repr(default.value)
        case msgspec.Struct() if default == type(default)():
            return f"{type(default).__name__}()"
        case _:
            return default.__name__ if inspect.isfunction(default) else repr(default)


def _descriptions(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed((kind, *kind.__mro__[1:])):
        if not base.__module__.startswith("retinue."):
            continue
        [node] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        for field, below in itertools.pairwise(node.body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = " ".join(text.split()).replace("|", "\\|")
    return found


class _Source:
    """An annotation or a default that is shown as the source has it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _signature(function: Callable[..., object]) -> str:
    """The parameters and the result, as the source has them."""
    signature = inspect.signature(function)
    return str(
        signature.replace(
            parameters=[
                one.replace(annotation=_annotation(one.annotation), default=_default(one.default))
                for one in signature.parameters.values()
            ],
            return_annotation=_annotation(_result(function, signature)),
        )
    )


def _result(function: Callable[..., object], signature: inspect.Signature) -> object:
    """What a call returns: of a generator for `asynccontextmanager`, the context manager."""
    wrapped = getattr(function, "__wrapped__", None)
    if inspect.isasyncgenfunction(wrapped) and not inspect.isasyncgenfunction(function):
        return signature.return_annotation.replace("AsyncIterator", "AbstractAsyncContextManager")
    return signature.return_annotation


def _annotation(annotation: object) -> object:
    # Some are strings twice: quoted in a module whose annotations are strings anyway.
    return _Source(annotation.strip("\"'")) if isinstance(annotation, str) else annotation


def _default(default: object) -> object:
    is_value = isinstance(default, Enum)
    return _Source(f"{type(default).__name__}.{default.name}") if is_value else default


def _docstring(thing: type | Callable[..., object]) -> str:
    """Its own docstring, not an inherited one; else that of the protocol's method."""
    own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    for protocol in (retinue.Model, retinue.Clock):
        own = own or getattr(vars(protocol).get(thing.__name__), "__doc__", None)
    return f"{inspect.cleandoc(own or '')}\n"


def schemas() -> dict[str, str]:
    """The JSON schemas of what `--json` prints, by the name of its file."""
    made = {"event.json": event_schema(), "result.json": result_schema()}
    return {name: json.dumps(schema, indent=1) + "\n" for name, schema in made.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the pages of the reference from the code.")
    parser.add_argument("--schemas", action="store_true", help="write JSON schemas instead")
    parser.add_argument("--api", action="store_true", help="write the public API to a file instead")
    parser.add_argument("to", type=Path, help="a folder, or the file for --api")
    given = parser.parse_args()
    if given.api:
        given.to.write_text(api(), "utf-8")
    else:
        given.to.mkdir(parents=True, exist_ok=True)
        for file, text in (schemas() if given.schemas else pages()).items():
            (given.to / file).write_text(text, "utf-8")
