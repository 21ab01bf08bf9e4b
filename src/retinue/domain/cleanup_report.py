"""Something that is kept for a while, and of which a part may go."""

from __future__ import annotations

import msgspec


class Chore(msgspec.Struct, frozen=True, kw_only=True):
    """`items` and `size_bytes` are what there was of it, and the rest what has gone or may go."""

    name: str
    items: int = 0
    size_bytes: int = 0
    old_items: int = 0
    old_bytes: int = 0
    note: str = ""
    """What was left although it is old, and why."""
