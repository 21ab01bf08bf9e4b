from __future__ import annotations

import subprocess
import sys

# What `retinue/__init__.py` itself imports comes first, with whatever that brings in this Python.
PROGRAM = """
import __future__, importlib, sys, typing
before = set(sys.modules)
import retinue
print(*sorted(set(sys.modules) - before))
{then}
print(*sorted({{name.partition(".")[0] for name in set(sys.modules) - before}} & {heavy}))
"""
HEAVY = {
    "aiohttp", "asyncio", "asyncpg", "click", "http", "mcp", "mcp_types", "msgspec",
    "multiprocessing", "pydantic", "sqlite3", "ssl", "yaml",
}  # fmt: skip


def loaded(then: str = "") -> tuple[str, str]:
    """What a bare import loads, and what is heavy of all that was loaded in the end."""
    program = PROGRAM.format(then=then, heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    return first, second


def test_bare_import_loads_only_retinue() -> None:
    assert loaded() == ("retinue", "")


def test_errors_load_nothing_else() -> None:
    assert loaded("retinue.RetinueError, retinue.errors, retinue.__version__") == ("retinue", "")


def test_values_load_only_msgspec() -> None:
    _, heavy = loaded("retinue.Budget, retinue.Mode, retinue.Result, retinue.fold")
    assert heavy == "msgspec"


def test_open_does_not_import_network_libraries() -> None:
    _, heavy = loaded("retinue.open, retinue.ScriptedModel, retinue.tool")
    assert "aiohttp" not in heavy.split()
    assert "http" not in heavy.split()
    assert "yaml" not in heavy.split()
    assert "click" not in heavy.split()
    assert not {"mcp", "mcp_types", "pydantic"} & set(heavy.split())
