"""The list of tools that come with retinue."""

from __future__ import annotations

from retinue.ports.tool import Tool
from retinue.tools.files import (
    edit_file,
    find_files,
    list_dir,
    read_file,
    search_files,
    write_file,
)
from retinue.tools.memory import recall, remember
from retinue.tools.shell import run_command

# Tools that only read the project and its memory: results of equal calls can be reused.
CACHEABLE_TOOLS = frozenset({"read_file", "list_dir", "find_files", "search_files", "recall"})


def builtin_tools(*, shell: bool = True) -> tuple[Tool, ...]:
    """All built-in tools, without `run_command` if `shell` is off."""
    files = (read_file, list_dir, find_files, search_files, write_file, edit_file)
    tools = (*files, remember, recall)
    return (*tools, run_command) if shell else tools
