"""Folders of agent files and skills, of retinue and other coding agents; how files are read.

The author of a project controls its folders. So a symbolic link out of the project is not followed,
and a file that is not regular, too large or not text is reported as a problem.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from retinue.config.environment import Environment
from retinue.config.tool_translation import Dialect

MAX_FILE_BYTES = 256 * 1024
MAX_FILES = 500
MAX_DEPTH = 3

# If two folders define the same name, the earlier folder wins.
PROJECT_FOLDERS = (
    (".retinue/agents", Dialect.RETINUE),
    (".claude/agents", Dialect.CLAUDE),
    (".opencode/agent", Dialect.OPENCODE),
    (".opencode/agents", Dialect.OPENCODE),
    (".gemini/agents", Dialect.GEMINI),
    (".github/agents", Dialect.COPILOT),
    (".codex/agents", Dialect.CODEX),
)


class AgentFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of agent files. `display_path` is its path in messages.

    Its files must lie inside `within`, symbolic links resolved; None allows any place.
    """

    path: Path
    display_path: str
    dialect: Dialect
    within: Path | None = None

    @property
    def suffix(self) -> str:
        return ".toml" if self.dialect is Dialect.CODEX else ".md"


class InvalidFile(msgspec.Struct, frozen=True):
    """A file that is left out, and why."""

    place: str
    problem: str

    def __str__(self) -> str:
        return f"{self.place}: left out: {self.problem}"


class FolderFile(msgspec.Struct, frozen=True):
    """A file of a folder with its text, or with the problem that prevented reading it."""

    folder: AgentFolder
    name: str
    text: str = ""
    problem: str = ""

    @property
    def display_path(self) -> str:
        path = f"{self.folder.display_path}/{self.name}" if self.name else self.folder.display_path
        # The author of the project chose the name, and it is printed to a terminal.
        return "".join(letter if letter.isprintable() else "?" for letter in path)


def project_folders(project: Path) -> tuple[AgentFolder, ...]:
    root = Path(os.path.realpath(project))
    return tuple(
        AgentFolder(path=root / place, display_path=place, dialect=dialect, within=root)
        for place, dialect in PROJECT_FOLDERS
    )


def user_folders(environment: Environment) -> tuple[AgentFolder, ...]:
    home, config = environment.home, environment.config_home
    places = (
        (config / "retinue" / "agents", Dialect.RETINUE),
        (home / ".claude" / "agents", Dialect.CLAUDE),
        (config / "opencode" / "agent", Dialect.OPENCODE),
        (config / "opencode" / "agents", Dialect.OPENCODE),
        (home / ".gemini" / "agents", Dialect.GEMINI),
        (home / ".codex" / "agents", Dialect.CODEX),
    )
    return tuple(
        AgentFolder(path=path, display_path=environment.display_path(path), dialect=dialect)
        for path, dialect in places
    )


def read_folder(folder: AgentFolder) -> Iterator[FolderFile]:
    """Read the agent files in a folder and below it, by name. A missing folder has none."""
    try:
        # Most folders are missing, and resolving a path takes ten times as long.
        os.lstat(folder.path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError):
        pass  # Reported below.
    if not _stays_within(folder.path, folder.within):
        yield FolderFile(folder, "", problem="not read, because it leads out of the project")
        return
    names, problem = _file_names(folder)
    if problem:
        yield FolderFile(folder, "", problem=problem)
    for name in names:
        text, problem = read_text(folder.path / name, folder.within)
        yield FolderFile(folder, name, text, problem)


def read_text(path: Path, within: Path | None) -> tuple[str, str]:
    """Read a file that must lie inside `within`. Return its text and the problem, one is empty."""
    if not _stays_within(path, within):
        return "", "not read, because it leads out of the project"
    try:
        data = _read_bytes(path)
    except (OSError, ValueError) as error:
        return "", f"cannot be read: {_reason(error)}"
    if len(data) > MAX_FILE_BYTES:
        return "", f"larger than {MAX_FILE_BYTES // 1024} KB"
    try:
        return data.decode("utf-8"), ""
    except UnicodeDecodeError:
        return "", "not UTF-8 text"


def list_folder(folder: AgentFolder) -> tuple[list[str], str]:
    """Names of the folders in a folder, sorted, at most MAX_FILES; and a problem."""
    try:
        names = sorted(name for name in os.listdir(folder.path) if not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return [], ""
    except OSError as error:
        return [], f"cannot be listed: {_reason(error)}"
    if not _stays_within(folder.path, folder.within):
        return [], "not read, because it leads out of the project"
    problem = f"only {MAX_FILES} of {len(names):,} are read" if len(names) > MAX_FILES else ""
    return names[:MAX_FILES], problem


def _file_names(folder: AgentFolder) -> tuple[list[str], str]:
    """Paths of files relative to `folder`, sorted, at most MAX_FILES; and a problem."""
    found: list[str] = []
    waiting = [("", 0)]
    while waiting:
        below, depth = waiting.pop()
        try:
            with os.scandir(folder.path / below) as entries:
                for entry in entries:
                    name = f"{below}/{entry.name}" if below else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if depth + 1 < MAX_DEPTH and not entry.name.startswith("."):
                            waiting.append((name, depth + 1))
                    elif entry.name.endswith(folder.suffix) and not entry.name.startswith("."):
                        found.append(name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return sorted(found)[:MAX_FILES], f"cannot be listed: {_reason(error)}"
    problem = f"only {MAX_FILES} of {len(found):,} files are read" if len(found) > MAX_FILES else ""
    return sorted(found)[:MAX_FILES], problem


def _read_bytes(path: Path) -> bytes:
    """Read at most MAX_FILE_BYTES + 1. Refuse pipes and devices instead of blocking on them."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a regular file")
        return file.read(MAX_FILE_BYTES + 1)


def _stays_within(path: Path, within: Path | None) -> bool:
    if within is None:
        return True
    try:
        return Path(os.path.realpath(path)).is_relative_to(within)
    except (OSError, ValueError):
        return False


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
