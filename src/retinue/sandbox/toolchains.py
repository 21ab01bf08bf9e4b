"""Folders with compilers and interpreters in the user's home that commands may read.

A home also has keys and passwords, often beside the tools (`.local/share/uv/credentials`). Only
parts that are known to hold tools are shown, and no file in them that usually holds a credential.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from retinue.sandbox.credential_files import without_credentials
from retinue.sandbox.shims import installs_of, resolve_shims

# Folders of tool managers, with the parts of each that hold tools; "." is the whole folder.
_TOOL_FOLDERS: Mapping[str, tuple[str, ...]] = {
    ".pyenv": ("bin", "libexec", "plugins", "pyenv.d", "shims", "version", "versions"),
    ".rustup": ("toolchains", "settings.toml", "update-hashes"),
    ".cargo": ("bin", "registry", "git"),
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
    "mambaforge": (".",),
    "micromamba": (".",),
    ".conda": (".",),
}
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
        for part in without_credentials(path)
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
    """Folders to show so that the tools in `path`, a folder that the user named, work."""
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
                return [part for path in _tool_parts(folder) for part in without_credentials(path)]
    return ()
