"""Report of a cleanup: what a project stores of one kind, and how much of it has expired."""

from __future__ import annotations

import msgspec

DAY_S = 24 * 3600.0


class CleanupReport(msgspec.Struct, frozen=True, kw_only=True):
    """`items` and `size_bytes` are the amounts before the cleanup.

    Expired items were removed, or with `dry_run` would be.
    """

    kind: str
    items: int = 0
    size_bytes: int = 0
    expired_items: int = 0
    expired_bytes: int = 0
    note: str = ""
    """Items that were kept although they are old, and the reason."""
