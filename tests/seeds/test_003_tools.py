"""Each role of the seed "roles, fan-out, planning" (003) completes a task with the seed's tools."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pytest

from retinue.domain.messages import ToolMessage
from retinue.models.scripted.model import ScriptedModel, Step, call, say
from retinue.runtime.runtime import Runtime

if TYPE_CHECKING:
    from tests.conftest import Repo

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]

# The lists of `_get_role_config`. Here are no hosts and no provider for the web tools.
TOOLS = {
    "researcher": "read ls search code_search grep web_search web_fetch overview docs_coverage",
    "planner": "read ls search plan_files overview",
    "executor": "read write edit ls search shell test git git_commit",
    "reviewer": "read search test git_diff shell",
    "tester": "read write test shell",
}
OURS = {
    "researcher": "docs_coverage list_dir overview read_file search_files",
    "planner": "find_files list_dir overview read_file search_files",
    "executor": "edit_file git_read list_dir read_file run_command run_tests search_files"
    " write_file",
    "reviewer": "git_read read_file run_command run_tests search_files",
    "tester": "read_file run_command run_tests write_file",
}
STEPS: dict[str, list[tuple[Step, str]]] = {
    "researcher": [
        (call("overview"), "def sell"),
        (call("ls"), "shop.py"),
        (call("code_search", query="def sell"), "shop.py:1: def sell"),
        (call("read", file_path="shop.py"), "return price"),
        (call("docs_coverage"), "shop.py:1: function sell"),
    ],
    "planner": [
        (call("overview"), "shop.py"),
        (call("plan_files", pattern="*.py"), "shop.py"),
        (call("search", pattern="price"), "shop.py:2"),
    ],
    "executor": [
        (call("read", path="shop.py"), "return price"),
        (call("edit", path="shop.py", old_string="price", new_string="cost", replace_all=True),
         "Edited shop.py"),
        (call("git", what="diff"), "+    return cost"),
        (call("test"), "The tests passed"),
        (call("shell", cmd="ls"), "shop.py"),
    ],
    "reviewer": [
        (call("git_diff"), "+# edited by the user"),
        (call("git_log"), "user: x"),
        (call("test"), "The tests passed"),
        (call("shell", command="cat shop.py"), "def sell"),
    ],
    "tester": [
        (call("read", path="shop.py"), "def sell"),
        (call("write", path="tests/test_shop.py", content="import shop\n"), "Wrote"),
        (call("write", path="shop.py", content=""), "does not let you write 'shop.py'"),
        (call("test"), "The tests passed"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("role", TOOLS)
async def test_role_completes_a_task(
    role: str, repo: Repo, opened: Opened, settings: Callable[[str], None]
) -> None:
    repo.init().commit({"shop.py": "def sell(price):\n    return price\n"})
    repo.write("notes.md", "# edited by the user\n")
    settings('test = "grep -q sell shop.py"\n')
    steps = STEPS[role]
    model = ScriptedModel([*(step for step, _ in steps), say("Done.")], strict=False)
    async with opened(model=model, mode="auto", shell=True, unsafe_no_sandbox=True) as rt:
        result = await rt.spawn(role, "Do your part", tools=TOOLS[role].split())
    assert result.ok, result.error
    web = (
        "without web_search: no search provider is set",
        "without web_fetch: no web_hosts are set",
    )
    assert result.notes == (web if role == "researcher" else ())
    assert {tool.name for tool in model.requests[0].tools} >= set(OURS[role].split())
    answers = [m.content for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    for (_, expected), answer in zip(steps, answers, strict=True):
        assert expected in answer
