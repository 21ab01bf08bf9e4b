"""The public names: there, importable, and free of side effects."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import retinue
from retinue import errors, events


def test_every_public_name_can_be_imported() -> None:
    for name in retinue.__all__:
        assert getattr(retinue, name) is not None
    assert sorted(retinue.__all__) == list(retinue.__all__)
    assert dir(retinue) == sorted(retinue.__all__)


def test_type_checkers_see_what_is_exported() -> None:
    tree = ast.parse(Path(retinue.__file__).read_text("utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.asname or alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == set(retinue.__all__)


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'retinue' has no attribute 'opne'"):
        retinue.opne  # noqa: B018


MODULES = (retinue, events, errors)
RESUME_ONLY = {"retinue.RunState"}
"""Its further fields hold what another process needs to resume; programs have no use for them."""


def _own_classes(annotation: Any) -> Iterator[type]:
    """The classes of retinue that an annotation mentions."""
    if isinstance(annotation, list | tuple):
        for part in annotation:
            yield from _own_classes(part)
    elif (origin := get_origin(annotation)) is not None:
        yield from _own_classes((origin, get_args(annotation)))
    elif inspect.isclass(annotation) and annotation.__module__.startswith("retinue."):
        yield annotation


def _annotated() -> Iterator[tuple[str, Any]]:
    """What programs read, write and call: fields of values, and the methods of handles."""
    for module in MODULES:
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) and name not in RESUME_ONLY:
                yield f"{module.__name__}.{name}", thing
    yield "retinue.open", inspect.unwrap(retinue.open)
    for handle in (retinue.Runtime, retinue.Job, retinue.Model, retinue.Clock):
        for name, member in vars(handle).items():
            function = member.fget if isinstance(member, property) else member
            if inspect.isfunction(function) and not name.startswith("_"):
                yield f"retinue.{handle.__name__}.{name}", function


def test_whatever_a_program_gets_or_gives_is_exported() -> None:
    public = {id(getattr(module, name)) for module in MODULES for name in module.__all__}
    leaks = {
        f"{where}: {kind.__module__}.{kind.__name__}"
        for where, thing in _annotated()
        if where not in RESUME_ONLY
        for name, annotation in get_type_hints(thing).items()
        if not name.startswith("_")
        for kind in _own_classes(annotation)
        if id(kind) not in public
    }
    assert leaks == set()


def test_public_names_are_the_defining_objects() -> None:
    from retinue.app import open_runtime
    from retinue.domain.budget import Budget

    assert retinue.Budget is Budget
    assert retinue.open is open_runtime


CHECK = """
import sys, threading
before = set(sys.modules)
import retinue
loaded = sorted(m for m in set(sys.modules) - before if not m.startswith("retinue"))
heavy = [m for m in loaded if m.split(".")[0] in ("aiohttp", "msgspec", "click", "yaml", "asyncio")]
print(heavy, threading.active_count())
"""


def test_import_loads_no_modules_and_starts_no_threads(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECK], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[] 1\n"
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_help_loads_no_heavy_modules(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom retinue.interfaces.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'aiohttp', 'msgspec', 'yaml', 'sqlite3', 'asyncio'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"
