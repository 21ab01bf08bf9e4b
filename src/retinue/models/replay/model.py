"""A model that answers as it was recorded, for tests, demonstrations and reports of bugs.

    ReplayModel.from_file("run.jsonl")

A request is known by what it says: its messages and its tools. Children ask in any order, so the
order of the recording counts only among equal requests, of which each agent is served its own
first. Three things in a request are not what is said, and may differ: the ids of agents, which
depend on who was created first; how long something took; and the tags of frames, which are made of
the text inside. Where ids differ, they are put right in the reply.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from retinue import errors
from retinue.domain.messages import Reply, Request
from retinue.domain.server_info import ServedModel
from retinue.errors import ModelError, ProviderError
from retinue.models.replay.recording import (
    Exchange,
    LoadedExchange,
    RecordedFailure,
    Recording,
    read_recording,
)
from retinue.models.replay.redaction import Redaction, map_texts
from retinue.ports.clock import Clock

_AGENT = re.compile(r"\ba\d+\b")
_VARYING = re.compile(
    r"\ba\d+\b"
    r"|(?<=[a-z]-)(?:[0-9a-f]{8})+\b"
    r"|\b\d[\d,]*(?:\.\d+)?(?= ?(?:ms|s|seconds?)\b)"
)
_SHOWN_CHARS = 60


class ReplayModel:
    """Serves each recorded exchange once. One that was given up by who asked is never answered.

    `redaction` knows the directory that is worked in. With a `clock`, everything takes as long as
    it took; without one, no time.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        name: str = "replay",
        redaction: Redaction | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._name = name
        self._redaction = redaction or Redaction()
        self._clock = clock
        self._missed: str | None = None
        self._served = recording.served
        self._candidates = [
            _Candidate(take, _NormalizedRequest(take.request, self._redaction))
            for take in recording.exchanges
        ]
        self._left: dict[bytes, list[_Candidate]] = {}
        for candidate in self._candidates:
            self._left.setdefault(candidate.said.fingerprint, []).append(candidate)

    @classmethod
    def from_file(
        cls, path: str | Path, *, directory: str | Path = ".", clock: Clock | None = None
    ) -> ReplayModel:
        """The recording in a file, for work in `directory`. Raises ConfigError."""
        redaction = Redaction(directory=str(Path(directory).resolve()))
        recording = read_recording(path)
        return cls(recording, name=f"replay:{path}", redaction=redaction, clock=clock)

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"ReplayModel({self._name!r})"

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        # Before the first await, so that concurrent askers take different exchanges.
        exchange, ids = self._taken(request)

        def here(value: Any) -> Any:
            return self._redaction.restore(map_texts(value, lambda text: _renamed(text, ids)))

        reply: Reply | None = None
        said = here(exchange.said)
        if exchange.reply is not None:
            reply = msgspec.convert(here(msgspec.to_builtins(exchange.reply)), Reply)
            said = reply.message.content
        await self._speak(exchange, said, on_text or _nobody)
        if exchange.failure is not None:
            raise self._error(exchange.failure, here)
        while reply is None:
            await (
                asyncio.Event().wait()
            )  # It was given up, so nobody knows how it would have ended.
        return reply

    def served(self, name: str) -> ServedModel | None:
        """What was said about the model that was called `name`, or else about the first."""
        return self._served.get(name) or next(iter(self._served.values()), None)

    def leftovers(self) -> list[str]:
        """The exchanges that nobody has asked for, in words."""
        left = [candidate.take for scenes in self._left.values() for candidate in scenes]
        left.sort(key=lambda take: take.line)
        return [f"line {take.line}, of {take.exchange.agent}" for take in left]

    async def aclose(self) -> None:
        pass

    def _taken(self, request: Request) -> tuple[Exchange, Mapping[str, str]]:
        """The exchange for this request; and what the agents in it are called here."""
        asked = _NormalizedRequest(request, self._redaction)
        left = self._left.get(asked.fingerprint, [])
        # The agent's own first; the sort is stable, so otherwise in the order of the recording.
        for candidate in sorted(left, key=lambda candidate: candidate.agent != request.agent_path):
            ids = _renaming(candidate.said.ids, asked.ids)
            if ids is not None:
                left.remove(candidate)
                return candidate.take.exchange, ids
        # Who misses something after that misses it because of the first, and need not say more.
        self._missed = self._missed or self._missing(asked, request.agent_path or "a program")
        raise ProviderError(self._missed)

    async def _speak(self, exchange: Exchange, said: str, on_text: Callable[[str], None]) -> None:
        begin, spoken_s = 0, 0.0
        for at_s, length in exchange.pieces:
            await self._pass(at_s - spoken_s)
            spoken_s = at_s
            on_text(said[begin : begin + length])
            begin += length
        # A mark is not as long as what it stands for.
        if begin < len(said):
            on_text(said[begin:])
        await self._pass(exchange.took_s - spoken_s)

    async def _pass(self, seconds: float) -> None:
        if self._clock is not None and seconds > 0:
            await self._clock.sleep(seconds)

    def _error(self, failure: RecordedFailure, here: Callable[[Any], Any]) -> ModelError:
        kind = getattr(errors, failure.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, ModelError)):
            kind = ProviderError
        error = kind(here(failure.message))
        vars(error).update(failure.fields)
        if self._clock is None:
            error.retry_after_s = None
        return error

    def _missing(self, asked: _NormalizedRequest, agent_path: str) -> str:
        """Why there is no exchange for a request."""
        if not self._candidates:
            return f"{self._name} holds no exchanges; record a run with --record."
        same = [
            candidate
            for candidate in self._candidates
            if candidate.said.fingerprint == asked.fingerprint
        ]
        if same and not self._left[asked.fingerprint]:
            why = (
                f"{agent_path} asks again for what was recorded {len(same)} times, lastly in line"
                f" {same[-1].take.line}"
            )
        else:
            nearest = max(
                self._candidates,
                key=lambda candidate: (
                    candidate.said.common_messages(asked),
                    candidate.agent == agent_path,
                ),
            )
            line = f"line {nearest.take.line}, of {nearest.agent}"
            difference = _difference(nearest.said, asked, line)
            why = f"{agent_path} asks what nobody asked there: {difference}"
        return (
            f"{self._name}: {why}. Replay it on the files that it was recorded with, or record it"
            " anew."
        )


class _NormalizedRequest:
    """What is said in a request, without what would tell one machine or moment from another."""

    def __init__(self, request: Request, redaction: Redaction) -> None:
        plain = redaction.redact(msgspec.to_builtins(request.messages))
        self.ids = [agent for text in _texts(plain) for agent in _AGENT.findall(text)]
        self.messages = map_texts(plain, lambda text: _VARYING.sub("#", text))
        tools = {tool.name: msgspec.json.encode(tool).decode() for tool in request.tools}
        self.tools = redaction.redact(tools)
        self.schema = redaction.redact(request.schema)
        said = msgspec.json.encode((self.messages, self.tools, self.schema))
        self.fingerprint = hashlib.sha256(said).digest()

    def common_messages(self, other: _NormalizedRequest) -> int:
        """How many messages both begin with."""
        return _shared(self.messages, other.messages)


class _Candidate(msgspec.Struct, frozen=True):
    take: LoadedExchange
    said: _NormalizedRequest

    @property
    def agent(self) -> str:
        return self.take.exchange.agent


def _renaming(recorded: Sequence[str], here: Sequence[str]) -> Mapping[str, str] | None:
    """What each recorded agent is called here; None if two would have to be one."""
    ids: dict[str, str] = {}
    for old, new in zip(recorded, here, strict=True):
        if ids.setdefault(old, new) != new:
            return None
    return ids if len(set(ids.values())) == len(ids) else None


def _renamed(text: str, ids: Mapping[str, str]) -> str:
    return _AGENT.sub(lambda found: ids.get(found[0], found[0]), text)


def _difference(recorded: _NormalizedRequest, asked: _NormalizedRequest, line: str) -> str:
    number = recorded.common_messages(asked)
    old, new = recorded.messages[number:], asked.messages[number:]
    if old and new:
        after, before = _told_apart(new[0], old[0])
        same = _shared(after, before)
        return (
            f"{_place(number, new[0])} is {_shown(after, same)}, and {_shown(before, same)} in"
            f" {line}"
        )
    if new:
        words = _shown(_words(new[0]))
        return f"{_place(number, new[0])} is {words}, and there is none in {line}"
    if old:
        words = _shown(_words(old[0]))
        return f"{_place(number, old[0])} is missing; it is {words} in {line}"
    names = sorted(
        name
        for name in {*recorded.tools, *asked.tools}
        if recorded.tools.get(name) != asked.tools.get(name)
    )
    if names:
        return f"the messages are those of {line}, and these tools are not: {', '.join(names)}"
    if recorded.schema != asked.schema:
        return f"the messages are those of {line}, and the output schema is not"
    return f"it speaks of {', '.join(asked.ids)} where {line} has {', '.join(recorded.ids)}"


def _place(number: int, message: dict[str, Any]) -> str:
    return f"message {number + 1} ({message['role']})"


def _told_apart(one: dict[str, Any], another: dict[str, Any]) -> tuple[str, str]:
    """Two messages as texts that differ."""
    if _words(one) != _words(another):
        return _words(one), _words(another)
    return msgspec.json.encode(one).decode(), msgspec.json.encode(another).decode()


def _words(message: dict[str, Any]) -> str:
    """What is said in a message, or else all there is to it."""
    return message.get("content") or msgspec.json.encode(message).decode()


def _shown(text: str, differs_at: int = 0) -> str:
    start = max(0, differs_at - _SHOWN_CHARS // 3)
    end = start + _SHOWN_CHARS
    return f"{'…' if start else ''}{text[start:end]!r}{'…' if end < len(text) else ''}"


def _shared(one: Sequence[Any], another: Sequence[Any]) -> int:
    """How many items both begin with."""
    pairs = zip(one, another, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from _texts(item)
        case list() | tuple():
            for item in value:
                yield from _texts(item)


def _nobody(text: str) -> None:
    pass
