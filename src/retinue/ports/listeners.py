"""Callbacks through which a program follows what a runtime does."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from retinue.domain.events import Event


class Listeners(msgspec.Struct, frozen=True, kw_only=True):
    """Each is called on the event loop and must return quickly."""

    on_event: Callable[[Event], None] | None = None
    """Every event of every run, as it happens."""
    on_text: Callable[[str], None] | None = None
    """Text of a root agent's model, as it arrives. An empty text means that the model is alive."""
    on_child_text: Callable[[str, str, str], None] | None = None
    """The same for children: (run id, agent id, text)."""
    on_wait: Callable[[str], None] | None = None
    """What the opening of the runtime waits for, if that may take a while."""
