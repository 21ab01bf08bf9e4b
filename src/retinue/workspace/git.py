"""Running the `git` binary so that a tree that an agent wrote cannot make it run a program."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import IO

import msgspec

from retinue.errors import GitError, ToolFailure, WorkspaceError
from retinue.executables import find_program

TOOL_S = 20.0
"""Limit of git commands that an agent waits for."""
TREE_S = 600.0
"""Limit of git commands about a whole tree."""
FILE_S = 3_600.0
"""Limit of git commands whose output goes into a file."""
_HARDENING = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.untrackedCache=false",
    "core.splitIndex=false",
    "diff.ignoreSubmodules=all",
    "submodule.recurse=false",
    "safe.bareRepository=explicit",
    "gc.auto=0",
    "maintenance.auto=false",
    "checkout.workers=0",
    # If one side renames a folder, files that the other side adds to it stay where they are.
    "merge.directoryRenames=false",
)

# The user's environment is not inherited: no global settings, filters, pagers or prompts.
_ENVIRONMENT = {
    "PATH": os.defpath,
    "LC_ALL": "C",
    "GIT_ATTR_NOSYSTEM": "1",
    # Missing objects are not fetched: the settings of the tree name the command that would do it.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    # Fixed author and dates: the same tree makes the same commit.
    "GIT_AUTHOR_NAME": "retinue",
    "GIT_AUTHOR_EMAIL": "retinue@localhost",
    "GIT_AUTHOR_DATE": "@0 +0000",
    "GIT_COMMITTER_NAME": "retinue",
    "GIT_COMMITTER_EMAIL": "retinue@localhost",
    "GIT_COMMITTER_DATE": "@0 +0000",
}

_NO_USER_SETTINGS = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


class GitResult(msgspec.Struct, frozen=True):
    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def error(self) -> str:
        """What git printed on standard error."""
        return self.stderr.decode("utf-8", "backslashreplace").strip()[:2000]


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """Every path that git uses, given explicitly: git discovers nothing from the work tree.

    `alternates` are further folders to read objects from. `settings` are lines such as
    `core.autocrlf=true`; our hardening overrides them. `folder` is the directory that git runs in
    (default: the top of the work tree); git prints paths relative to it.
    """

    git_dir: str
    work_tree: str
    index_file: str
    alternates: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    folder: str | None = None
    shallow_file: str = ""
    """The list of commits whose parents were not cloned, of the repository that has the objects."""


def find_repository(root: str) -> Repository | None:
    """The repository whose top is `root`, or None. A linked worktree counts."""
    git_dir = os.path.join(root, ".git")
    try:
        with open(git_dir, "rb", opener=open_at_once) as file:
            pointer = file.read(8192)
    except IsADirectoryError:
        pass
    except OSError:
        return None
    else:
        if not pointer.startswith(b"gitdir: "):
            return None
        git_dir = os.path.join(root, os.fsdecode(pointer[8:].rstrip(b"\r\n")))
    return Repository(git_dir=git_dir, work_tree=root, index_file=os.path.join(git_dir, "index"))


def open_at_once(path: str, flags: int, *, more: int = 0) -> int:
    """An `opener` that does not wait for a writer if `path` is a named pipe."""
    return os.open(path, flags | more | os.O_NONBLOCK)


def run_git(
    repository: Repository,
    arguments: Sequence[str],
    *,
    stdin: bytes | IO[bytes] = b"",
    timeout_s: float = 60.0,
    users_settings: Mapping[str, str] | None = None,
) -> GitResult:
    """Run git. A non-zero exit is a result; WorkspaceError if git is missing or takes too long.

    `users_settings` are the variables that let git read the user's own settings.
    """
    try:
        done = subprocess.run(
            _command(repository, arguments),
            input=stdin if isinstance(stdin, bytes) else None,
            stdin=None if isinstance(stdin, bytes) else stdin,
            capture_output=True,
            cwd=repository.folder or repository.work_tree,
            env=_environment(repository, users_settings),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise WorkspaceError(
            f"git {arguments[0]} took more than {timeout_s:g} s in {repository.work_tree}."
        ) from None
    except OSError as error:
        raise WorkspaceError(f"git cannot be started: {error}.") from error
    return GitResult(done.returncode, done.stdout, done.stderr)


def git_to_file(
    repository: Repository,
    arguments: Sequence[str],
    file: IO[bytes],
    *,
    stdin: bytes,
) -> None:
    """Run git with its output in a file, which may be large. GitError with git's message."""
    with (
        tempfile.TemporaryFile() as errors,
        _started(repository, arguments, subprocess.PIPE, errors, FILE_S, stdout=file) as process,
    ):
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # git has failed, and says why.
            process.stdin.write(stdin)
            process.stdin.close()
        if process.wait() != 0:
            errors.seek(0)
            why = errors.read(2000).decode("utf-8", "backslashreplace").strip()
            why = why or f"it took more than {FILE_S:g} s"
            raise GitError(f"git {arguments[0]} failed in {repository.work_tree}: {why}")


def git_output(
    repository: Repository, arguments: Sequence[str], *, stdin: bytes | IO[bytes] = b""
) -> bytes:
    """Run git and return its output. GitError with git's message if it fails."""
    done = run_git(repository, arguments, stdin=stdin, timeout_s=TREE_S)
    if not done.ok:
        why = done.error or f"exit code {done.exit_code}"
        raise GitError(f"git {arguments[0]} failed in {repository.work_tree}: {why}")
    return done.stdout


def first_output(
    repository: Repository, arguments: Sequence[str], *, max_bytes: int
) -> tuple[bytes, bool]:
    """The first `max_bytes` that git prints, and whether there is more.

    ToolFailure with git's message if it fails before, or takes too long.
    """
    with (
        tempfile.TemporaryFile() as errors,
        _started(repository, arguments, subprocess.DEVNULL, errors, TOOL_S) as process,
    ):
        assert process.stdout is not None
        data = process.stdout.read(max_bytes + 1)
        more = len(data) > max_bytes
        if more:
            process.kill()
        if process.wait() != 0 and not more:
            errors.seek(0)
            why = errors.read(2000).decode("utf-8", "backslashreplace").strip()
            raise ToolFailure(f"git {arguments[0]}: {why or f'took more than {TOOL_S:g} s'}")
    return data[:max_bytes], more


def small_blobs(
    repository: Repository, blobs: Iterable[str], *, max_bytes: int
) -> dict[str, bytes]:
    """The contents of blobs by id, without those of more than `max_bytes`, in one process.

    GitError if one is missing.
    """
    found: dict[str, bytes] = {}
    command = ["cat-file", "--batch-command"]
    with _started(repository, command, subprocess.PIPE, subprocess.DEVNULL, TREE_S) as process:
        commands, answers = process.stdin, process.stdout
        assert commands is not None
        assert answers is not None

        def ask(command: str, blob: str) -> list[bytes]:
            commands.write(f"{command} {blob}\n".encode())
            commands.flush()
            return answers.readline().split()

        for blob in blobs:
            try:
                _, kind, *size = ask("info", blob)
                if kind != b"missing" and int(size[0]) <= max_bytes:
                    ask("contents", blob)
                    found[blob] = answers.read(int(size[0]) + 1)[:-1]
            except (OSError, ValueError):
                raise GitError(f"git cat-file ended at {blob} in {repository.work_tree}.") from None
            if kind == b"missing":
                raise GitError(f"The object {blob} is gone: your repository was pruned since.")
    return found


@contextmanager
def _started(
    repository: Repository,
    arguments: Sequence[str],
    stdin: int,
    stderr: int | IO[bytes],
    timeout_s: float,
    *,
    stdout: int | IO[bytes] = subprocess.PIPE,
) -> Iterator[subprocess.Popen[bytes]]:
    """A git process, which is ended after the block or after `timeout_s`."""
    with subprocess.Popen(
        _command(repository, arguments),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=repository.folder or repository.work_tree,
        env=_environment(repository, None),
    ) as process:
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        try:
            yield process
        finally:
            process.kill()
            timer.cancel()
            if process.stdin is not None:
                with suppress(OSError):  # The buffer may hold what the process did not read.
                    process.stdin.close()


def split_paths(listed: bytes) -> list[str]:
    """The paths of a NUL-separated list, decoded as the file system does."""
    return os.fsdecode(listed).split("\0")[:-1]


def join_paths(paths: Iterable[str]) -> bytes:
    """The NUL-separated list of paths."""
    return os.fsencode("".join(f"{path}\0" for path in paths))


@cache
def git_version() -> tuple[int, ...] | None:
    """The version of the installed git, such as (2, 39); None if it is not installed."""
    path = find_program("git")
    if path is None:
        return None
    found = re.search(r"(\d+)\.(\d+)", version_line(path))
    return None if found is None else (int(found[1]), int(found[2]))


def version_line(path: str) -> str:
    """The first line that a program prints for `--version`."""
    done = subprocess.run([path, "--version"], capture_output=True, check=False, env={})
    return done.stdout.partition(b"\n")[0].decode("utf-8", "replace").strip()


def _git_path() -> str:
    found = find_program("git")
    if found is None:
        raise WorkspaceError("git is not installed, or not on the PATH.")
    return found


def _command(repository: Repository, arguments: Sequence[str]) -> list[str]:
    settings = [part for setting in (*repository.settings, *_HARDENING) for part in ("-c", setting)]
    return [_git_path(), "--no-pager", *settings, *arguments]


def _environment(
    repository: Repository, users_settings: Mapping[str, str] | None
) -> dict[str, str]:
    alternates = ":".join(map(_quote_for_list, repository.alternates))
    shallow = {"GIT_SHALLOW_FILE": repository.shallow_file} if repository.shallow_file else {}
    return {
        **_ENVIRONMENT,
        **(_NO_USER_SETTINGS if users_settings is None else users_settings),
        "GIT_DIR": repository.git_dir,
        "GIT_WORK_TREE": repository.work_tree,
        "GIT_INDEX_FILE": repository.index_file,
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": alternates,
        **shallow,
    }


def _quote_for_list(path: str) -> str:
    """Quote a path for a list that is separated by colons."""
    if not any(char in path for char in ':"\n\\'):
        return path
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    return f'"{path.translate(escapes)}"'
