"""What is installed beside the core: the one place that knows which extra brings what.

Without an extra everything that can work works. What cannot says so in one sentence, by `need`.
"""

from __future__ import annotations

from importlib.util import find_spec

from retinue.errors import MissingExtra

EXTRAS = {
    "terminal": ("textual",),
    "mcp": ("mcp", "jsonschema_rs"),
    "formats": ("yaml", "jsonschema_rs", "json_repair"),
    "embedded": ("xllamacpp",),
}
"""The modules that each extra brings and that are imported by their name here."""


def has(module: str) -> bool:
    """Can it be imported? It is not, which may be slow."""
    return find_spec(module) is not None


def has_all(extra: str) -> bool:
    return all(map(has, EXTRAS[extra]))


def install(extra: str) -> str:
    """The command that brings an extra."""
    return f"pip install 'retinue[{extra}]'"


def missing(extra: str, what: str) -> str:
    """What to say where `what` is missing, as one sentence."""
    return f"{what} is not installed: {install(extra)}."


def need(extra: str, what: str) -> None:
    """MissingExtra unless all of the extra is there."""
    if not has_all(extra):
        raise MissingExtra(missing(extra, what))
