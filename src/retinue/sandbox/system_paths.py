"""The system paths that every command may read: programs, and files that they look up."""

from __future__ import annotations

import os
from functools import cache

from retinue.sandbox.credential_files import without, without_credentials

# No file with secrets. Of the machine's accounts, only the names.
ETC_FILES = (
    "debian_version", "default/locale", "group", "host.conf", "hosts", "ld.so.cache", "localtime",
    "lsb-release", "magic", "mime.types", "nsswitch.conf", "os-release", "passwd", "protocols",
    "services", "ssl/openssl.cnf", "timezone",
)  # fmt: skip
ETC_FOLDERS = (
    "alternatives", "ca-certificates", "fonts", "java-11-openjdk", "java-17-openjdk",
    "java-21-openjdk", "perl", "pki", "ssl/certs", "terminfo",
)  # fmt: skip
PROGRAM_FOLDERS = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store",
)  # fmt: skip


def etc_files() -> list[str]:
    """The allowed files of `/etc` that exist."""
    return [path for name in ETC_FILES if os.path.isfile(path := f"/etc/{name}")]


def etc_folders() -> list[str]:
    """The allowed folders of `/etc` that exist."""
    return [path for name in ETC_FOLDERS if os.path.isdir(path := f"/etc/{name}")]


# Where images for containers keep tool managers, and their credentials beside them.
_TOOL_FOLDERS = ("local", "share/gradle", "share/maven")


@cache
def program_folders(root: str = "/") -> list[str]:
    """The folders with programs and libraries, or their parts without files with credentials.

    Some may be links to others.
    """
    found: list[str] = []
    for folder in PROGRAM_FOLDERS:
        path = root + folder.removeprefix("/")
        if os.path.islink(path):
            found.append(path)
        elif folder == "/opt":
            found += without_credentials(path)
        elif folder == "/usr":
            found += _without_credentials_in(path, [f"{path}/{name}" for name in _TOOL_FOLDERS])
        else:
            found.append(path)
    return [path for path in found if os.path.exists(path)]


def _without_credentials_in(path: str, folders: list[str]) -> list[str]:
    """`path`, or its parts without the files with credentials in `folders` below it."""
    parts = {folder: without_credentials(folder) for folder in folders if os.path.isdir(folder)}
    split = [folder for folder in parts if parts[folder] != [folder]]
    return [*without(path, split), *(part for folder in split for part in parts[folder])]
