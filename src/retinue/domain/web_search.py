"""Which search provider the user has chosen."""

from __future__ import annotations

import msgspec


class SearchSettings(msgspec.Struct, frozen=True):
    """A search provider. Its repr shows no key."""

    provider: str
    url: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return f"SearchSettings({self.provider!r}, {self.url!r})"
