"""Writes the pages of the reference from the code: `python docs/reference.py FOLDER`.

They are written whenever the documentation is built, so they are never out of date. With --schemas,
writes the JSON schemas of events and results: `python docs/reference.py --schemas docs/schemas`.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import click
import msgspec

import retinue
from retinue.config.init_files import settings_template
from retinue.config.settings import (
    BudgetSettings,
    EndpointSettings,
    McpServerSettings,
    PoolSettings,
    ProfileSettings,
    RoleSettings,
    Settings,
)
from retinue.domain.events import Event, Fact
from retinue.domain.price import Price
from retinue.interfaces.cli.exit_codes import EXIT_CODES
from retinue.interfaces.cli.main import COMMANDS, cli
from retinue.interfaces.view.run_output import event_schema, result_schema

TABLES = {
    "": Settings,
    "budget": BudgetSettings,
    "roles.NAME": RoleSettings,
    "profiles.NAME": ProfileSettings,
    "pools.NAME": PoolSettings,
    'servers."ADDRESS"': EndpointSettings,
    "prices.NAME": Price,
    "mcp.NAME": McpServerSettings,
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


def _python() -> Iterator[str]:
    yield "# Python\n"
    for name in sorted(retinue.__all__):
        thing = getattr(retinue, name)
        if inspect.isclass(thing):
            yield f"## `retinue.{name}`\n\n{_docstring(thing)}"
            if issubclass(thing, msgspec.Struct):
                yield from _fields(thing, stored=False)
            for method in sorted(vars(thing)):
                if inspect.isfunction(found := vars(thing)[method]) and not method.startswith("_"):
                    yield f"### `{method}{_signature(found)}`\n\n{_docstring(found)}"
        elif get_args(thing):
            kinds = ", ".join(f"`{kind.__name__}`" for kind in get_args(thing))
            yield f"## `retinue.{name}`\n\nOne of {kinds}.\n"
        elif callable(thing):
            yield f"## `retinue.{name}{_signature(thing)}`\n\n{_docstring(thing)}"


def _fields(kind: type[msgspec.Struct], *, stored: bool = True) -> Iterator[str]:
    """A table of the fields, by the names in JSON and TOML if `stored`, else by those in Python."""
    yield "| name | type | default | description |\n|---|---|---|---|"
    descriptions = _descriptions(kind)
    for field in msgspec.structs.fields(kind):
        default = "" if field.default is msgspec.NODEFAULT else f"`{field.default!r}`"
        if field.default_factory is not msgspec.NODEFAULT:
            default = f"`{field.default_factory()!r}`"
        annotation = kind.__annotations__.get(field.name, field.type)
        text = str(annotation).replace("|", "\\|")
        name = field.encode_name if stored else field.name
        description = descriptions.get(field.name, "")
        yield f"| `{name}` | `{text}` | {default or 'required'} | {description} |"
    yield ""


def _descriptions(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The docstrings below the fields of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
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


def _signature(function: Callable[..., object]) -> str:
    return str(inspect.signature(function)).replace("'", "")


def _docstring(thing: type | Callable[..., object]) -> str:
    """Its own docstring, not an inherited one."""
    own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    return f"{inspect.cleandoc(own or '')}\n"


def schemas() -> dict[str, str]:
    """The JSON schemas of what `--json` prints, by the name of its file."""
    made = {"event.json": event_schema(), "result.json": result_schema()}
    return {name: json.dumps(schema, indent=1) + "\n" for name, schema in made.items()}


if __name__ == "__main__":
    *flags, folder_name = sys.argv[1:]
    folder = Path(folder_name)
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in (schemas() if flags == ["--schemas"] else pages()).items():
        (folder / file).write_text(text, "utf-8")
