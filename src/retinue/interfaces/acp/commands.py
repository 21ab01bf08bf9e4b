"""Slash commands that a person can type in the editor."""

from __future__ import annotations

from typing import Any

from retinue.domain.plan.outcome import RunResult
from retinue.domain.run_state import fold
from retinue.errors import UsageError
from retinue.interfaces.acp.permissions import ONCE, REJECT
from retinue.interfaces.acp.session import AcpSession, Command
from retinue.interfaces.acp.tool_call import patch_diffs, text_content
from retinue.interfaces.plan_review import plan_problem
from retinue.interfaces.view.file_diff import change_heading
from retinue.interfaces.view.plan_outline import plan_outline
from retinue.project import open_journal
from retinue.runtime.history.audit import read_all
from retinue.runtime.history.undo import UndoResult
from retinue.runtime.runtime import Runtime


async def _plan(session: AcpSession, runtime: Runtime, goal: str) -> None:
    if not goal:
        raise UsageError("/plan needs a goal: /plan GOAL")
    plan = await runtime.plan(goal)
    outline = "\n".join([*plan_outline(plan), f"Forecast: {await runtime.forecast(plan)}."])
    if problem := await plan_problem(runtime, plan):
        raise UsageError(problem)
    name = f"plan/{(await session.runs())[-1]}"
    call = {
        "toolCallId": name,
        "title": "Run this plan?",
        "kind": "think",
        "status": "pending",
        "content": text_content(outline),
    }
    options = [
        {"optionId": ONCE, "name": "Run it", "kind": "allow_once"},
        {"optionId": REJECT, "name": "Do not run it", "kind": "reject_once"},
    ]
    question = {"toolCall": call, "options": options}
    answer = await session.request("session/request_permission", question)
    match answer:
        case {"outcome": {"outcome": "selected", "optionId": "allow"}}:
            session.update_call(name, "completed")
            session.say((await runtime.execute(plan)).report)
        case _:
            session.update_call(name, "failed")
            session.say("Nothing was run.")


async def _compact(session: AcpSession, runtime: Runtime, _: str) -> RunResult[Any]:
    if not await session.runs():
        raise UsageError("There is nothing to summarize yet.")
    return await runtime.compact(session.id)


async def _resume(session: AcpSession, runtime: Runtime, _: str) -> RunResult[Any]:
    runs = await session.runs()
    async with open_journal(session.root) as store:
        run = fold(await read_all(store, runs[-1])) if runs else None
    if run is None or run.status is not None:
        raise UsageError("Nothing was interrupted.")
    if (run.model, run.mode) != (runtime.model, runtime.mode):
        raise UsageError(
            f"The run was started with {run.model} in {run.mode} mode. Choose these to resume it,"
            " or say what to do instead."
        )
    return await runtime.resume(run.id)


async def _diff(session: AcpSession, runtime: Runtime, _: str) -> None:
    for run_id in reversed(await session.runs()):
        if changes := await runtime.diff(run_id):
            for change in changes:
                session.update_call(
                    f"diff/{run_id}/{change.number}/{change.agent_id}",
                    "completed",
                    title=change_heading(change),
                    content=patch_diffs(change.patch, session.root),
                )
            return
    raise UsageError("This session has changed no files.")


async def _undo(session: AcpSession, runtime: Runtime, _: str) -> None:
    for run_id in reversed(await session.runs()):
        if any(change.state == "made" for change in await runtime.diff(run_id)):
            _say_undone(session, await runtime.undo(run_id), "undone")
            return
    raise UsageError("There is nothing to undo in this session.")


async def _redo(session: AcpSession, runtime: Runtime, _: str) -> None:
    # The earliest run first: later changes build on it.
    for run_id in await session.runs():
        if any(change.state == "undone" for change in await runtime.diff(run_id)):
            _say_undone(session, await runtime.redo(run_id), "redone")
            return
    raise UsageError("There is nothing to redo in this session.")


def _say_undone(session: AcpSession, result: UndoResult, done: str) -> None:
    result.check(done)
    session.say(f"Files {done}: {', '.join(map(str, result.files))}.")


COMMANDS = {
    command.name: command
    for command in (
        Command("plan", "goal", "Write a plan, and run it if you accept it.", _plan),
        Command("compact", "", "Summarize the conversation to free context.", _compact),
        Command("resume", "", "Continue the run that was interrupted.", _resume),
        Command("diff", "", "Show the last file changes.", _diff),
        Command("undo", "", "Undo the last file changes.", _undo),
        Command("redo", "", "Redo what /undo has undone.", _redo),
    )
}
