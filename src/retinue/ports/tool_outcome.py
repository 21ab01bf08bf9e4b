"""What a tool call did."""

from __future__ import annotations

import msgspec

from retinue.domain.result import FileChange


class ToolOutcome(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a tool did: the text for the model, and the facts for the receipt."""

    content: str
    ok: bool = True
    acted: bool = False
    """Whether it did what was asked, although that came to nothing: sending it again may help."""
    read: tuple[str, ...] = ()
    changed: tuple[FileChange, ...] = ()
    before_sha256: str | None = None
    after_sha256: str | None = None
    command: str | None = None
    exit_code: int | None = None
    about: tuple[str, ...] = ()
    """The children in the background whose end it tells of."""
    untrusted: bool = False
    """Whether the text is somebody else's: from the network, or a tool that nobody vouches for."""
