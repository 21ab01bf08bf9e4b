"""How hypothesis runs here (no deadlines, and the same examples every time on CI), that bytecode is
kept, a project of a user's that has a repository, and a runtime in a project, on a clock that the
test moves, with settings that the test writes."""

from __future__ import annotations

import gc
import hashlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import retinue
from retinue.config.environment import Environment
from retinue.domain.contract import Contract, decode_contract
from retinue.project import open_journal
from retinue.runtime.runtime import Runtime
from retinue.sandbox.etc_copy import etc_copy
from retinue.testing.clock import FakeClock
from retinue.workspace.git import split_paths
from retinue.workspace.private_git import PrivateGit
from retinue.workspace.snapshot import snapshot_user_tree
from retinue.workspace.user_repository import find_user_repository

# Images of Python for containers set it. Then each run compiles every test again, and each of the
# hundreds of processes that tests start compiles the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

hypothesis.settings.register_profile("default", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("default")

# Collecting the tests makes millions of objects, and all of them stay. Without the garbage
# collector, which would look at each of them again and again, this takes a sixth less time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


class Repo:
    """A project of a user's, and the home that their settings are in."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.home = folder / "home"
        self.config = self.home / ".config"
        self.root.mkdir(exist_ok=True)
        self.config.mkdir(parents=True)

    def git(self, *arguments: str, at: Path | None = None) -> str:
        """The user's own git."""
        who = ["-c", "user.name=user", "-c", "user.email=user@example.org"]
        done = subprocess.run(
            ["git", *who, "-c", "protocol.file.allow=always", *arguments],
            cwd=at or self.root,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "LC_ALL": "C"},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode("utf-8", "surrogateescape")

    def init(self, *arguments: str) -> Repo:
        self.git("init", "-q", *arguments)
        return self

    def write(self, path: str, text: str | bytes = "") -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    def commit(self, files: dict[str, str] | None = None) -> Repo:
        """Write these files, and commit everything that there is."""
        for path, text in (files or {}).items():
            self.write(path, text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "x")
        return self

    def private_git(self, directory: Path | None = None) -> PrivateGit:
        """The private git dir that goes with the project, or with a directory of it."""
        folder = directory or self.root
        source = find_user_repository(
            str(folder), home=str(self.home), config_home=str(self.config)
        )
        state = folder / ".retinue"
        state.mkdir(exist_ok=True)
        (state / ".gitignore").write_text("*\n")
        return PrivateGit(str(state / "git"), source, seal=str)

    def snapshot_of(self, private_git: PrivateGit, files: dict[str, str]) -> str:
        """Make these the only files of the project, and take a snapshot; returns its git tree."""
        for path in self.files():
            (self.root / path).unlink()
        for path, text in files.items():
            self.write(path, text)
        return snapshot_user_tree(private_git).tree

    def listed(self, private_git: PrivateGit, tree: str) -> dict[str, str]:
        """The files of a git tree, with mode and content: `100644 text`."""
        found = {}
        for entry in split_paths(private_git.run(["ls-tree", "-r", "-z", tree])):
            about, _, path = entry.partition("\t")
            mode, kind, name = about.split(" ")
            blob = private_git.run(["cat-file", "blob", name]) if kind == "blob" else name.encode()
            found[path] = f"{mode} {blob.decode('latin-1')}"
        return found

    def git_dir(self) -> dict[str, str]:
        """Every file in `.git`, with its hash: none of them is ours to touch."""
        found = {}
        for folder, _, files in os.walk(self.root / ".git"):
            for name in files:
                data = Path(folder, name).read_bytes()
                found[os.path.join(folder, name)] = hashlib.sha256(data).hexdigest()
        return found

    def files(self) -> dict[str, str]:
        """All files of the work tree, ignored ones too, with mode and content."""
        found = {}
        for folder, folders, files in os.walk(self.root):
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            folders[:] = [name for name in folders if name not in (".git", ".retinue", *links)]
            for name in (*files, *links):
                path = Path(folder, name)
                mode = oct(path.lstat().st_mode)
                data = (
                    os.readlink(path) if path.is_symlink() else path.read_bytes().decode("latin-1")
                )
                found[str(path.relative_to(self.root))] = f"{mode} {data}"
        return found


@pytest.fixture(scope="session", autouse=True)
def _etc(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Copies `/etc`, which commands see, once for all tests, and not into the home of each."""
    if sys.platform == "linux":
        etc_copy(str(tmp_path_factory.mktemp("etc")))


@pytest.fixture
def damage() -> Callable[[Path], None]:
    """Makes the events of a database unreadable."""

    def scratch(database: Path) -> None:
        with closing(sqlite3.connect(database)) as connection:
            (size,) = connection.execute("PRAGMA page_size").fetchone()
            query = "SELECT rootpage FROM sqlite_master WHERE name = 'events'"
            (page,) = connection.execute(query).fetchone()
        data = bytearray(database.read_bytes())
        data[(page - 1) * size : page * size] = b"\xff" * size
        database.write_bytes(data)

    return scratch


@pytest.fixture
def repos(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Repo]:
    """Makes one empty folder after the other, for tests of many examples."""
    return lambda: Repo(tmp_path_factory.mktemp("repo"))


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """An empty folder; `init` makes a repository of it."""
    return Repo(tmp_path)


@pytest.fixture(scope="session")
def open_project() -> Callable[..., AbstractAsyncContextManager[Runtime]]:
    """`retinue.open`, with the callbacks of `Listeners` and `Person` as arguments of its own."""

    def open_project(directory: Path, **options: Any) -> AbstractAsyncContextManager[Runtime]:
        for name, group in (("listeners", retinue.Listeners), ("person", retinue.Person)):
            given = {field: options.pop(field) for field in {*group.__struct_fields__} & {*options}}
            options |= {name: group(**given)}
        return retinue.open(directory, **options)

    return open_project


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture
def home_directory(tmp_path: Path) -> Path:
    """The home that `opened` has, where this fixture is not replaced together with it."""
    return tmp_path


@pytest.fixture
def settings(home_directory: Path) -> Callable[[str], None]:
    """Write the user's own settings."""
    path = home_directory / ".config" / "retinue" / "config.toml"

    def write(text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


@pytest.fixture
def opened(
    tmp_path: Path,
    project: Path,
    clock: FakeClock,
    open_project: Callable[..., AbstractAsyncContextManager[Runtime]],
) -> Callable[..., AbstractAsyncContextManager[Runtime]]:
    """`retinue.open` of the project, untouched by the environment of whoever runs the tests.

    Without shell commands, which a machine has or has not.
    """
    environment = Environment(variables={"HOME": str(tmp_path)})
    return partial(open_project, project, clock=clock, environment=environment, shell=False)


@pytest.fixture
def contracts(project: Path) -> Callable[[], Awaitable[dict[str, Contract]]]:
    """The contracts of the latest run, by agent, as they are on record."""

    async def read() -> dict[str, Contract]:
        async with open_journal(project) as store:
            (run, *_) = await store.runs()
            return {row.id: decode_contract(row.context_json) for row in await store.agents(run.id)}

    return read
