"""Finds a project's languages, test command, linter and agent files, for `retinue init`.

Only files are read: nothing is run or imported.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from retinue.config.agent_folders import PROJECT_FOLDERS
from retinue.config.mcp_servers import MCP_FILE
from retinue.domain.role import BOOTSTRAP_FILES, INSTRUCTION_FILES

_MAX_BYTES = 1_000_000
_MAX_FILES = 20_000
_MAX_LANGUAGES = 4
_LANGUAGES = {
    ".py": "Python", ".js": "JavaScript", ".jsx": "JavaScript", ".mjs": "JavaScript",
    ".ts": "TypeScript", ".tsx": "TypeScript", ".go": "Go", ".rs": "Rust", ".java": "Java",
    ".kt": "Kotlin", ".c": "C", ".cc": "C++", ".cpp": "C++", ".h": "C or C++", ".hpp": "C++",
    ".rb": "Ruby", ".php": "PHP", ".cs": "C#", ".swift": "Swift", ".scala": "Scala",
    ".ex": "Elixir", ".hs": "Haskell", ".lua": "Lua", ".sh": "Shell", ".sql": "SQL", ".vue": "Vue",
    ".tf": "Terraform",
}  # fmt: skip
# Folders with files that were generated, or that other projects wrote.
_FOREIGN = frozenset({"node_modules", "vendor", "target", "dist", "build", "venv", "site-packages"})
_UNITTEST = re.compile(r"^(?:import|from) unittest\b", re.MULTILINE)
_PACKAGE_MANAGERS = {"pnpm-lock.yaml": "pnpm", "yarn.lock": "yarn", "bun.lock": "bun run"}
_BY_FILE = (
    ("go.mod", "go test {selector:./...}"),
    ("Cargo.toml", "cargo test"),
    ("pom.xml", "mvn -q test"),
    ("gradlew", "./gradlew test"),
    (".rspec", "bundle exec rspec"),
    ("phpunit.xml", "vendor/bin/phpunit"),
    ("phpunit.xml.dist", "vendor/bin/phpunit"),
    ("*.sln", "dotnet test"),
)
_AGENT_FOLDERS = (
    *(name for name, _ in PROJECT_FOLDERS),
    ".retinue/skills", ".claude/skills", ".agents/skills",
    ".retinue/commands", ".claude/commands", ".opencode/command",
)  # fmt: skip


class ProjectInspection(msgspec.Struct, frozen=True, kw_only=True):
    """The languages, tests and other facts that were found in a project."""

    languages: tuple[tuple[str, int], ...] = ()
    """Languages with their numbers of files, the most used first."""
    test: str = ""
    """The command that runs the tests; "" if nothing says how."""
    check: str = ""
    """The command of a linter that the project has set up."""
    instructions: tuple[str, ...] = ()
    """Files with instructions that agents read."""
    unread_instructions: tuple[str, ...] = ()
    """Other files with instructions. Agents do not read them, because they read the first one."""
    agent_folders: tuple[tuple[str, int], ...] = ()
    """Folders of agents, skills and commands with their numbers of entries."""
    has_mcp_servers: bool = False

    @property
    def has_agents(self) -> bool:
        return any("agent" in Path(name).name for name, _ in self.agent_folders)


def inspect_project(root: Path) -> ProjectInspection:
    languages = Counter(
        language for path in _files(root) if (language := _LANGUAGES.get(path.suffix.lower()))
    )
    read = next((name for name in INSTRUCTION_FILES if (root / name).is_file()), None)
    others = [name for name in BOOTSTRAP_FILES if name not in INSTRUCTION_FILES]
    found = [*([read] if read else []), *(name for name in others if (root / name).is_file())]
    folders = [(name, len(list((root / name).glob("*")))) for name in _AGENT_FOLDERS]
    return ProjectInspection(
        languages=tuple(languages.most_common(_MAX_LANGUAGES)),
        test=detect_test_command(root),
        check=detect_linter(root),
        instructions=tuple(found),
        unread_instructions=tuple(
            name for name in INSTRUCTION_FILES if name != read and (root / name).is_file()
        ),
        agent_folders=tuple((name, count) for name, count in folders if count),
        has_mcp_servers=(root / MCP_FILE).is_file(),
    )


def _files(root: Path) -> Iterator[Path]:
    """The first files of the project, without hidden and foreign ones."""
    seen = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(n for n in folders if n not in _FOREIGN and not n.startswith("."))
        for name in files:
            seen += 1
            if seen > _MAX_FILES:
                return
            yield Path(folder, name)


def detect_test_command(root: Path) -> str:
    """The command, or "" if nothing says how the tests run."""
    if (root / "script" / "test").is_file():
        return "script/test"
    # `npm init` writes a placeholder, which runs no tests.
    if "no test specified" not in (script := _package_scripts(root).get("test", "")) and script:
        manager = _package_manager(root)
        return "npm test --silent -- {selector}" if manager == "npm" else f"{manager} test"
    if command := _python_tests(root):
        return command
    for pattern, command in _BY_FILE:
        if next(root.glob(pattern), None) is not None:
            return command
    if re.search(r"^test:", _text(root / "Makefile"), re.MULTILINE):
        return "make test"
    return ""


def detect_linter(root: Path) -> str:
    """The command of a linter that the project has set up; "" if there is none."""
    if (root / "ruff.toml").is_file() or "[tool.ruff" in _text(root / "pyproject.toml"):
        return "ruff check ."
    if _package_scripts(root).get("lint"):
        manager = _package_manager(root)
        return "npm run lint --silent" if manager == "npm" else f"{manager} lint"
    if (root / "go.mod").is_file():
        return "go vet ./..."
    return "cargo check -q" if (root / "Cargo.toml").is_file() else ""


def _package_scripts(root: Path) -> dict[str, str]:
    with suppress(ValueError, AttributeError, RecursionError):
        scripts = json.loads(_text(root / "package.json") or "{}").get("scripts", {})
        return {name: text for name, text in scripts.items() if isinstance(text, str)}
    return {}


def _package_manager(root: Path) -> str:
    found = (command for file, command in _PACKAGE_MANAGERS.items() if (root / file).is_file())
    return next(found, "npm")


def _python_tests(root: Path) -> str:
    """The command for tests in Python: pytest, unless all of them use only unittest."""
    pytest = "python -m pytest -q"
    if (root / "pytest.ini").is_file() or (root / "conftest.py").is_file():
        return pytest
    for name in ("pyproject.toml", "setup.cfg", "tox.ini", "requirements-dev.txt"):
        if "pytest" in _text(root / name):
            return pytest
    for folder in ("", "tests", "test"):
        if tests := [_text(path) for path in sorted((root / folder).glob("test_*.py"))]:
            if not all(_UNITTEST.search(test) and "pytest" not in test for test in tests):
                return pytest
            if not folder or (root / folder / "__init__.py").is_file():
                return "python -m unittest"
            return f"python -m unittest {{selector:discover -s {folder}}}"
    return ""


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
