"""The address of a Postgres store: which server, and which schema a project has there.

Does not import asyncpg, so that a wrong address is reported without it.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from retinue.domain.store_address import HIDDEN, without_password
from retinue.errors import ConfigError

_SCHEMA = "schema"
_MAX_SCHEMA_CHARS = 63  # of Postgres


class Database(msgspec.Struct, frozen=True, kw_only=True):
    """The schema of one project in a Postgres database. As text it has no password."""

    url: str
    schema: str

    def __str__(self) -> str:
        return without_password(self.url).replace(f"{HIDDEN}@", "")

    __repr__ = __str__


def project_database(url: str, project: str) -> Database:
    """The database of an address, with the schema for a project's path. Raises ConfigError.

    `?schema=NAME` in the address names the schema, for checkouts at several paths.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigError(
            "`store` must be a postgresql:// address, such as postgresql://HOST/NAME."
        )
    if without_password(url) == HIDDEN:
        # A part of the password would be taken for the host, which errors name.
        raise ConfigError(
            "`store` has a character that must be percent-encoded in a user name, a password or an"
            " option, such as %40 for @ and %23 for #."
        )
    options = parse_qsl(parts.query, keep_blank_values=True)
    named = dict(options).get(_SCHEMA)
    if named is not None and not re.fullmatch(r"[a-z_][a-z0-9_]*", named):
        raise ConfigError(f"The schema {named!r} in `store` may have a-z, 0-9 and _ only.")
    if named is not None and len(named) > _MAX_SCHEMA_CHARS:
        raise ConfigError(f"The schema {named!r} in `store` has more than 63 characters.")
    plain = re.sub(r"[^a-z0-9_]", "_", project.rpartition("/")[2].lower())[:40]
    digest = hashlib.sha256(project.encode()).hexdigest()[:8]
    query = urlencode([pair for pair in options if pair[0] != _SCHEMA])
    return Database(
        url=parts._replace(query=query).geturl(), schema=named or f"retinue_{plain}_{digest}"
    )
