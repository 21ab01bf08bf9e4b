"""Limits on modules, their imports and the first pages, which keep the code easy to enter."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "retinue"
MOST_LINES = 600
LISTS_OF_FACTS = {"domain/events.py"}
"""Modules without logic, which may be longer."""
PAGES = {"README.md": 150, "docs/architecture.md": 200}


def _lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def test_no_module_is_too_long_to_read_at_once() -> None:
    lines = {path.relative_to(SOURCE).as_posix(): _lines(path) for path in SOURCE.rglob("*.py")}
    assert lines.keys() >= LISTS_OF_FACTS
    too_long = {name for name, count in lines.items() if count > MOST_LINES}
    assert too_long <= LISTS_OF_FACTS


@pytest.mark.parametrize(("page", "most_lines"), PAGES.items())
def test_first_pages_stay_short(page: str, most_lines: int) -> None:
    assert _lines(ROOT / page) <= most_lines


def _imports(statements: list[ast.stmt], *, for_types: bool) -> Iterator[str]:
    """The names that a module imports when it is loaded; or those for type checkers only."""
    for statement in statements:
        match statement:
            case ast.ImportFrom(module=str(module)) if not for_types:
                yield from (f"{module}.{alias.name}" for alias in statement.names)
                yield module
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) if for_types:
                yield from _imports(statement.body, for_types=False)


def test_no_import_for_types_leads_back() -> None:
    """`import-linter` holds the direction between packages, this the one inside of them."""
    loaded: dict[str, set[str]] = {}
    for_types: list[tuple[str, str]] = []
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        body = ast.parse(path.read_text("utf-8")).body
        loaded[name] = set(_imports(body, for_types=False))
        for_types += [(name, found) for found in _imports(body, for_types=True)]
    back = []
    for importer, imported in for_types:
        seen, waiting = set[str](), [imported]
        while waiting:
            new = loaded.get(waiting.pop(), set()) - seen
            seen |= new
            waiting += new
        if importer in seen:
            back.append(f"{importer} imports {imported}, which needs {importer}")
    assert back == []
