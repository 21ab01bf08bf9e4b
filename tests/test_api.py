"""The public names: there, importable, and free of side effects."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import retinue


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
