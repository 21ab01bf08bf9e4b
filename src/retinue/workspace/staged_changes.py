"""Reads the changes that a user has staged in git, and commits them with the user's own git.

Unlike `git.py`, this runs git as the user would: with their settings, hooks and editor.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from retinue.errors import UsageError, WorkspaceError
from retinue.executables import exclude_project, find_program

MAX_DIFF_CHARS = 40_000
RECENT_COMMITS = 10
MESSAGE_FILE = "RETINUE_COMMIT_MSG"
"""Keeps the message in the git directory until it is committed."""


class StagedChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that `git commit` would commit."""

    summary: str
    """A line for each file."""
    diff: str
    is_cut: bool
    """Whether the end of the diff is missing."""
    recent_subjects: tuple[str, ...]
    """First lines of the latest messages, newest first."""


class CommitOutcome(msgspec.Struct, frozen=True):
    exit_code: int
    kept_message: Path | None = None
    """The file with the message, if git has not committed it."""


class UserGit:
    """Git in the folder `directory`, with the user's variables."""

    def __init__(self, directory: Path, variables: Mapping[str, str]) -> None:
        """Raises WorkspaceError if git is not installed."""
        exclude_project(str(directory))
        program = find_program("git")
        if program is None:
            raise WorkspaceError("git is not installed, or not on the PATH.")
        self._program = program
        self._directory = directory
        self._variables = variables

    def staged_changes(self) -> StagedChanges:
        """Raises UsageError if nothing is staged, or if a merge is in progress."""
        if self._output("rev-parse", "--is-inside-work-tree").strip() != "true":
            raise UsageError(f"{self._directory} is not in a git repository; `git init` makes one.")
        if self._output("diff", "--name-only", "--diff-filter=U"):
            raise UsageError("A merge has conflicts; resolve them, and stage the files.")
        summary = self._output("diff", "--cached", "--stat", "--no-color")
        if not summary:
            raise UsageError("Nothing is staged; choose what to commit with `git add`.")
        if self._output("rev-parse", "-q", "--verify", "MERGE_HEAD"):
            raise UsageError("A merge is in progress, and has a message; finish it: git commit.")
        diff = self._output("diff", "--cached", "--no-color", "--no-ext-diff", "--find-renames")
        subjects = self._output("log", f"-{RECENT_COMMITS}", "--format=%s", "--no-merges")
        return StagedChanges(
            summary=summary,
            diff=diff[:MAX_DIFF_CHARS],
            is_cut=len(diff) > MAX_DIFF_CHARS,
            recent_subjects=tuple(subjects.splitlines()),
        )

    def commit(self, message: str, arguments: Sequence[str] = ()) -> CommitOutcome:
        """Run `git commit -e` with the message, on the terminal of this process."""
        kept, edited = self._git_path(MESSAGE_FILE), self._git_path("COMMIT_EDITMSG")
        kept.write_text(message + "\n", "utf-8")
        started_at = time.time()
        done = self._run("commit", "-e", "-F", str(kept), *arguments)
        if done == 0:
            kept.unlink(missing_ok=True)
            return CommitOutcome(0)
        # A hook that runs after the editor leaves what the user wrote.
        if edited.exists() and edited.stat().st_mtime >= started_at:
            text = edited.read_text("utf-8", "replace")
            if not any(line.strip() and not line.startswith("#") for line in text.splitlines()):
                kept.unlink(missing_ok=True)
                return CommitOutcome(done)  # The user has emptied it.
            kept.write_text(text, "utf-8")
        return CommitOutcome(done, kept)

    def _git_path(self, name: str) -> Path:
        return self._directory / self._output("rev-parse", "--git-path", name).strip()

    def _run(self, *arguments: str) -> int:
        command = [self._program, *arguments]
        return subprocess.run(
            command, cwd=self._directory, env=dict(self._variables), check=False
        ).returncode

    def _output(self, *arguments: str) -> str:
        """Git's output; "" if it fails."""
        done = subprocess.run(
            [self._program, "--no-pager", *arguments],
            cwd=self._directory,
            env=dict(self._variables),
            capture_output=True,
            check=False,
        )
        return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
