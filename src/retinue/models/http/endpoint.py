"""The address of a model server, its key, and the settings of the connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

LOCAL_TIMEOUT_S = 120.0
# Models in the cloud think for minutes, and some of them send nothing meanwhile.
CLOUD_TIMEOUT_S = 900.0

_HIDDEN = "***"
ReadKey = Callable[[str | None], Awaitable[str]]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A model server, and one model on it. Its repr shows no secrets.

    `key_source` is where the user keeps the key, such as OPENAI_API_KEY; errors name it.
    `url_source` is the variable that decides about the address; None if a model name has it.
    `key_header` is one more header that carries the key. `read_key` gives a key that does not
    last: it is called with the key that was refused, or with None. `first_byte_timeout_s` limits
    every silence before the first token. It doubles with each retry, since a local machine may read
    a long prompt for minutes. `idle_timeout_s` limits every silence after it.
    """

    base_url: str
    model: str
    api_key: str | None = None
    key_source: str | None = None
    url_source: str | None = None
    key_header: str = ""
    read_key: ReadKey | None = None
    proxy: str | None = None
    ca_file: str | None = None
    connect_timeout_s: float = 10.0
    first_byte_timeout_s: float = LOCAL_TIMEOUT_S
    idle_timeout_s: float = LOCAL_TIMEOUT_S
    max_connections: int = 256

    @property
    def is_patient(self) -> bool:
        """Whether the server may be silent for longer than usual."""
        return max(self.first_byte_timeout_s, self.idle_timeout_s) > LOCAL_TIMEOUT_S

    @property
    def address(self) -> str:
        """The base URL without user name and password, as it may be shown."""
        return without_userinfo(self.base_url)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Endpoint({fields})"

    # rich uses this for structs instead of their repr.
    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = []
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if field == "api_key" and value is not None:
                value = _HIDDEN
            elif field in ("base_url", "proxy") and value is not None:
                value = without_userinfo(value)
            shown.append((field, value))
        return shown


def without_userinfo(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        # Not a URL at all: everything before the last @ may be a password.
        return url.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
