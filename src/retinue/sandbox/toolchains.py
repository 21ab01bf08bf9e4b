"""Folders with compilers and interpreters in the user's home that commands may read.

A home also has keys and passwords, often beside the tools (`.local/share/uv/credentials`). Only
parts that are known to hold tools are shown, and no file in them that usually holds a credential.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterable, Mapping

from retinue.sandbox.shims import installs_of, resolve_shims

# Folders of tool managers, with the parts of each that hold tools; "." is the whole folder.
_TOOL_FOLDERS: Mapping[str, tuple[str, ...]] = {
    ".pyenv": ("bin", "libexec", "plugins", "pyenv.d", "shims", "version", "versions"),
    ".rustup": ("toolchains", "settings.toml", "update-hashes"),
    ".cargo": ("bin", "registry", "git", "env"),
    ".nvm": (".",),
    ".fnm": (".",),
    ".volta": ("bin", "tools"),
    ".bun": ("bin", "install"),
    ".deno": ("bin",),
    ".rbenv": (".",),
    ".asdf": ("bin", "lib", "installs", "plugins", "shims", "asdf.sh"),
    ".sdkman": ("candidates",),
    ".local": (
        "bin",
        "lib",
        "share/uv/python",
        "share/uv/tools",
        "share/pipx/venvs",
        "share/pipx/shared",
        "share/mise/installs",
        "share/mise/shims",
        "share/fnm",
    ),
    "go": ("bin", "pkg"),
    "miniconda3": (".",),
    "anaconda3": (".",),
    "miniforge3": (".",),
    ".conda": (".",),
}
# Files in which package managers keep tokens and passwords.
_CREDENTIAL_FILES = frozenset((
    ".bunfig.toml", ".condarc", ".credentials", ".env", ".gemrc", ".git-credentials", ".mambarc",
    ".netrc", ".npmrc", ".pypirc", ".yarnrc", ".yarnrc.yml", "aau_token", "auth.json", "auth.toml",
    "bunfig.toml", "condarc", "condarc.d", "credentials", "credentials.db", "credentials.json",
    "credentials.toml", "env_vars.sh", "gemrc", "gradle.properties", "init.gradle",
    "init.gradle.kts", "jmxremote.password", "mambarc", "npmrc", "pip.conf",
    "settings-security.xml", "settings.xml", "token", "tokens",
))  # fmt: skip
# `conda env config vars set` keeps its values in `state`; the packages in `pkgs` are in use only
# until they are installed, and conda writes their addresses with tokens. Gradle's start scripts,
# rbenv's variables, and what Go cloned, which builds without network do not read.
_CREDENTIAL_PLACES = (
    "/conda-meta/state", "/miniconda3/pkgs", "/anaconda3/pkgs", "/miniforge3/pkgs", "/.conda/pkgs",
    "/init.d", "/conf/repositories", "/.rbenv/vars", "/pkg/mod/cache/vcs",
)  # fmt: skip
# Files in folders of packages, which are not searched: the clones of Bundler, npm's own settings.
_CREDENTIALS_OF_PACKAGES = ("ruby/gems/*/cache/bundler", "node_modules/npm/npmrc")
# Records of where a tool came from: the address may contain a password. `.git` stands for its
# settings; a repository without files has them in `config`.
_ORIGIN_FILES = {
    ".git": ".git/config",
    **{
        name: name
        for name in (
            *("FETCH_HEAD", "bun.lock", "config", "history", "package.json"),
            *("pipx_metadata.json", "sbtopts", "uv-receipt.toml"),
        )
    },
}
_PASSWORD_IN_ADDRESS = re.compile(
    rb"https?://[^/\s\"']+@|https?://[^/\s\"']+/t/[^/\s\"']|extraheader", re.IGNORECASE
)
_MAX_ORIGIN_BYTES = 65_536
# Folders with thousands of files of packages: a package's own files hold no user's credentials.
_PACKAGE_FOLDERS = frozenset(
    {".git", "include", "lib", "man", "node_modules", "pkg", "registry", "share", "src"}
)
_MAX_SEARCH_DEPTH = 6
# Variables by which tools find their folder, since HOME is another one in the sandbox.
_HOME_VARIABLES = {"PYENV_ROOT": ".pyenv", "RUSTUP_HOME": ".rustup", "NVM_DIR": ".nvm"}
_SYSTEM_FOLDERS = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/opt/", "/nix/")


def toolchain_folders(environment: Mapping[str, str]) -> list[str]:
    """The folders and files to show read-only, besides those of the system."""
    home = environment.get("HOME", "")
    wanted = [
        part for folder in tool_home_variables(environment).values() for part in _tool_parts(folder)
    ]
    for entry in _path_entries(environment):
        wanted += _shown_for(entry, home)
    wanted += _shown_for(os.path.realpath(sys.base_prefix), home)
    return [
        part
        for path in dict.fromkeys(wanted)
        if os.path.exists(path) and not f"{path}/".startswith(_SYSTEM_FOLDERS)
        for part in _without_credentials(path)
    ]


def venv_base_folders(root: str, home: str) -> list[str]:
    """The folders of the Python that a project's virtual environment was made from."""
    return [place for venv in (".venv", "venv") for place in _base_of_venv(f"{root}/{venv}", home)]


def tool_home_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that tell tools where their folders are.

    A folder that PATH names comes first: `.pyenv/shims` may belong to another home than HOME.
    """
    found = [folder for entry in _path_entries(environment) if (folder := _tool_folder(entry))]
    home = environment.get("HOME", "")
    variables = {}
    for name, folder in _HOME_VARIABLES.items():
        candidates = [place for place in found if os.path.basename(place) == folder]
        if home:
            candidates.append(os.path.join(home, folder))
        existing = next(filter(os.path.isdir, candidates), None)
        if existing is not None:
            variables[name] = existing
    return variables


def command_environment(
    environment: Mapping[str, str], directory: str, *, home: str, temporary: str
) -> dict[str, str]:
    """The environment of a command that has another home and another temporary folder.

    `directory` is the folder in which it runs: tool versions are chosen for it.
    """
    kept = {name: value for name, value in environment.items() if name != "SHELL"}
    variables = {**kept, **tool_home_variables(environment), "HOME": home, "TMPDIR": temporary}
    if "PATH" in kept:
        variables["PATH"] = resolve_shims(kept["PATH"], directory, environment.get("HOME", ""))
    return variables


def _path_entries(environment: Mapping[str, str]) -> list[str]:
    entries = environment.get("PATH", "").split(":")
    return [os.path.normpath(entry) for entry in entries if entry.startswith("/")]


def _shown_for(path: str, home: str) -> Iterable[str]:
    """What to show so that the tools in `path`, a folder that the user named, work."""
    real = os.path.realpath(path)
    if f"{home}/".startswith(f"{real}/") or real in ("/", "/home", "/root", "/tmp"):
        # A whole home is not shown for one program in it.
        return ()
    folder = _tool_folder(path)
    shown = [path] if folder is None else _tool_parts(folder)
    installs = installs_of(path)
    return shown if installs is None else [*shown, installs]


def _tool_folder(path: str) -> str | None:
    """The folder of a tool manager that contains `path`, in any home."""
    parts = path.split("/")
    for number, part in enumerate(parts):
        if part in _TOOL_FOLDERS:
            return "/".join(parts[: number + 1])
    return None


def _tool_parts(folder: str) -> list[str]:
    parts = _TOOL_FOLDERS[os.path.basename(folder)]
    return [folder if part == "." else os.path.join(folder, part) for part in parts]


def _without_credentials(path: str, depth: int = _MAX_SEARCH_DEPTH, top: str = "") -> list[str]:
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
                parts += _without_credentials(entry.path, depth - 1, top)
        elif not entry.is_dir():
            parts.append(entry.path)
        elif entry.name in _PACKAGE_FOLDERS:
            inner = _without(entry.path, _credentials_of_packages(entry.path))
            clean = clean and inner == [entry.path]
            parts += inner
        else:
            inner = _without_credentials(entry.path, depth - 1, top)
            clean = clean and inner == [entry.path]
            parts += inner
    return [path] if clean else parts


def _credentials_of_packages(folder: str) -> list[str]:
    found = (glob.glob(pattern, root_dir=folder) for pattern in _CREDENTIALS_OF_PACKAGES)
    return [os.path.join(folder, path) for paths in found for path in paths]


def _without(path: str, hidden: list[str]) -> list[str]:
    """`path` itself, or its parts without those that are hidden."""
    if path in hidden:
        return []
    if not any(one.startswith(f"{path}/") for one in hidden):
        return [path]
    return [part for entry in _entries(path) for part in _without(entry.path, hidden)]


def _holds_credentials(entry: os.DirEntry[str]) -> bool:
    if entry.name in _CREDENTIAL_FILES or entry.path.endswith(_CREDENTIAL_PLACES):
        return True
    if os.path.basename(os.path.dirname(entry.path)) == "conda-meta" and entry.name != "history":
        # Conda itself reads these records, which may have addresses with tokens.
        return True
    if entry.name not in _ORIGIN_FILES:
        return False
    origin = os.path.join(os.path.dirname(entry.path), _ORIGIN_FILES[entry.name])
    try:
        with open(origin, "rb") as file:
            return bool(_PASSWORD_IN_ADDRESS.search(file.read(_MAX_ORIGIN_BYTES)))
    except OSError:
        return False


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _base_of_venv(venv: str, home: str) -> Iterable[str]:
    """The folders of the Python that a virtual environment was made from.

    The project's own file names it, so it is shown only in folders that are known to hold tools.
    """
    try:
        with open(f"{venv}/pyvenv.cfg", encoding="utf-8") as file:
            lines = file.read(8192).splitlines()
    except (OSError, UnicodeDecodeError):
        return ()
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip() == "home" and value.strip().startswith("/"):
            python = os.path.realpath(value.strip())
            folder = _tool_folder(python)
            if folder is not None and os.path.dirname(folder) == home:
                return [part for path in _tool_parts(folder) for part in _without_credentials(path)]
    return ()
