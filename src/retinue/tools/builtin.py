"""The tools that come with retinue."""

from __future__ import annotations

from retinue.ports import Tool
from retinue.tools.files import (
    edit_file,
    find_files,
    list_dir,
    read_file,
    search_files,
    write_file,
)
from retinue.tools.shell import run_command


def builtin_tools(*, shell: bool = True) -> tuple[Tool, ...]:
    """All of them; without `run_command` if there is no `shell` to run it."""
    files = (read_file, list_dir, find_files, search_files, write_file, edit_file)
    return (*files, run_command) if shell else files
