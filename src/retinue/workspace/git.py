"""The `git` binary, hardened: a tree that an agent could write must not make it run anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

import msgspec

from retinue.errors import WorkspaceError

_HARDENED = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.untrackedCache=false",
    "diff.ignoreSubmodules=all",
    "safe.bareRepository=explicit",
    "gc.auto=0",
)

# Nothing of the user's is inherited: not their global settings, filters, pagers or prompts.
_ENVIRONMENT = {
    "PATH": os.defpath,
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
}


class GitResult(msgspec.Struct, frozen=True):
    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """Where git looks, said explicitly: nothing is discovered from the tree."""

    git_dir: str
    work_tree: str
    index_file: str


def repository(root: str) -> Repository | None:
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


def git(
    where: Repository, arguments: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0
) -> GitResult:
    """Run git. A non-zero exit is a result; WorkspaceError if there is no git or it hangs."""
    program = shutil.which("git")
    if program is None:
        raise WorkspaceError("git is not installed, or not on the PATH.")
    settings = [part for setting in _HARDENED for part in ("-c", setting)]
    try:
        done = subprocess.run(
            [program, "--no-pager", *settings, *arguments],
            input=stdin,
            capture_output=True,
            cwd=where.work_tree,
            env={
                **_ENVIRONMENT,
                "GIT_DIR": where.git_dir,
                "GIT_WORK_TREE": where.work_tree,
                "GIT_INDEX_FILE": where.index_file,
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
