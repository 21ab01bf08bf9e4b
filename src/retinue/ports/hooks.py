"""Hooks: programs and functions that run on events of an agent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import msgspec

from retinue.domain.events import Fact
from retinue.domain.grant import Access
from retinue.domain.hook import HookAnswer, HookEvent
from retinue.domain.messages import Message
from retinue.errors import UsageError

HookFunction = Callable[[dict[str, Any]], Any]
"""A hook in Python: takes the input, and returns None or an answer as a dict, also as awaitable."""


class HookCall(msgspec.Struct, frozen=True, kw_only=True):
    """One event, for the hooks that match it."""

    event: HookEvent
    names: tuple[str, ...] = ()
    """Names that matchers are compared with: of the tool, or the kind of the event."""
    input: Mapping[str, Any]
    """Fields that hooks get on standard input, without those that every event has."""
    session: str
    effort: str = ""
    messages: tuple[Message, ...] = ()
    """The conversation, for events whose hooks may read it."""
    access: Access | None = None
    """What the agent may do to its files: a project's hooks may not do more."""
    record: Callable[[Fact], object]


class Hooks(Protocol):
    @property
    def events(self) -> Collection[HookEvent]:
        """Events that have hooks. Callers look here first: other events cost nothing."""
        ...

    def add_function(self, event: HookEvent, matcher: str, function: HookFunction) -> None:
        """Run a function on an event, after all hooks that were added before."""
        ...

    async def run(self, call: HookCall) -> HookAnswer:
        """Run the hooks that match, one after the other, and record each. Never raises."""
        ...

    def begin_session(self, end: HookCall) -> bool:
        """Register a session, with the call for its end. False if it is already registered."""
        ...


class NoHooks:
    """For runtimes without hooks."""

    events: Collection[HookEvent] = frozenset()

    def add_function(self, event: HookEvent, matcher: str, function: HookFunction) -> None:
        raise UsageError("This runtime was made without hooks; `open_runtime` makes one with them.")

    async def run(self, call: HookCall) -> HookAnswer:
        return HookAnswer()

    def begin_session(self, end: HookCall) -> bool:
        return False
