"""The environment, read once and in one place. Nothing else in retinue looks at os.environ."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

# What a command may see of the user's environment. Everything else stays outside: keys, tokens,
# sockets of agents.
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "TZ", "TMPDIR", "USER", "SHELL")


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """`variables` never appears in a repr: it holds keys."""

    variables: Mapping[str, str]

    @classmethod
    def current(cls) -> Environment:
        return cls(variables=dict(os.environ))

    def __repr__(self) -> str:
        return f"Environment({len(self.variables)} variables)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("variables", len(self.variables))]

    def get(self, name: str) -> str | None:
        """A variable's value; an empty one counts as unset."""
        return self.variables.get(name) or None

    @property
    def home(self) -> Path:
        return Path(self.get("HOME") or Path.home())

    @property
    def config_home(self) -> Path:
        base = self.get("XDG_CONFIG_HOME")
        return Path(base) if base else self.home / ".config"

    @property
    def user_settings(self) -> Path:
        return self.config_home / "retinue" / "config.toml"

    def shown(self, path: Path) -> str:
        """A path as people write it, with ~ for their home."""
        home = self.home
        return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)

    @property
    def ca_file(self) -> str | None:
        return self.get("SSL_CERT_FILE") or self.get("REQUESTS_CA_BUNDLE")

    def proxy_for(self, url: str) -> str | None:
        """The proxy to use for `url`, by the usual variables and NO_PROXY."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        # Sorted, so that the lower-case name of a variable counts if both are set.
        pairs = sorted(self.variables.items())
        names = {k.lower(): v for k, v in pairs if k.lower().endswith("_proxy")}
        proxies = {k.removesuffix("_proxy"): v for k, v in names.items() if v}
        if "REQUEST_METHOD" in self.variables:
            proxies.pop("http", None)  # In CGI, HTTP_PROXY is set by a request header.
        proxy = proxies.get(parts.scheme) or proxies.get("all")
        if proxy is None or host in ("localhost", "127.0.0.1", "::1"):
            return None
        netloc = host if parts.port is None else f"{host}:{parts.port}"
        if urllib.request.proxy_bypass_environment(netloc, proxies):  # type: ignore[attr-defined]
            return None
        return proxy

    def passed_on(self) -> dict[str, str]:
        return {k: v for k in PASSED_ON if (v := self.get(k)) is not None}
