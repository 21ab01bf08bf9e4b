"""The environment variables, read once. No other module reads os.environ."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

# Words in the name of a variable that mark its value as a secret.
_SECRET_WORDS = frozenset(
    {"KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASS", "PASSPHRASE", "CREDENTIALS"}
)
_MIN_SECRET_CHARS = 8  # Shorter values occur in too many other words.
# Variables that commands of agents get. All others stay outside: keys, tokens, agent sockets.
COMMAND_VARIABLES = (
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "TZ", "TMPDIR", "USER", "SHELL",
)  # fmt: skip
# Variables that MCP servers get besides: where packages are kept, and how they are fetched.
MCP_SERVER_VARIABLES = (
    "LOGNAME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The variables of a process. Their values never appear in a repr: some are keys.

    ```python
    environment = retinue.Environment(variables={"HOME": "/home/ada", "EDITOR": ""})
    assert environment.get("EDITOR") is None
    assert "ada" not in repr(environment)
    ```
    """

    variables: Mapping[str, str]

    @classmethod
    def current(cls) -> Environment:
        """The variables of this process, or those that `replaced_variables` puts in place."""
        return _replaced.get() or cls(variables=dict(os.environ))

    def __repr__(self) -> str:
        return f"Environment({len(self.variables)} variables)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("variables", len(self.variables))]

    def get(self, name: str) -> str | None:
        """Value of a variable; an empty value counts as unset."""
        return self.variables.get(name) or None

    @property
    def home(self) -> Path:
        """The home directory."""
        return Path(self.get("HOME") or Path.home())

    def _base_dir(self, variable: str, default: str) -> Path:
        return Path(self.get(variable) or self.home / default)

    @property
    def config_home(self) -> Path:
        """Folder of the user's settings of all programs."""
        return self._base_dir("XDG_CONFIG_HOME", ".config")

    @property
    def user_settings_file(self) -> Path:
        """The user's own settings."""
        return self.config_home / "retinue" / "config.toml"

    def display_path(self, path: Path) -> str:
        """`path` with ~ for the home directory."""
        home = self.home
        return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)

    @property
    def trust_dir(self) -> Path:
        """Folder of the user's trust decisions."""
        return self.state_dir / "trust"

    @property
    def state_dir(self) -> Path:
        """Folder for the user's decisions, such as trust."""
        return self._base_dir("XDG_STATE_HOME", ".local/state") / "retinue"

    @property
    def key_file(self) -> Path:
        """The key that seals runs; users who share a journal share a key."""
        return Path(self.get("RETINUE_KEY_FILE") or self.state_dir / "key")

    @property
    def cache_dir(self) -> Path:
        """Folder for what can be made again."""
        return self._base_dir("XDG_CACHE_HOME", ".cache") / "retinue"

    @property
    def embedded_dir(self) -> Path:
        """Folder of the embedded model's weights and of its server's address."""
        return self.cache_dir / "embedded"

    @property
    def ca_file(self) -> str | None:
        """File with the certificates to trust, if a variable names one."""
        return self.get("SSL_CERT_FILE") or self.get("REQUESTS_CA_BUNDLE")

    def proxy_for(self, url: str) -> str | None:
        """Proxy for `url`, from the usual variables and NO_PROXY."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        # Sorted: if a variable is set in both cases, the lower-case name comes last and wins.
        pairs = sorted(self.variables.items())
        names = {k.lower(): v for k, v in pairs if k.lower().endswith("_proxy")}
        proxies = {k.removesuffix("_proxy"): v for k, v in names.items() if v}
        if "REQUEST_METHOD" in self.variables:
            proxies.pop("http", None)  # In CGI, a request header sets HTTP_PROXY.
        proxy = proxies.get(parts.scheme) or proxies.get("all")
        if proxy is None or host in ("localhost", "127.0.0.1", "::1"):
            return None
        # Imported here because it loads an HTTP client and the e-mail parsers.
        from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

        netloc = host if parts.port is None else f"{host}:{parts.port}"
        if proxy_bypass_environment(netloc, proxies):
            return None
        return proxy

    def for_commands(self) -> dict[str, str]:
        """Variables that commands of agents get."""
        return {k: v for k in COMMAND_VARIABLES if (v := self.get(k)) is not None}

    def for_mcp_servers(self) -> dict[str, str]:
        """Variables that every MCP server gets. Proxies with a password are left out."""
        found = {k: v for k in MCP_SERVER_VARIABLES if (v := self.get(k)) is not None}
        proxies = {
            k: v for k, v in self.variables.items() if k.lower() in PROXY_VARIABLES and "@" not in v
        }
        return self.for_commands() | found | proxies


def secret_variables(environment: Environment) -> dict[str, str]:
    """The variables whose names mark their values as secrets."""
    return {
        name: value
        for name, value in environment.variables.items()
        if len(value) >= _MIN_SECRET_CHARS and _SECRET_WORDS & set(name.upper().split("_"))
    }


_replaced: ContextVar[Environment | None] = ContextVar("replaced_variables", default=None)


@contextmanager
def replaced_variables(environment: Environment) -> Iterator[None]:
    """Let `environment` be the current one, for commands that are called by another."""
    token = _replaced.set(environment)
    try:
        yield
    finally:
        _replaced.reset(token)
