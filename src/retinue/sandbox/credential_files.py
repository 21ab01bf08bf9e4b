"""Finds files with credentials among tools, so that commands see the tools without them."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator

# Files in which package managers keep tokens and passwords.
_CREDENTIAL_FILES = frozenset((
    ".bundle", ".bunfig.toml", ".condarc", ".credentials", ".env", ".gemrc", ".git-credentials",
    ".mambarc", ".netrc", ".npmrc", ".pypirc", ".yarnrc", ".yarnrc.yml", "aau_token", "auth.json",
    "auth.toml", "bunfig.toml", "condarc", "condarc.d", "credentials", "credentials.db",
    "credentials.json", "credentials.toml", "env_vars.sh", "gemrc", "gradle.properties",
    "init.gradle", "init.gradle.kts", "jmxremote.password", "mambarc", "npmrc", "pip.conf",
    "settings-security.xml", "settings.xml", "token", "tokens", "tomcat-users.xml",
))  # fmt: skip
# `conda env config vars set` keeps its values in `state`. Gradle's start scripts, rbenv's
# variables, and what Go cloned, which builds without network do not read.
_CREDENTIAL_PLACES = (
    "/conda-meta/state", "/init.d", "/conf/repositories", "/.rbenv/vars", "/pkg/mod/cache/vcs",
)  # fmt: skip
# Files in folders of packages, which are not searched: the clones of Bundler and Go, the settings
# of npm and R, the passwords of Java 8.
_CREDENTIALS_OF_PACKAGES = (
    "ruby/gems/*/cache/bundler", "node_modules/npm/npmrc", "npm/npmrc", "mod/cache/vcs",
    "R/etc/Renviron.site", "management/jmxremote.password",
)  # fmt: skip
# Records in folders of packages of where a package came from.
_ORIGINS_OF_PACKAGES = (
    "python*/site-packages/*.dist-info/direct_url.json", "R/etc/Rprofile.site",
    "node_modules/.package-lock.json", ".package-lock.json",
)  # fmt: skip
# Records of where a tool came from: the address may contain a password. `.git` stands for its
# settings; a repository without files has them in `config`.
_ORIGIN_FILES = {
    ".git": ".git/config",
    **{
        name: name
        for name in (
            *(".crates.toml", ".crates2.json", ".package-lock.json", "FETCH_HEAD", "bun.lock"),
            *("bun.lockb", "config", "config.toml", "direct_url.json", "go.env", "history"),
            *("package.json", "pipx_metadata.json", "sbtopts", "uv-receipt.toml"),
        )
    },
}
_PASSWORD = re.compile(
    rb"https?://[^/\s\"']+@|https?://[^/\s\"']+/t/[^/\s\"']|extraheader|^\s*token\s*=",
    re.IGNORECASE | re.MULTILINE,
)
_MAX_ORIGIN_BYTES = 65_536
# Folders with thousands of files of packages: a package's own files hold no user's credentials.
_PACKAGE_FOLDERS = frozenset(
    {".git", "include", "lib", "man", "node_modules", "pkg", "registry", "share", "src"}
)
_MAX_SEARCH_DEPTH = 6
# Folders beside conda's folder of packages.
_OF_CONDA = ("conda-meta", "envs")


def without_credentials(path: str, depth: int = _MAX_SEARCH_DEPTH, top: str = "") -> list[str]:
    """`path` itself, or its parts if a file with credentials lies in it.

    A link to a folder below `top` (default: `path`) has parts as that folder has them: shown as a
    whole, `node/22 -> 22.1.0` would show the credentials in `22.1.0`. Links to other folders are
    left out.
    """
    top = top or os.path.realpath(path)
    parts: list[str] = []
    clean = True
    for entry in _entries(path) if depth else ():
        if _holds_credentials(entry):
            clean = False
        elif entry.is_symlink() and entry.is_dir():
            # A link to a folder above it has no end.
            target = os.path.realpath(entry.path)
            is_above = f"{os.path.realpath(path)}/".startswith(f"{target}/")
            if target.startswith(f"{top}/") and not is_above:
                parts += without_credentials(entry.path, depth - 1, top)
        elif not entry.is_dir():
            parts.append(entry.path)
        elif entry.name in _PACKAGE_FOLDERS:
            inner = without(entry.path, _credentials_of_packages(entry.path))
            clean = clean and inner == [entry.path]
            parts += inner
        else:
            inner = without_credentials(entry.path, depth - 1, top)
            clean = clean and inner == [entry.path]
            parts += inner
    return [path] if clean else parts


def _credentials_of_packages(folder: str) -> list[str]:
    def matching(patterns: Iterable[str]) -> Iterator[str]:
        for pattern in patterns:
            for path in glob.iglob(pattern, root_dir=folder):
                yield os.path.join(folder, path)

    return [
        *matching(_CREDENTIALS_OF_PACKAGES),
        *filter(_has_password, matching(_ORIGINS_OF_PACKAGES)),
    ]


def without(path: str, hidden: list[str]) -> list[str]:
    """`path` itself, or its parts without those that are hidden."""
    if path in hidden:
        return []
    if not any(one.startswith(f"{path}/") for one in hidden):
        return [path]
    return [part for entry in _entries(path) for part in without(entry.path, hidden)]


def _holds_credentials(entry: os.DirEntry[str]) -> bool:
    if entry.name in _CREDENTIAL_FILES or entry.path.endswith(_CREDENTIAL_PLACES):
        return True
    if entry.is_symlink() and os.path.basename(os.path.realpath(entry.path)) in _CREDENTIAL_FILES:
        return True
    folder = os.path.dirname(entry.path)
    if os.path.basename(folder) == "conda-meta" and entry.name != "history":
        # Conda itself reads these records, which may have addresses with tokens.
        return True
    if entry.name == "pkgs" and any(os.path.isdir(f"{folder}/{one}") for one in _OF_CONDA):
        # In use only until they are installed, with addresses that may have tokens.
        return True
    origin = _ORIGIN_FILES.get(entry.name)
    return origin is not None and _has_password(os.path.join(folder, origin))


def _has_password(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return bool(_PASSWORD.search(file.read(_MAX_ORIGIN_BYTES)))
    except OSError:
        return False


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []
