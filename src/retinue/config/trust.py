"""Folder trust: what a project asks for beyond words, and what the user has said to it.

A project may narrow what the user allows, and say things. What starts programs or sends the user's
words elsewhere is a demand, and waits for the user's yes. The yes is for what was shown: a demand
that changes is another one. It is kept outside of the project, by the folder's real path.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from retinue.errors import ConfigError


class TrustRequest(msgspec.Struct, frozen=True):
    """One thing that a project asks for.

    `effect` say title it would do, for people to read; `content` makes it the same demand again.
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
        # A project chose the words, and they will be printed.
        return "".join(letter if letter.isprintable() else "?" for letter in text)


class TrustDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What the user has said about a folder: digests of demands, and when."""

    path: str
    trusted: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    time: float = 0.0


class TrustStore:
    """The decisions of one user, a file for each folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def decision(self, project: Path) -> TrustDecision:
        """What was said about a folder; nothing, if its file cannot be understood."""
        real = os.path.realpath(project)
        with suppress(OSError, msgspec.DecodeError):
            found = msgspec.json.decode(self._file(real).read_bytes(), type=TrustDecision)
            if found.path == real:
                return found
        return TrustDecision(path=real)

    def grant(self, project: Path, requests: Iterable[TrustRequest], *, now: float) -> None:
        """Remember a yes to these, in the place of all that was said before."""
        digests = tuple(sorted({request.digest for request in requests}))
        self._keep(TrustDecision(path=os.path.realpath(project), trusted=digests, time=now))

    def refuse(self, project: Path, requests: Iterable[TrustRequest], *, now: float) -> None:
        """Remember a no to these, so that nobody is asked again; what was granted stays."""
        before = self.decision(project)
        digests = tuple(sorted({*before.refused, *(request.digest for request in requests)}))
        self._keep(msgspec.structs.replace(before, refused=digests, time=now))

    def revoke(self, project: Path) -> bool:
        """Forget what was said about a folder; whether there was anything."""
        try:
            self._file(os.path.realpath(project)).unlink()
        except FileNotFoundError:
            return False
        return True

    def all(self) -> Sequence[TrustDecision]:
        found = []
        for file in self._directory.glob("*.json"):
            with suppress(OSError, msgspec.DecodeError):
                found.append(msgspec.json.decode(file.read_bytes(), type=TrustDecision))
        return sorted(found, key=lambda decision: decision.path)

    def _keep(self, decision: TrustDecision) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = self._file(decision.path)
            # All or nothing: a file that is cut short would be no decision.
            draft = path.with_suffix(f".{os.getpid()}")
            draft.write_bytes(msgspec.json.encode(decision))
            draft.replace(path)
        except OSError as error:
            raise ConfigError(
                f"{self._directory} cannot be written ({error.strerror});"
                " what you trust cannot be kept."
            ) from error

    def _file(self, real: str) -> Path:
        name = hashlib.sha256(os.fsencode(real)).hexdigest()[:32]
        return self._directory / f"{name}.json"
