"""Folder trust: what a project requests, and what the user has decided about it.

Whatever starts a program or sends the user's data elsewhere is a request, and needs the user's
approval. An approval is for what was shown: a request that changes is a new request. Decisions are
stored outside of the project, by the folder's real path.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from retinue.errors import ConfigError

NOT_TRUSTED = "this folder is not trusted; `retinue trust` allows it"


class TrustRequest(msgspec.Struct, frozen=True):
    """One thing that a project asks for.

    `effect` describes it to the user. `content` identifies it: equal content is the same request.
    """

    kind: str
    name: str
    source: str
    effect: str
    content: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.kind.encode() + b"\0" + self.content).hexdigest()

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"

    def __str__(self) -> str:
        text = f"{self.title} ({self.source}): it {self.effect}"
        # The author of the project chose the text, and it is printed to a terminal.
        return "".join(letter if letter.isprintable() else "?" for letter in text)


class TrustDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The user's decision about a folder, as digests of requests."""

    path: str
    trusted: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    time: float = 0.0


class TrustStore:
    """The decisions of one user, in one file for each folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def decision(self, project: Path) -> TrustDecision:
        """Decision about a folder; an empty one if there is none or its file is invalid."""
        real = os.path.realpath(project)
        with suppress(OSError, msgspec.DecodeError):
            found = msgspec.json.decode(self._file(real).read_bytes(), type=TrustDecision)
            if found.path == real:
                return found
        return TrustDecision(path=real)

    def grant(self, project: Path, requests: Iterable[TrustRequest], *, now: float) -> None:
        """Store an approval of these requests. It replaces any earlier decision."""
        digests = tuple(sorted({request.digest for request in requests}))
        self._store(TrustDecision(path=os.path.realpath(project), trusted=digests, time=now))

    def refuse(self, project: Path, requests: Iterable[TrustRequest], *, now: float) -> None:
        """Store a refusal, so that the user is not asked again. Earlier approvals stay."""
        before = self.decision(project)
        digests = tuple(sorted({*before.refused, *(request.digest for request in requests)}))
        self._store(msgspec.structs.replace(before, refused=digests, time=now))

    def extend_to_copy(self, project: Path, copy: Path) -> None:
        """Let the decision about a folder hold for a copy of it too."""
        self._store(msgspec.structs.replace(self.decision(project), path=os.path.realpath(copy)))

    def revoke(self, project: Path) -> bool:
        """Delete the decision about a folder. Return whether there was one."""
        try:
            self._file(os.path.realpath(project)).unlink()
        except FileNotFoundError:
            return False
        return True

    def last_agent_write(self, project: Path) -> str:
        """A text that is another one after each `record_agent_write`."""
        try:
            return self._writes_file(project).read_text("ascii")
        except OSError:
            # From now on, writes are recorded.
            return self._new_write(project)

    def record_agent_write(self, project: Path) -> None:
        """Record that an agent is about to change files, if `last_agent_write` was ever asked."""
        if self._writes_file(project).exists():
            self._new_write(project)

    def _new_write(self, project: Path) -> str:
        text = secrets.token_hex(8)
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._writes_file(project).write_text(text, "ascii")
        except OSError as error:
            raise ConfigError(
                f"{self._directory} cannot be written ({error.strerror}); programs of the project"
                " that you trust could be changed unnoticed."
            ) from error
        return text

    def all(self) -> Sequence[TrustDecision]:
        found = []
        for file in self._directory.glob("*.json"):
            with suppress(OSError, msgspec.DecodeError):
                found.append(msgspec.json.decode(file.read_bytes(), type=TrustDecision))
        return sorted(found, key=lambda decision: decision.path)

    def _store(self, decision: TrustDecision) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = self._file(decision.path)
            # Atomic: a truncated file would be an invalid decision.
            draft = path.with_suffix(f".{os.getpid()}")
            draft.write_bytes(msgspec.json.encode(decision))
            draft.replace(path)
        except OSError as error:
            raise ConfigError(
                f"{self._directory} cannot be written ({error.strerror});"
                " your decision cannot be stored."
            ) from error

    def _writes_file(self, project: Path) -> Path:
        return self._file(os.path.realpath(project)).with_suffix(".writes")

    def _file(self, real: str) -> Path:
        name = hashlib.sha256(os.fsencode(real)).hexdigest()[:32]
        return self._directory / f"{name}.json"
