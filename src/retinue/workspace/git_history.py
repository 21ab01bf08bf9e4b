"""Reads the history of the user's repository, and the uncommitted changes of a file tree.

Git runs with the settings of the private git dir and reads the user's objects in place, so that no
setting, attribute or hook of the user's repository can start a program. The user's repository only
says which commits its names stand for. Uncommitted changes are read from a snapshot, which includes
new files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

import msgspec

from retinue.domain.paths import inside
from retinue.errors import ToolFailure
from retinue.ports.workspace import GitQuery
from retinue.workspace.file_names import printable, protected_name, quoted
from retinue.workspace.git import first_output, run_git, split_paths
from retinue.workspace.private_git import PrivateGit

MAX_BYTES = 16_000
MAX_COMMITS = 30
MAX_PATHS = 2_000
_MAX_REVISION_CHARS = 200
_PATCH = ("--no-color", "--no-ext-diff", "--no-textconv", "--find-renames")
_COMMIT = "commit %h%nauthor %an, %as%n%n%B"
_REVISION = re.compile(r"(?!-)[^\s\0:]+")
_NO_REPOSITORY = "The project is no git repository, so there is no history to read."


class TreeHistory(msgspec.Struct, frozen=True):
    """A file tree, as `GitHistory` reads it.

    `base` is the commit that a working copy was made of, or "" for the user's own tree. `take_tree`
    makes a snapshot of the current files.
    """

    private_git: PrivateGit
    take_tree: Callable[[], str]
    base: str = ""


class GitHistory:
    """The history of one directory of a file tree, as its agents may read it."""

    def __init__(
        self,
        open_tree: Callable[[], TreeHistory],
        directory: str,
        is_hidden: Callable[[str], bool],
    ) -> None:
        """`directory` is in the user's tree. `is_hidden` tells which paths nobody may read."""
        self._open_tree = open_tree
        self._directory = directory
        self._is_hidden = is_hidden

    def read(self, query: GitQuery) -> str:
        """The answer as text, cut to MAX_BYTES. ToolFailure with a message for the model."""
        tree = self._open_tree()
        reader = _Reader(tree, os.path.relpath(self._directory, tree.private_git.top))
        path = self._checked(query.path)
        revision = (query.revision or "").strip()
        if ":" in revision and not query.path:
            # HEAD:src/app.py
            revision, _, named = revision.partition(":")
            path = self._checked(named)
        match query.what:
            case "log":
                return reader.log(revision, path) or "[No commits.]"
            case "blame":
                if path is None:
                    raise ToolFailure("git_read: blame needs 'path', a file.")
                return reader.blame(revision, path, query.start, query.end)
            case "show" if path is not None:
                return reader.show_file(revision or "HEAD", path)
            case "show":
                return self._patch(reader, reader.show(revision or "HEAD"), None)
            case _:
                return self._patch(reader, reader.diff(revision), path)

    def _patch(self, reader: _Reader, command: Sequence[str], path: str | None) -> str:
        """The output of a command that prints a patch, without the paths that are hidden."""
        paths = reader.changed_paths(command, path)
        shown = [p for p in paths if not self._hides(reader.relative(p))]
        if len(shown) > MAX_PATHS:
            raise ToolFailure(f"{len(shown):,} files were changed; name one with 'path'.")
        left_out = len(paths) - len(shown)
        note = f"\n[{left_out} files left out: the user's rules forbid reading them]"
        text = reader.patch(command, shown) if shown else "[No changes.]"
        return f"{text}{note if left_out else ''}"

    def _checked(self, path: str | None) -> str | None:
        if not path or path == ".":
            return None
        normal = inside(path, self._directory)
        if normal is None:
            raise ToolFailure(f"{quoted(path)} leads outside the workspace.")
        if self._hides(normal):
            raise ToolFailure(f"{quoted(normal)} is off limits: it may not be read.")
        return normal

    def _hides(self, path: str) -> bool:
        return protected_name(path) is not None or self._is_hidden(path)


class _Reader:
    """Git commands on one tree. Paths are relative to `folder`, which is relative to the top."""

    def __init__(self, tree: TreeHistory, folder: str) -> None:
        users = tree.private_git.users_repository
        if users is None:
            raise ToolFailure(_NO_REPOSITORY)
        self._tree = tree
        self._folder = folder
        self._users = users
        self._ours = tree.private_git.repository(shallow=True)

    def diff(self, revision: str) -> list[str]:
        """By default, changes since the last commit; in a working copy, since it was made."""
        words = revision.split()
        if not words:
            start = self._tree.base or self._commit("HEAD", missing_is_empty=True)
            return ["diff", *_PATCH, start, self._tree.take_tree()]
        if len(words) == 1 and ".." in words[0]:
            # `a...b` starts where both sides were the same.
            start, dots, end = words[0].partition("..." if "..." in words[0] else "..")
            words = [start or "HEAD", end or "HEAD"]
            if dots == "...":
                ids = [self._commit(word) for word in words]
                return ["diff", *_PATCH, f"{ids[0]}...{ids[1]}"]
        if len(words) == 1:
            return ["diff", *_PATCH, self._commit(words[0]), self._tree.take_tree()]
        return ["diff", *_PATCH, self._commit(words[0]), self._commit(words[1])]

    def show(self, revision: str) -> list[str]:
        commit = self._commit(revision)
        return ["show", *_PATCH, "--diff-merges=first-parent", f"--format={_COMMIT}", commit]

    def log(self, revision: str, path: str | None) -> str:
        if ".." in revision:
            start, _, end = revision.partition("..")
            ids = [f"^{self._commit(start or 'HEAD')}", self._commit(end.strip(".") or "HEAD")]
        else:
            ids = [self._commit(revision or "HEAD", missing_is_empty=True)]
            if ids == [self._empty_tree]:
                return ""
        command = ["log", f"--max-count={MAX_COMMITS}", "--format=%h %as %an: %s", *ids]
        return self._text([*command, "--", self._from_top(path)])

    def show_file(self, revision: str, path: str) -> str:
        blob = f"{self._commit(revision)}:{self._from_top(path)}"
        data, _ = first_output(self._ours, ["cat-file", "blob", blob], max_bytes=MAX_BYTES)
        if b"\0" in data[:8192]:
            return "[Binary file, not shown.]"
        return self._text(["cat-file", "blob", blob]) or "[The file is empty.]"

    def blame(self, revision: str, path: str, start: int | None, end: int | None) -> str:
        commit = ""
        if revision:
            at = self._commit(revision)
        else:
            # A commit of the current files: lines that it added are not committed.
            before = self._commit("HEAD")
            git = self._tree.private_git
            at = commit = git.commit(self._tree.take_tree(), parents=[before])
        lines = f"-L{start or 1},{end or ''}".rstrip(",") if start or end else "-L1,"
        found, more = first_output(
            self._ours,
            ["blame", "--line-porcelain", lines, at, "--", self._from_top(path)],
            max_bytes=40 * MAX_BYTES,
        )
        return _blame_text(found.decode("utf-8", "replace"), commit, more)

    def changed_paths(self, command: Sequence[str], path: str | None) -> list[str]:
        name, *options = command
        names = [o for o in options if not o.startswith("--format")]
        listed, more = first_output(
            self._ours,
            [name, *(["--format="] if name == "show" else []), *names, "--name-only", "-z",
             "--no-renames", "--", self._from_top(path)],
            max_bytes=4_000_000,
        )  # fmt: skip
        if more:
            raise ToolFailure("Too many files were changed; name one with 'path'.")
        return [p for p in split_paths(listed) if p]

    def patch(self, command: Sequence[str], paths: Sequence[str]) -> str:
        return self._text([*command, "--stat", "--patch", "--", *paths])

    def relative(self, path: str) -> str:
        return os.path.relpath(path, self._folder)

    def _from_top(self, path: str | None) -> str:
        return os.path.normpath(os.path.join(self._folder, path or "."))

    def _text(self, command: Sequence[str]) -> str:
        data, more = first_output(self._ours, command, max_bytes=MAX_BYTES)
        text = data.decode("utf-8", "replace").rstrip("\n")
        if more:
            text = text.rpartition("\n")[0]
            text += f"\n[the first {MAX_BYTES:,} bytes; there is more: name one file with 'path']"
        return text

    @property
    def _empty_tree(self) -> str:
        return (
            self._tree.private_git.run(["hash-object", "-t", "tree", "-w", "--stdin"])
            .decode()
            .strip()
        )

    def _commit(self, revision: str, *, missing_is_empty: bool = False) -> str:
        """The commit that a name of the user's repository stands for."""
        if len(revision) > _MAX_REVISION_CHARS or not _REVISION.fullmatch(revision):
            raise ToolFailure(
                f"{revision[:80]!r} is no revision; use a commit, a branch, HEAD~2 or a..b."
            )
        found = run_git(self._users, ["rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"])
        if found.ok:
            return found.stdout.decode().strip()
        if revision == "HEAD":
            if missing_is_empty:
                return self._empty_tree  # There is no commit yet.
            raise ToolFailure("There is no commit yet.")
        raise ToolFailure(f"There is no revision {printable(revision)!r} in this repository.")


def _blame_text(porcelain: str, uncommitted: str, more: bool) -> str:
    """`abcdef12 Ann 2026-01-31 17: text` for each line."""
    shown: list[str] = []
    fields: dict[str, str] = {}
    size = 0
    for line in porcelain.split("\n"):
        if not line.startswith("\t"):
            word, _, value = line.partition(" ")
            if re.fullmatch("[0-9a-f]{40,64}", word):
                fields = {"commit": word, "line": value.split()[1]}
            else:
                fields[word] = value
            continue
        if fields["commit"] == uncommitted:
            who = "not committed"
        else:
            day = _day(int(fields.get("author-time", "0")))
            who = f"{fields['commit'][:8]} {fields.get('author', '?')} {day}"
        text = f"{who} {fields['line']}: {line[1:]}"
        size += len(text.encode()) + 1
        if size > MAX_BYTES:
            more = True
            break
        shown.append(text)
    if more:
        shown.append(f"[the first {len(shown):,} lines; there are more: use start and end]")
    return "\n".join(shown) or "[The file is empty.]"


def _day(seconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).date().isoformat()
