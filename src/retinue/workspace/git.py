"""Running the `git` binary so that a tree that an agent wrote cannot make it run a program."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache

import msgspec

from retinue.errors import GitError, WorkspaceError
from retinue.programs import find_program

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
    # A folder that one side renamed must not carry along what others put into it.
    "merge.directoryRenames=false",
)

# Nothing of the user's is inherited: not their global settings, filters, pagers or prompts.
_ENVIRONMENT = {
    "PATH": os.defpath,
    "LC_ALL": "C",
    "GIT_ATTR_NOSYSTEM": "1",
    # A missing object must not be fetched: by which command is said in the tree's own settings.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    # Who and when are the same in every commit: the same tree makes the same commit.
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


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """Where git looks, said explicitly: nothing is discovered from the tree.

    `alternates` are further folders to read objects from. `settings` are lines such as
    `core.autocrlf=true`; where they contradict ours, ours count. `folder` is where git is started,
    for what it says about paths from there; the top of the tree if nothing is said.
    """

    git_dir: str
    work_tree: str
    index_file: str
    alternates: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    folder: str | None = None


def find_repository(root: str) -> Repository | None:
    """The repository whose top is `root`, if there is one. A linked worktree counts."""
    git_dir = os.path.join(root, ".git")
    try:
        with open(git_dir, "rb") as file:
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


def run_git(
    where: Repository,
    arguments: Sequence[str],
    *,
    stdin: bytes = b"",
    timeout_s: float = 60.0,
    users_settings: Mapping[str, str] | None = None,
) -> GitResult:
    """Run git. A non-zero exit is a result; WorkspaceError if there is no git or it hangs.

    `users_settings` are the variables by which git finds the user's own settings, for reading them.
    """
    settings = [part for setting in (*where.settings, *_HARDENING) for part in ("-c", setting)]
    blind = _NO_USER_SETTINGS if users_settings is None else users_settings
    try:
        done = subprocess.run(
            [_git_path(), "--no-pager", *settings, *arguments],
            input=stdin,
            capture_output=True,
            cwd=where.folder or where.work_tree,
            env={
                **_ENVIRONMENT,
                **blind,
                "GIT_DIR": where.git_dir,
                "GIT_WORK_TREE": where.work_tree,
                "GIT_INDEX_FILE": where.index_file,
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": ":".join(
                    map(_quote_for_list, where.alternates)
                ),
            },
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise WorkspaceError(
            f"git {arguments[0]} took more than {timeout_s:g} s in {where.work_tree}."
        ) from None
    except OSError as error:
        raise WorkspaceError(f"git cannot be started: {error}.") from error
    return GitResult(done.returncode, done.stdout, done.stderr)


def git_output(
    where: Repository, arguments: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 600.0
) -> bytes:
    """What git prints. GitError if it fails, with what it says about that."""
    done = run_git(where, arguments, stdin=stdin, timeout_s=timeout_s)
    if not done.ok:
        said = done.stderr.decode("utf-8", "backslashreplace").strip() or "it says nothing"
        raise GitError(f"git {arguments[0]} failed in {where.work_tree}: {said[:2000]}")
    return done.stdout


def split_paths(listed: bytes) -> list[str]:
    """The paths in a NUL-separated list, as Python spells any bytes."""
    return os.fsdecode(listed).split("\0")[:-1]


@cache
def git_version() -> tuple[int, ...] | None:
    """The version of the installed git, such as (2, 39); None if there is none."""
    found = find_program("git")
    if found is None:
        return None
    told = re.search(r"(\d+)\.(\d+)", version_line(found))
    return None if told is None else (int(told[1]), int(told[2]))


def version_line(path: str) -> str:
    """The first line of what a program says to `--version`."""
    done = subprocess.run([path, "--version"], capture_output=True, check=False, env={})
    return done.stdout.partition(b"\n")[0].decode("utf-8", "replace").strip()


def _git_path() -> str:
    found = find_program("git")
    if found is None:
        raise WorkspaceError("git is not installed, or not on the PATH.")
    return found


def _quote_for_list(path: str) -> str:
    """A path in a list that is separated by colons."""
    if not any(sign in path for sign in ':"\n\\'):
        return path
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    return f'"{path.translate(escapes)}"'
