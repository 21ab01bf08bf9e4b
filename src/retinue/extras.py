"""Optional dependencies: which extra installs which module, and the error when one is missing."""

from __future__ import annotations

from importlib.util import find_spec

from retinue.errors import MissingExtra

EXTRAS = {
    "terminal": ("textual",),
    "mcp": ("mcp", "jsonschema_rs"),
    "formats": ("jsonschema_rs",),
    "embedded": ("xllamacpp",),
    "images": ("PIL",),
    "pdf": ("pypdf",),
    "web": ("markdownify",),
    "postgres": ("asyncpg",),
    "ray": ("ray",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "code": (
        *("tree_sitter", "tree_sitter_python", "tree_sitter_javascript", "tree_sitter_typescript"),
        *("tree_sitter_go", "tree_sitter_rust", "tree_sitter_java", "tree_sitter_c"),
        *("tree_sitter_cpp", "tree_sitter_ruby", "tree_sitter_c_sharp", "tree_sitter_php"),
    ),
}
"""The modules that each extra installs. Only modules that retinue imports by name are listed."""


def is_importable(module: str) -> bool:
    """Whether `module` is installed. The module is not imported, which could be slow."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False  # The package that contains it is missing.


def is_installed(extra: str) -> bool:
    return all(map(is_importable, EXTRAS[extra]))


def install_command(extra: str) -> str:
    return f"pip install 'retinue[{extra}]'"


def missing_message(extra: str, feature: str) -> str:
    """One sentence: `feature` is not installed, and the command that installs it."""
    return f"{feature} is not installed: {install_command(extra)}."


def require(extra: str, feature: str) -> None:
    """Raise MissingExtra unless every module of `extra` is installed."""
    if not is_installed(extra):
        raise MissingExtra(missing_message(extra, feature))
