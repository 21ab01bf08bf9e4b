"""Whoever says nothing for too long is not waited for."""

from __future__ import annotations

import asyncio

# Who looks so much later than it should was kept from it: the process was stopped, or something
# blocked the loop. What has come meanwhile is not read yet, so that time is nobody's silence.
_LAPSE_S = 0.5
_NEVER = float("inf")


class Silence:
    """How long somebody may still say nothing. Whose task waits for them is cancelled then."""

    __slots__ = ("_others", "_task", "_watch", "broken", "heard_of", "until", "within_s")

    def __init__(self, watch: Watch, task: asyncio.Task[object], within_s: float) -> None:
        self._watch = watch
        self._task = task
        self._others = task.cancelling()
        self.within_s = within_s
        self.until = _NEVER
        self.broken = False
        self.heard_of = False
        """Whether anything was heard at all."""

    def heard(self, within_s: float) -> None:
        """They said something; so many seconds may pass until they say more."""
        self.heard_of = True
        self.within_s = within_s
        self._watch.begin_anew(self)

    def end(self) -> None:
        """Nothing more is waited for."""
        self._watch.forget(self)

    def give_up(self) -> None:
        self.broken = True
        self._task.cancel()

    def was_it(self) -> bool:
        """Whether it alone has cancelled the task; somebody else may have at the same time."""
        return self.broken and self._task.uncancel() <= self._others


class Watch:
    """Any number of silences, with one timer for all of them.

    What `asyncio.timeout` does, but that it knows of lapses, in which nobody was silent, and that
    it costs a fan-out a fiftieth less: nearly every answer comes in time, and the timer of one
    question does for the next.
    """

    def __init__(self) -> None:
        self._silences: set[Silence] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = _NEVER

    def begin(self, within_s: float) -> Silence:
        """Cancel the task that calls this after so many seconds, if nothing is heard before."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._timer, self._looks_at = loop, None, _NEVER
        task = asyncio.current_task(loop)
        assert task is not None
        silence = Silence(self, task, within_s)
        self._silences.add(silence)
        self.begin_anew(silence)
        return silence

    def begin_anew(self, silence: Silence) -> None:
        assert self._loop is not None
        silence.until = self._loop.time() + silence.within_s
        if silence.until < self._looks_at:
            self._look_at(silence.until)

    def forget(self, silence: Silence) -> None:
        self._silences.discard(silence)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._looks_at = None, _NEVER

    def _look_at(self, moment: float) -> None:
        assert self._loop is not None
        self.close()
        self._looks_at = moment
        self._timer = self._loop.call_at(moment, self._look)

    def _look(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        lapsed = now - self._looks_at > _LAPSE_S
        self.close()
        due = [silence for silence in self._silences if silence.until <= now]
        if lapsed:
            for silence in due:
                silence.until = now + silence.within_s
        elif due:
            # Once whoever has just been woken by what came has read it.
            self._loop.call_soon(self._break, due, now)
        pending = [silence.until for silence in self._silences if silence.until > now]
        if pending:
            self._look_at(min(pending))

    def _break(self, due: list[Silence], now: float) -> None:
        for silence in due:
            if silence in self._silences and silence.until <= now:
                self._silences.discard(silence)
                silence.give_up()
