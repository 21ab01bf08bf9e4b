"""Folders with compilers and interpreters in the user's home that commands may read.

A home also has keys and passwords, often beside the tools (`.cargo/credentials.toml`). Only folders
that are known to hold tools are shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

# Folders in the home, with the parts of each that hold tools; "." is the whole folder.
_TOOL_FOLDERS: Mapping[str, tuple[str, ...]] = {
    ".pyenv": (".",),
    ".rustup": (".",),
    ".cargo": ("bin", "registry", "git", "env"),
    ".nvm": (".",),
    ".fnm": (".",),
    ".volta": ("bin", "tools"),
    ".bun": ("bin", "install"),
    ".deno": ("bin",),
    ".rbenv": (".",),
    ".asdf": (".",),
    ".sdkman": ("candidates",),
    ".local": ("bin", "lib", "share/uv", "share/pipx", "share/mise", "share/fnm"),
    "go": ("bin", "pkg"),
    "miniconda3": (".",),
    "anaconda3": (".",),
    "miniforge3": (".",),
    ".conda": (".",),
}
# Variables by which tools find their folder, since HOME is another one in the sandbox.
_HOME_VARIABLES = {"PYENV_ROOT": ".pyenv", "RUSTUP_HOME": ".rustup", "NVM_DIR": ".nvm"}
_SYSTEM_FOLDERS = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/opt/", "/nix/")


def toolchain_folders(environment: Mapping[str, str]) -> list[str]:
    """The folders to show read-only, besides those of the system."""
    home = environment.get("HOME", "")
    wanted = list(tool_home_variables(environment).values())
    for entry in environment.get("PATH", "").split(":"):
        if entry.startswith("/"):
            wanted += _shown_for(os.path.normpath(entry), home)
    wanted += _shown_for(os.path.realpath(sys.base_prefix), home)
    return [
        path
        for path in dict.fromkeys(wanted)
        if os.path.isdir(path) and not f"{path}/".startswith(_SYSTEM_FOLDERS)
    ]


def venv_base_folders(root: str, home: str) -> list[str]:
    """The folders of the Python that a project's virtual environment was made from."""
    return [place for venv in (".venv", "venv") for place in _base_of_venv(f"{root}/{venv}", home)]


def tool_home_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that tell tools in the user's home where they are."""
    home = environment.get("HOME", "")
    places = {name: os.path.join(home, folder) for name, folder in _HOME_VARIABLES.items()}
    return {name: place for name, place in places.items() if home and os.path.isdir(place)}


def command_environment(
    environment: Mapping[str, str], *, home: str, temporary: str
) -> dict[str, str]:
    """The environment of a command that has another home and another temporary folder."""
    kept = {name: value for name, value in environment.items() if name != "SHELL"}
    return {**kept, **tool_home_variables(environment), "HOME": home, "TMPDIR": temporary}


def _shown_for(path: str, home: str) -> Iterable[str]:
    """The folders to show so that the tools in `path` work."""
    real = os.path.realpath(path)
    if f"{home}/".startswith(f"{real}/") or real in ("/", "/home", "/root", "/tmp"):
        # A whole home is not shown for one program in it.
        return ()
    return _tool_folders_in_home(path, home) or (path,)


def _tool_folders_in_home(path: str, home: str) -> list[str]:
    """The parts with tools of the folder in the home that contains `path`; [] if unknown."""
    if not home or not path.startswith(f"{home}/"):
        return []
    first, _, _ = path.removeprefix(f"{home}/").partition("/")
    base = os.path.join(home, first)
    parts = _TOOL_FOLDERS.get(first, ())
    return [base if part == "." else os.path.join(base, part) for part in parts]


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
            return _tool_folders_in_home(os.path.realpath(value.strip()), home)
    return ()
