"""The system paths that every command may read: programs, and files that they look up."""

from __future__ import annotations

import os

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


def program_folders() -> list[str]:
    """The folders with programs and libraries; some may be links to others."""
    return [path for path in PROGRAM_FOLDERS if os.path.isdir(path)]
