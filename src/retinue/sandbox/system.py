"""What of the machine every command may read: its programs, and what they look up."""

from __future__ import annotations

import os

# Nothing that holds a secret, and of the machine's accounts only their names.
ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "debian_version", "default/locale",
    "fonts", "group", "host.conf", "hosts", "java-11-openjdk", "java-17-openjdk",
    "java-21-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "lsb-release",
    "magic", "mime.types", "nsswitch.conf", "os-release", "passwd", "perl", "pki", "protocols",
    "python3", "services", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
)  # fmt: skip
PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")


def etc() -> list[str]:
    """The files and folders of `/etc` that are there."""
    return [path for name in ETC if os.path.exists(path := f"/etc/{name}")]


def programs() -> list[str]:
    """Where programs and their libraries are; some of them may be links to others."""
    return [path for path in PROGRAMS if os.path.isdir(path)]
