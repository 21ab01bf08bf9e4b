"""The files of one agent, as its file tools see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import msgspec

from retinue.domain.grant import Access, Network
from retinue.domain.result import FileChange
from retinue.domain.scope import Scope


class DirEntry(msgspec.Struct, frozen=True, gc=False):
    """One name in a folder. `kind` is file, dir, link or other."""

    name: str
    kind: str
    size_bytes: int = 0


class SearchMatch(msgspec.Struct, frozen=True, gc=False):
    path: str
    line: int
    text: str


class GitQuery(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A question about the history. `revision` is a commit, a branch, or two of them: `a..b`."""

    what: Literal["diff", "log", "show", "blame"]
    revision: str | None = None
    path: str | None = None
    start: int | None = None
    end: int | None = None


class CodeQuery(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A question about the code below `path`. `name` is for `find_symbol` only."""

    what: Literal["overview", "find_symbol", "docs_coverage"]
    path: str = "."
    name: str = ""
    max_tokens: int = 1_000


class Workspace(Protocol):
    """The files that an agent works on. Paths are relative and never leave the root.

    Failures raise ToolFailure with a message for the model. Methods block; callers that must not
    wait run them in a thread.
    """

    @property
    def root(self) -> str: ...

    def access(self, write_scope: Scope, network: Network = Network.NONE) -> Access:
        """The access of an agent that works in this workspace."""
        ...

    def inside(self, path: str) -> str | None:
        """The normalized path; None if it leads outside.

        This is the path that is opened, so it is the one to check against a write scope.
        """
        ...

    def read(self, path: str, *, max_bytes: int) -> bytes: ...

    def read_now(self, path: str, *, max_bytes: int) -> bytes | None:
        """The file if it can be read without waiting for a disk or a network, else None."""
        ...

    def list_now(self, path: str) -> Sequence[DirEntry] | None:
        """The directory if it can be listed without waiting, else None."""
        ...

    def list(self, path: str) -> Sequence[DirEntry]: ...

    def find(self, pattern: str, *, under: str, limit: int) -> tuple[Sequence[str], bool]:
        """Files whose path matches a glob, sorted; and whether there are more."""
        ...

    def search(
        self, pattern: str, *, under: str, glob: str | None, limit: int
    ) -> tuple[Sequence[SearchMatch], bool]:
        """Lines that match a regular expression; and whether there are more."""
        ...

    def fingerprint(self, under: str) -> str:
        """A hash that changes when a searchable file is added, removed or modified."""
        ...

    def changed_after(self, time: float) -> Sequence[tuple[str, float]]:
        """Searchable files that were changed after `time`, sorted, and when."""
        ...

    def missing(self, paths: Iterable[str]) -> Sequence[str]:
        """The `paths` that do not exist, in the same order."""
        ...

    async def code(self, query: CodeQuery) -> str:
        """Answer from the index of the code, which is brought up to date first."""
        ...

    def git(self, query: GitQuery) -> str:
        """Read the history of the repository, or the changes since its last commit."""
        ...

    def write(self, path: str, data: bytes) -> FileChange: ...

    def record_later_change(self, path: str, before: bytes) -> None:
        """If a file has changed since it had the bytes `before`, record that like a write."""
        ...
