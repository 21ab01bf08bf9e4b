"""Finds files with credentials among tools, so that commands see the tools without them."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator

# Files in which package managers keep tokens and passwords.
_CREDENTIAL_FILES = frozenset((
    ".Renviron", ".bundle", ".bunfig.toml", ".condarc", ".credentials", ".env", ".gemrc",
    ".git-credentials", ".htpasswd", ".mambarc", ".my.cnf", ".netrc", ".npmrc", ".pgpass",
    ".pypirc", ".yarnrc", ".yarnrc.yml", "aau_token", "auth.json", "auth.toml", "bunfig.toml",
    "condarc", "condarc.d", "credentials", "credentials.db", "credentials.json",
    "credentials.toml", "env_vars.sh", "gemrc", "gradle.properties", "htpasswd", "init.gradle",
    "init.gradle.kts", "jmxremote.password", "mambarc", "npmrc", "pgpass", "pip.conf", "secrets",
    "settings-security.xml", "settings.xml", "token", "tokens", "tomcat-users.xml",
    "users.properties",
))  # fmt: skip
# `conda env config vars set` keeps its values in `state`. Gradle's start scripts, rbenv's
# variables, what Go cloned, which builds without network do not read, and keys of certificates.
_CREDENTIAL_PLACES = (
    "/conda-meta/state", "/init.d", "/conf/repositories", "/.rbenv/vars", "/pkg/mod/cache/vcs",
    "/ssl/private",
)  # fmt: skip
# Files in folders of packages, which are not searched: the clones of Bundler and Go, the settings
# of npm and R, the passwords of Java 8.
_CREDENTIALS_OF_PACKAGES = (
    "ruby/gems/*/cache/bundler", "node_modules/npm/npmrc", "npm/npmrc", "mod/cache/vcs",
    "cache/vcs", "R/etc/Renviron.site", "management/jmxremote.password",
)  # fmt: skip
# Records in folders of packages of where a package came from.
_ORIGINS_OF_PACKAGES = (
    "python*/*-packages/*.dist-info/direct_url.json", "R/etc/Rprofile.site",
    "python*/distutils/distutils.cfg", "node_modules/.package-lock.json", ".package-lock.json",
    "node_modules/*/package.json", "node_modules/@*/*/package.json",
)  # fmt: skip
# Records of where a tool came from: the address may contain a password. `.git` stands for its
# settings; a repository without files has them in `config`.
_ORIGIN_FILES = {
    ".git": ".git/config",
    **{
        name: name
        for name in (
            *(".crates.toml", ".crates2.json", ".package-lock.json", "FETCH_HEAD", "bun.lock"),
            *(".mise-installs.toml", ".mise.backend", ".mise.backend.json", "bun.lockb", "config"),
            *("config.toml", "default-gems", "default-npm-packages", "default-packages"),
            *("default-python-packages", "direct_url.json", "go.env", "history", "package.json"),
            *("pipx_metadata.json", "repository", "sbtopts", "uv-receipt.toml"),
        )
    },
}
_PASSWORD = re.compile(
    rb"https?://[^/\s\"']+@|https?://[^/\s\"']+/t/[^/\s\"']|extraheader|^\s*token\s*="
    rb"|^BUNDLE_\w+__\w+:[^\n]*\S:\S",
    re.IGNORECASE | re.MULTILINE,
)
# Folders with settings: of Tomcat, Spark, Jupyter, Hadoop and the like, by names of their own.
_SETTINGS_FOLDER = re.compile(r"/(?:conf|etc)(?:/|$)")
_COMMENT = re.compile(rb"<!--.*?-->|^[ \t]*(?:#|//|;)[^\n]*", re.DOTALL | re.MULTILINE)
_SECRET = re.compile(
    rb"(?:api.?key|(?:access|secret|account|auth).?key|pass(?:phrase|wd|word)|storepass|\bpwd|_pat"
    rb"|secret|token)[\w.-]*[\"']?"
    rb"(?:</name>\s*<value>|[ \t]*[:=>])[ \t]*[\"']?[^\s\"'<>$(){}\[\]]{4}"
    rb"|^spark\.[\w.]*(?:password|secret|token)[\w.]*[ \t]",
    re.IGNORECASE | re.MULTILINE,
)
_MAX_ORIGIN_BYTES = 65_536
# Folders with thousands of files of packages: a package's own files hold no user's credentials.
_PACKAGE_FOLDERS = frozenset(
    {".git", "include", "lib", "man", "mod", "node_modules", "pkg", "registry", "share", "src"}
)
# Images for containers have nvm and Maven in it.
_SHARED_TOOLS = "/usr/local/share"
_MAX_SEARCH_DEPTH = 8
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
        elif entry.name in _PACKAGE_FOLDERS and not entry.path.endswith(_SHARED_TOOLS):
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
    """`path` itself, or its parts without those that are hidden, and without links to them."""
    if path in hidden:
        return []
    real = os.path.realpath(path) if os.path.islink(path) else path
    if real != path and any(f"{one}/".startswith(f"{real}/") for one in hidden):
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
    if origin is not None and _has_password(os.path.join(folder, origin)):
        return True
    return bool(_SETTINGS_FOLDER.search(folder)) and entry.is_file() and _has_secret(entry.path)


def _has_password(path: str) -> bool:
    return bool(_PASSWORD.search(_beginning(path)))


def _has_secret(path: str) -> bool:
    settings = _COMMENT.sub(b"", _beginning(path))
    return bool(_PASSWORD.search(settings) or _SECRET.search(settings))


def _beginning(path: str) -> bytes:
    try:
        # A pipe has no beginning, and nothing to wait for.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(_MAX_ORIGIN_BYTES) or b""
    except OSError:
        return b""


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []
