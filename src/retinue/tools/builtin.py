"""The tools that come with retinue."""

from __future__ import annotations

from retinue.domain.messages import Effect
from retinue.errors import ToolFailure
from retinue.ports.tool import Tool, ToolContext, ToolOutcome
from retinue.tools import code, files
from retinue.tools.function import tool
from retinue.tools.git import git_read
from retinue.tools.memory import recall, remember
from retinue.tools.shell import run_command
from retinue.tools.tests import run_tests

# Tools that only read the project and its memory: results of equal calls can be reused.
CACHEABLE_TOOLS = frozenset(
    {
        *("read_file", "list_dir", "find_files", "search_files", "git_read", "recall"),
        *("overview", "find_symbol", "docs_coverage"),
    }
)


@tool(effect=Effect.READ)
async def ask_user(ctx: ToolContext, question: str) -> ToolOutcome:
    """Ask the user, when only they can know."""
    if ctx.ask is None:
        raise ToolFailure("The user is not there; decide yourself and say what you assumed.")
    return ToolOutcome(content=await ctx.ask(ctx.path, question))


def builtin_tools(*, shell: bool = True, tests: bool = True, ask: bool = False) -> tuple[Tool, ...]:
    """All built-in tools. `run_command`, `run_tests` and `ask_user` can be left out."""
    return (
        files.read_file,
        files.list_dir,
        files.find_files,
        files.search_files,
        code.overview,
        code.find_symbol,
        code.docs_coverage,
        files.write_file,
        files.edit_file,
        git_read,
        remember,
        recall,
        *([run_command] if shell else []),
        *([run_tests] if tests else []),
        *([ask_user] if ask else []),
    )
