"""What an agent says of tests, against what was seen."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import retinue
from retinue.models.scripted.model import ScriptedModel, call, say
from retinue.project import open_journal
from retinue.runtime.runtime import Runtime

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Repo

Opened = Callable[..., AbstractAsyncContextManager[Runtime]]
CLAIM = say("It is fixed. All tests pass.")
WRITE = call("write_file", path="a", content="2\n")
RUN_TESTS = "test_it() { :; }; test_it"
TEST = call("run_command", command=RUN_TESTS)


async def test_unsupported_claim_is_shown_everywhere(
    opened: Opened, repo: Repo, project: Path
) -> None:
    repo.init().commit({"a": "1\n"})
    model = ScriptedModel(
        {
            "lead it": [
                call("spawn_agent", task="fix it", role="executor"),
                call("spawn_agent", task="fix it", role="executor", background=True),
                call("spawn_await", job_ids="a2"),
                say("Done."),
            ],
            "fix it": [WRITE, CLAIM],
        }
    )
    async with opened(model=model, mode="auto") as rt:
        run = await rt.run("lead it")
    told = "unverified: 'All tests pass.' (no check and no command shows it)"
    answers = [request.messages[-1].content for request in model.requests]
    assert any("[completed] a1" in answer and told in answer for answer in answers)
    assert any("[a2: OK]" in answer and told in answer for answer in answers)
    async with open_journal(project) as store:
        view = retinue.fold(await store.events(run.id))
    assert view.agents["a1"].unverified == "All tests pass."
    assert "- Unverified: " in (project / ".retinue" / "step-0-result.md").read_text()


async def test_test_run_after_the_last_change_supports_the_claim(
    opened: Opened, repo: Repo
) -> None:
    repo.init().commit({"a": "1\n"})
    model = ScriptedModel({"one": [WRITE, TEST, CLAIM], "two": [TEST, WRITE, CLAIM]})
    async with opened(model=model, mode="auto", shell=True, unsafe_no_sandbox=True) as rt:
        one, two = await rt.spawn("executor", "one"), await rt.spawn("executor", "two")
    assert (one.unverified, two.unverified) == ("", "All tests pass.")
    written, ran = one.receipts
    assert (ran.command, ran.exit_code, len(ran.output_sha256)) == (RUN_TESTS, 0, 64)
    (change,) = written.changed
    assert change.before_sha256 != change.after_sha256


async def test_checks_of_a_child_support_the_claim_of_its_parent(
    opened: Opened, repo: Repo
) -> None:
    repo.init().commit({"a": "1\n"})
    model = ScriptedModel(
        {
            "lead it": [call("spawn_agent", task="fix", role="executor"), CLAIM],
            "fix": [WRITE, CLAIM],
        }
    )
    terms = {"mode": "auto", "checks": ["true"], "unsafe_no_sandbox": True}
    async with opened(model=model, **terms) as rt:
        run = await rt.run("lead it")
    assert run.unverified == ""
    answers = [request.messages[-1].content for request in model.requests]
    assert any("check: true: passed" in answer for answer in answers)
