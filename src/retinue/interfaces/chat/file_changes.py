"""`/diff`, `/undo`, `/redo` and `/rewind`: the file changes of a conversation."""

from __future__ import annotations

from collections.abc import Iterable

from retinue.domain.plural import plural
from retinue.domain.run_state import RunState
from retinue.errors import UsageError
from retinue.interfaces.chat.chat import Chat, Work
from retinue.interfaces.view.file_diff import diff_lines
from retinue.interfaces.view.formatting import one_line
from retinue.interfaces.view.styled_text import Line, Tone, styled
from retinue.runtime.history.undo import ChangePatch, UndoResult

MAX_CHANGE_LINES = 400


async def show_changes(chat: Chat, name: str) -> None:
    """Show the changes of an agent; without a name, of the last run that changed files."""
    changes = await _changes(chat, name)
    if not changes:
        raise UsageError(f"{name or 'This conversation'} has changed no files.")

    def lines(width: int) -> list[Line]:
        shown = [line for change in changes for line in diff_lines(change, width)]
        if len(shown) > MAX_CHANGE_LINES:
            more = plural(len(shown) - MAX_CHANGE_LINES, "more line")
            shown = [
                *shown[:MAX_CHANGE_LINES],
                styled((f"… {more}: `retinue diff`", Tone.DIM)),
            ]
        return shown

    chat.conversation.add_notice(lines)


async def _changes(chat: Chat, name: str) -> list[ChangePatch]:
    if name:
        tree, agent = chat.find_agent(name)
        return await chat.runtime.diff(tree.run.id, agent.id)
    for tree in reversed(chat.forest.trees.values()):
        if found := await chat.runtime.diff(tree.run.id):
            return found
    return []


async def undo(chat: Chat, name: str) -> None:
    """Undo the changes of an agent; without a name, of the last run that has any."""
    run_id, agent_id = await _target(chat, name, reversed(chat.forest.trees), "made", "undo")
    _show_result(chat, await chat.runtime.undo(run_id, agent_id), "undone")


async def redo(chat: Chat, name: str) -> None:
    """Redo undone changes, or apply the kept changes of an agent that failed."""
    # The earliest run first: later changes build on it.
    run_id, agent_id = await _target(chat, name, chat.forest.trees, "undone", "redo")
    _show_result(chat, await chat.runtime.redo(run_id, agent_id), "redone")


def rewind(chat: Chat, name: str) -> Work | None:
    """Undo the changes since the message of run `name`; without one, let the user choose it."""
    chat.host.check_idle()
    trees = {run_id: tree for run_id, tree in chat.forest.trees.items() if tree.is_model_led}
    if not trees:
        raise UsageError("This conversation has no message yet.")
    if name in trees:
        return _rewind(chat, name)
    if name:
        raise UsageError(f"/rewind takes the run of a message: {', '.join(trees)}; not {name!r}.")
    choices = [(run_id, _message_line(tree.run)) for run_id, tree in reversed(trees.items())]
    chat.pick("Undo the file changes since which message?", choices, rewind)
    return None


def _message_line(run: RunState) -> str:
    files = {path for agent in run.agents.values() for path in agent.files_modified}
    return one_line(run.task) + (f" (changed {plural(len(files), 'file')})" if files else "")


async def _rewind(chat: Chat, run_id: str) -> None:
    later = list(chat.forest.trees)
    # The latest run first: later changes build on earlier ones.
    for since in reversed(later[later.index(run_id) :]):
        if any(change.state == "made" for change in await chat.runtime.diff(since)):
            _show_result(chat, await chat.runtime.undo(since), "undone")
    chat.conversation.add_notice("Your message is in the input. Change it and send it, or /redo.")
    chat.on_draft(chat.forest.trees[run_id].run.task)


async def _target(
    chat: Chat, name: str, run_ids: Iterable[str], state: str, verb: str
) -> tuple[str, str | None]:
    """The agent `name` and its run; without a name, the first run with a change in `state`."""
    if name:
        tree, agent = chat.find_agent(name)
        return tree.run.id, agent.id
    for run_id in run_ids:
        if any(change.state == state for change in await chat.runtime.diff(run_id)):
            return run_id, None
    raise UsageError(f"There is nothing to {verb} in this conversation.")


def _show_result(chat: Chat, result: UndoResult, done: str) -> None:
    result.check(done)
    files = [f"  {file}" for file in result.files]
    chat.conversation.add_notice("\n".join([f"{plural(len(files), 'file')} {done}:", *files]))
