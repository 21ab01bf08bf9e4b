"""What commands need to read besides the system: compilers and interpreters in the user's home.

A home also holds keys and passwords, often beside the tools (`.cargo/credentials.toml`), so only
the parts that are known to be tools are shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

# Below the home, by the first name; "." is all of it.
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
# Where such tools look for themselves, once their home is another.
_HOME_VARIABLES = {"PYENV_ROOT": ".pyenv", "RUSTUP_HOME": ".rustup", "NVM_DIR": ".nvm"}
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/nix")


def toolchain_folders(environment: Mapping[str, str]) -> list[str]:
    """The folders outside of the system's to be shown, for reading."""
    home = environment.get("HOME", "")
    wanted = list(tool_home_variables(environment).values())
    for entry in environment.get("PATH", "").split(":"):
        if entry.startswith("/"):
            wanted += _shown_for(os.path.normpath(entry), home)
    wanted += _shown_for(os.path.realpath(sys.base_prefix), home)
    return [path for path in dict.fromkeys(wanted) if os.path.isdir(path) and not _is_system(path)]


def venv_base_folders(root: str, home: str) -> list[str]:
    """Where the Python is that the virtual environment of a project was made from."""
    return [place for venv in (".venv", "venv") for place in _base_of_venv(f"{root}/{venv}", home)]


def tool_home_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that tell tools in the user's home where they are."""
    home = environment.get("HOME", "")
    places = {name: os.path.join(home, folder) for name, folder in _HOME_VARIABLES.items()}
    return {name: place for name, place in places.items() if home and os.path.isdir(place)}


def _shown_for(path: str, home: str) -> Iterable[str]:
    """What to show so that the tools in `path` work."""
    real = os.path.realpath(path)
    if f"{home}/".startswith(f"{real}/") or real in ("/", "/home", "/root", "/tmp"):
        # Somebody's home is not shown for the sake of one program in it.
        return ()
    if not home or not path.startswith(f"{home}/"):
        return (path,)
    return _tool_folders_in_home(path, home) or (path,)


def _tool_folders_in_home(path: str, home: str) -> list[str]:
    """The tools' parts of the folder in the home that `path` is in; none if it is no tool's."""
    if not home or not path.startswith(f"{home}/"):
        return []
    first, _, _ = path.removeprefix(f"{home}/").partition("/")
    base = os.path.join(home, first)
    parts = _TOOL_FOLDERS.get(first, ())
    return [base if part == "." else os.path.join(base, part) for part in parts]


def _base_of_venv(venv: str, home: str) -> Iterable[str]:
    """The Python that a virtual environment was made from.

    The project says where that is, so it is shown only where tools are known to be.
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


def _is_system(path: str) -> bool:
    return any(path == base or path.startswith(f"{base}/") for base in _SYSTEM_FOLDERS)
