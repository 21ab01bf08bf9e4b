"""A model that answers as it was recorded, for tests, demonstrations and bug reports.

    ReplayModel.from_file("run.jsonl")

A request is matched by its content: messages, tools and output schema. Children ask in any order:
the order of the recording counts only among equal requests, of which each agent is served its own
first. Three things may differ: ids of agents, which depend on the order of creation; durations; and
the tags of frames, which are derived from the text inside. Where ids differ, the reply is adapted.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import unified_diff
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
    map_images,
    read_recording,
    with_hash,
)
from retinue.models.replay.redaction import Redaction, map_texts
from retinue.ports.clock import Clock

_AGENT = re.compile(r"\ba\d+\b")
_VARYING = re.compile(
    r"\ba\d+\b"
    r"|(?<=[a-z]-)(?:[0-9a-f]{8})+\b"
    r"|\b\d[\d,]*(?:\.\d+)?(?= ?(?:ms|s|seconds?)\b)"
    r"|\b\d[\d,]*(?= tokens\b)"  # Estimated counts depend on the length of the directory's name.
)
_SHOWN_CHARS = 60
_DIFF_LINES = 12


class ReplayModel:
    """Serves each recorded exchange once. An exchange that was cancelled is never answered.

    `redaction` knows the project's directory. With a `clock`, replies take as long as they took;
    without one, no time. With `accept_differences`, a request that is not recorded gets the next
    reply of its agent, and `answered` has all exchanges with the requests as they are now.

    ```python
    model = ScriptedModel([say("Hi.")])
    async with retinue.open(".", model=model, record=".retinue/greeting.jsonl") as rt:
        await rt.run("Greet me.")
    replayed = retinue.ReplayModel.from_file(".retinue/greeting.jsonl")
    async with retinue.open(".", model=replayed) as rt:
        assert (await rt.run("Greet me.")).response == "Hi."
    ```
    """

    def __init__(
        self,
        recording: Recording,
        *,
        name: str = "replay",
        redaction: Redaction | None = None,
        clock: Clock | None = None,
        accept_differences: bool = False,
    ) -> None:
        self.name = name
        self.answered: list[tuple[Exchange, Request]] = []
        """The exchanges that were served, each with the request that it answered."""
        self._accept_differences = accept_differences
        self._redaction = redaction or Redaction()
        self._clock = clock
        self.first_mismatch: Mismatch | None = None
        """The first request that is not in the recording."""
        self.out_of_replies = False
        """Whether an agent asked more often than it was recorded, despite `accept_differences`."""
        self._served = recording.served
        self._candidates = [
            _Candidate(loaded, _NormalizedRequest(loaded.request, self._redaction))
            for loaded in recording.exchanges
        ]
        self._unused: dict[bytes, list[_Candidate]] = {}
        for candidate in self._candidates:
            self._unused.setdefault(candidate.normalized.fingerprint, []).append(candidate)

    @classmethod
    def from_file(
        cls, path: str | Path, *, directory: str | Path = ".", clock: Clock | None = None
    ) -> ReplayModel:
        """Replay the recording in a file, for a project in `directory`. Raises ConfigError."""
        redaction = Redaction(directory=str(Path(directory).resolve()))
        recording = read_recording(path)
        return cls(recording, name=f"replay:{path}", redaction=redaction, clock=clock)

    async def reply(self, request: Request, on_text: Callable[[str], None] | None = None) -> Reply:
        # Before the first await, so that concurrent requests take different exchanges.
        exchange, ids = self._take_exchange(request)

        def to_local(value: Any) -> Any:
            return self._redaction.restore(map_texts(value, lambda text: _rename_ids(text, ids)))

        reply: Reply | None = None
        said = to_local(exchange.said)
        if exchange.reply is not None:
            reply = msgspec.convert(to_local(msgspec.to_builtins(exchange.reply)), Reply)
            said = reply.message.content
        self.answered.append((msgspec.structs.replace(exchange, reply=reply), request))
        await self._stream(exchange, said, on_text or (lambda _: None))
        if exchange.failure is not None:
            raise self._error(exchange.failure, to_local)
        while reply is None:
            # The recorded call was cancelled, so its end is unknown.
            await asyncio.Event().wait()
        return reply

    def served(self, name: str) -> ServedModel | None:
        """The server's description of a model, or else of the first model of the recording."""
        return self._served.get(name) or next(iter(self._served.values()), None)

    def leftovers(self) -> list[str]:
        """Describes the exchanges that were not asked for."""
        unused = [
            candidate.loaded for candidates in self._unused.values() for candidate in candidates
        ]
        unused.sort(key=lambda loaded: loaded.line)
        return [f"line {loaded.line}, of {loaded.exchange.agent}" for loaded in unused]

    async def aclose(self) -> None:
        pass

    def _take_exchange(self, request: Request) -> tuple[Exchange, Mapping[str, str]]:
        """Take the exchange for this request. Also returns the local ids of its agents."""
        asked = _NormalizedRequest(request, self._redaction)
        unused = self._unused.get(asked.fingerprint, [])
        # The agent's own first; the sort is stable, so otherwise in the order of the recording.
        for candidate in sorted(
            unused, key=lambda candidate: candidate.agent != request.agent_path
        ):
            ids = _match_ids(candidate.normalized.ids, asked.ids)
            if ids is not None:
                unused.remove(candidate)
                return candidate.loaded.exchange, ids
        # Later mismatches follow from the first one, so they report the first.
        self.first_mismatch = self.first_mismatch or self._mismatch(
            asked, request.agent_path or "a program"
        )
        if self._accept_differences:
            if (own := self._next_of(request.agent_path)) is not None:
                return own, {}
            self.out_of_replies = True
        if not self._candidates:
            raise ProviderError(f"{self.name} holds no exchanges; record a run with --record.")
        raise ProviderError(
            f"{self.name}: {self.first_mismatch.reason}. Replay it on the files that it was"
            " recorded with, or record it again."
        )

    def _next_of(self, agent_path: str) -> Exchange | None:
        """Take the first exchange of an agent that was not asked for."""
        for candidate in self._candidates:
            unused = self._unused[candidate.normalized.fingerprint]
            if candidate.agent == agent_path and candidate in unused:
                unused.remove(candidate)
                return candidate.loaded.exchange
        return None

    async def _stream(self, exchange: Exchange, said: str, on_text: Callable[[str], None]) -> None:
        begin, spoken_s = 0, 0.0
        for at_s, length in exchange.pieces:
            await self._sleep(at_s - spoken_s)
            spoken_s = at_s
            on_text(said[begin : begin + length])
            begin += length
        # A redaction mark and the text it stands for differ in length.
        if begin < len(said):
            on_text(said[begin:])
        await self._sleep(exchange.took_s - spoken_s)

    async def _sleep(self, seconds: float) -> None:
        if self._clock is not None and seconds > 0:
            await self._clock.sleep(seconds)

    def _error(self, failure: RecordedFailure, to_local: Callable[[Any], Any]) -> ModelError:
        kind = getattr(errors, failure.kind, None)
        if not (isinstance(kind, type) and issubclass(kind, ModelError)):
            kind = ProviderError
        error = kind(to_local(failure.message))
        vars(error).update(failure.fields)
        if self._clock is None:
            error.retry_after_s = None
        return error

    def _mismatch(self, asked: _NormalizedRequest, agent_path: str) -> Mismatch:
        """Explains why there is no exchange for a request."""
        if not self._candidates:
            return Mismatch(f"{agent_path} sent a request, and no exchange is recorded")
        same = [
            candidate
            for candidate in self._candidates
            if candidate.normalized.fingerprint == asked.fingerprint
        ]
        if same and not self._unused[asked.fingerprint]:
            return Mismatch(
                f"{agent_path} sent a request more often than it was recorded ({len(same)} times,"
                f" last in line {same[-1].loaded.line})"
            )
        nearest = max(
            self._candidates,
            key=lambda candidate: (
                _common_length(candidate.normalized.messages, asked.messages),
                candidate.agent == agent_path,
            ),
        )
        line = f"line {nearest.loaded.line}, of {nearest.agent}"
        difference = _describe_difference(nearest.normalized, asked, line)
        return Mismatch(
            f"{agent_path} sent a request that is not recorded: {difference}",
            _diff(nearest.normalized, asked),
        )


class Mismatch(msgspec.Struct, frozen=True):
    """A request that is not recorded: which one and why, and a diff of the first message."""

    reason: str
    diff: tuple[str, ...] = ()


class _NormalizedRequest:
    """A request without what depends on the machine or the moment."""

    def __init__(self, request: Request, redaction: Redaction) -> None:
        messages = map_images(request.messages, with_hash)
        plain = redaction.redact(msgspec.to_builtins(messages))
        self.ids: list[str] = []
        self.messages = map_texts(plain, self._normalize)
        tools = {tool.name: msgspec.json.encode(tool).decode() for tool in request.tools}
        self.tools = redaction.redact(tools)
        self.schema = redaction.redact(request.schema)
        said = msgspec.json.encode((self.messages, self.tools, self.schema))
        self.fingerprint = hashlib.sha256(said).digest()

    def _normalize(self, text: str) -> str:
        self.ids += _AGENT.findall(text)
        return _VARYING.sub("#", text)


class _Candidate(msgspec.Struct, frozen=True):
    loaded: LoadedExchange
    normalized: _NormalizedRequest

    @property
    def agent(self) -> str:
        return self.loaded.exchange.agent


def _match_ids(recorded: Sequence[str], local: Sequence[str]) -> Mapping[str, str] | None:
    """The local id of each recorded agent; None if the ids cannot be matched one to one."""
    ids: dict[str, str] = {}
    for old, new in zip(recorded, local, strict=True):
        if ids.setdefault(old, new) != new:
            return None
    return ids if len(set(ids.values())) == len(ids) else None


def _rename_ids(text: str, ids: Mapping[str, str]) -> str:
    return _AGENT.sub(lambda found: ids.get(found[0], found[0]), text)


def _describe_difference(recorded: _NormalizedRequest, asked: _NormalizedRequest, line: str) -> str:
    number = _common_length(recorded.messages, asked.messages)
    old, new = recorded.messages[number:], asked.messages[number:]
    if old and new:
        after, before = _distinct_texts(new[0], old[0])
        same = _common_length(after, before)
        return (
            f"{_describe_position(number, new[0])} is {_excerpt(after, same)},"
            f" and {_excerpt(before, same)} in {line}"
        )
    if new:
        words = _excerpt(_text_of(new[0]))
        return f"{_describe_position(number, new[0])} is {words}, and there is none in {line}"
    if old:
        words = _excerpt(_text_of(old[0]))
        return f"{_describe_position(number, old[0])} is missing; it is {words} in {line}"
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


def _diff(recorded: _NormalizedRequest, asked: _NormalizedRequest) -> tuple[str, ...]:
    """The lines that differ in the first message that does, at most `_DIFF_LINES`."""
    number = _common_length(recorded.messages, asked.messages)
    before, after = (
        _text_of(messages[number]) if number < len(messages) else ""
        for messages in (recorded.messages, asked.messages)
    )
    lines = list(unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[2:]
    changed = [line for line in lines if not line.startswith("@@")]
    return (*changed[:_DIFF_LINES], *(["…"] if len(changed) > _DIFF_LINES else []))


def _describe_position(number: int, message: dict[str, Any]) -> str:
    return f"message {number + 1} ({message['role']})"


def _distinct_texts(one: dict[str, Any], another: dict[str, Any]) -> tuple[str, str]:
    """Two messages as texts that differ."""
    if _text_of(one) != _text_of(another):
        return _text_of(one), _text_of(another)
    return msgspec.json.encode(one).decode(), msgspec.json.encode(another).decode()


def _text_of(message: dict[str, Any]) -> str:
    """The content of a message, or else the whole message as JSON."""
    return message.get("content") or msgspec.json.encode(message).decode()


def _excerpt(text: str, differs_at: int = 0) -> str:
    start = max(0, differs_at - _SHOWN_CHARS // 3)
    end = start + _SHOWN_CHARS
    return f"{'…' if start else ''}{text[start:end]!r}{'…' if end < len(text) else ''}"


def _common_length(one: Sequence[Any], another: Sequence[Any]) -> int:
    """How many items at the beginning are equal."""
    pairs = zip(one, another, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
