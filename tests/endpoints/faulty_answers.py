"""Faults for a test server: dropped connections, stalled replies, truncated JSON.

    faulty = FaultyAnswers(answer, drops=0.02, stalls=0.01, breaks=0.01, seed=7)
    async with ModelServer(faulty, slots=8) as server: ...

`seed` decides which requests fail. `given` counts how often each request was answered in full, so
that a test can assert that every request was answered, and none twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import msgspec

from retinue.models.scripted.model import ScriptedReply
from retinue.testing.server import Received, Response, ResponseEnding, events, streamed


class FaultyAnswers:
    """Answers like `answer`, except for a share of the requests, which get a fault."""

    def __init__(
        self,
        answer: Callable[[Received], ScriptedReply],
        *,
        drops: float = 0.0,
        stalls: float = 0.0,
        breaks: float = 0.0,
        work_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._answer = answer
        self._drops = drops
        self._stalls = stalls
        self._breaks = breaks
        self._work_s = work_s
        self._random = Random(seed)
        self.happened: Counter[str] = Counter()
        """How often each fault was given."""
        self.given: Counter[bytes] = Counter()
        """How often each request, by its body, was answered in full."""

    def __call__(self, request: Received) -> Response:
        response = msgspec.structs.replace(streamed(self._answer(request)), work_s=self._work_s)
        drawn = self._random.random()
        for name, share, troubled in (
            ("dropped", self._drops, self._dropped),
            ("stalled", self._stalls, self._stalled),
            ("broken", self._breaks, self._broken),
        ):
            if drawn < share:
                self.happened[name] += 1
                return troubled(response)
            drawn -= share
        self.given[request.body] += 1
        return response

    def _dropped(self, response: Response) -> Response:
        """Close the connection somewhere, possibly before the first byte."""
        if self._random.random() < 0.5:
            return msgspec.structs.replace(response, raw=b"", ending=ResponseEnding.DROP)
        return self._cut(response, ResponseEnding.DROP)

    def _stalled(self, response: Response) -> Response:
        if self._random.random() < 0.5:
            return msgspec.structs.replace(response, raw=b"", ending=ResponseEnding.HANG)
        return self._cut(response, ResponseEnding.HANG)

    def _cut(self, response: Response, ending: ResponseEnding) -> Response:
        # Well before the end: a reply is complete once its last word has arrived.
        at = self._random.randrange(len(response.body) * 3 // 4)
        return msgspec.structs.replace(response, body=response.body[:at], ending=ending)

    @staticmethod
    def _broken(response: Response) -> Response:
        return msgspec.structs.replace(response, body=events(b'{"choices": [{"delta": {"con'))
