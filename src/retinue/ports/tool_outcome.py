"""Result of a tool call."""

from __future__ import annotations

import msgspec

from retinue.domain.result import FileChange


class ToolOutcome(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a tool did: the text for the model, and the facts for the receipt."""

    content: str
    ok: bool = True
    acted: bool = False
    """Whether the tool did act although `ok` is False, so that the same call again makes sense."""
    read: tuple[str, ...] = ()
    changed: tuple[FileChange, ...] = ()
    before_sha256: str | None = None
    after_sha256: str | None = None
    command: str | None = None
    exit_code: int | None = None
    about: tuple[str, ...] = ()
    """Background children whose results the text delivers."""
    untrusted: bool = False
    """Whether the text comes from the network or from a tool that the user has not vouched for."""
