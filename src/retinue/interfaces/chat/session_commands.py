"""`/resume`, `/fork`, `/compact`, `/sessions`, `/rename`, `/copy` and others: conversations."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from retinue.cleanup import delete_session
from retinue.domain.agent_state import ROOT_ID
from retinue.domain.plan.outcome import RunResult
from retinue.domain.plural import plural
from retinue.errors import UsageError
from retinue.interfaces.chat.chat import Chat, Work
from retinue.interfaces.view.conversation_entries import ReplyEntry
from retinue.interfaces.view.conversation_export import conversation_html, conversation_markdown
from retinue.interfaces.view.formatting import format_duration, one_line
from retinue.model_registry import redaction_of
from retinue.project import open_journal, refuse_links, rename_session, write_new_file
from retinue.runtime.history.session import list_sessions

_FORK = re.compile(r"(?:(a\d+)(?:\s+|$))?(?:(t?\d+)(?:\s+|$))?(.*)", re.S)
"""An agent, the end of a turn or an event, and a message: each may be missing."""


def resume(chat: Chat, name: str) -> Work | None:
    """Resume the interrupted run, or the conversation `name`; else choose one from a list."""
    chat.host.check_idle()
    if name:
        return chat.load_session(name)
    if chat.interrupted_run is None:
        return show_sessions(chat)
    chat.resume_interrupted()
    return None


def compact(chat: Chat, _: str) -> None:
    """Replace the conversation that the model sees by a summary."""
    if chat.session is None:
        raise UsageError("There is nothing to summarize yet.")
    chat.start_run(partial(chat.runtime.compact, chat.session))


def fork(chat: Chat, argument: str) -> None:
    """Do the last run, or an agent's part in one, again from one of its moments."""
    found = _FORK.fullmatch(argument)
    assert found is not None, "every text matches"
    agent, at, tell = found.groups()
    agent = agent or ROOT_ID
    trees = [tree.run for tree in reversed(chat.forest.trees.values()) if tree.is_model_led]
    if not trees:
        raise UsageError("This conversation has no message yet from which a run could be forked.")
    # No two children of a chat have the same id.
    run_id = next((run.id for run in trees if agent in run.agents), trees[0].id)

    async def work() -> RunResult:
        result = await chat.runtime.fork(run_id, agent, at=at, tell=tell)
        kept = await chat.runtime.diff(result.id, ROOT_ID)
        what = f"run {run_id}" if agent == ROOT_ID else f"{agent} of run {run_id}"
        files = " It worked in a copy: /diff a0 shows its changes, /redo a0 applies them."
        chat.conversation.add_notice(
            f"This was a fork of {what}. Your next message continues from it."
            f"{files if kept else ''}"
        )
        return result

    chat.start_run(work)


async def show_sessions(chat: Chat, _: str = "") -> None:
    async with open_journal(chat.directory, chat.environment) as store:
        sessions = await list_sessions(store)
    if not sessions:
        raise UsageError("There is no earlier conversation to resume.")
    now = chat.clock.now()
    choices = [
        (
            session.id,
            f"{one_line(session.title)}  ({format_duration(now - session.last_run.started_at)} ago,"
            f" {plural(session.runs, 'message')})",
        )
        for session in sessions
    ]
    chat.pick("Sessions", choices, resume, delete)


async def delete(chat: Chat, name: str) -> None:
    chat.host.check_idle()
    deleted = await delete_session(chat.directory, name, chat.environment)
    if chat.session == deleted.id:
        chat.start_new_conversation()
    chat.conversation.add_notice(f"Deleted the session {one_line(deleted.title)!r}.")


async def rename(chat: Chat, title: str) -> None:
    if not title:
        raise UsageError("/rename needs a title: /rename TITLE")
    if chat.session is None:
        raise UsageError("This conversation has no messages yet. Rename it after the first one.")
    chat.title = await rename_session(chat.directory, chat.session, title, chat.environment)
    chat.conversation.add_notice(f"This conversation is now called {chat.title!r}.")


def clear(chat: Chat, _: str) -> None:
    chat.host.check_idle()
    chat.start_new_conversation()


def copy(chat: Chat, what: str) -> None:
    """Copy the last answer, or the last code block."""
    replies = [e.text for e in chat.conversation.entries if isinstance(e, ReplyEntry) and e.text]
    if what == "code":
        found = re.findall(r"^```[^\n]*\n(.*?)^```", "\n\n".join(replies), re.M | re.S)
    elif what:
        raise UsageError(f"/copy takes nothing or `code`, not {what!r}.")
    else:
        found = replies
    if not found:
        raise UsageError("There is nothing to copy yet.")
    chat.on_copy(found[-1].rstrip("\n"))
    chat.conversation.add_notice(f"Copied {plural(len(found[-1].splitlines()), 'line')}.")


def export(chat: Chat, name: str) -> None:
    """Write the conversation to a file: HTML if its name ends so, Markdown otherwise."""
    if not chat.conversation.entries:
        raise UsageError("There is nothing to export yet.")
    path = chat.directory / Path(name or f"conversation-{chat.session or 'new'}.md").expanduser()
    refuse_links(chat.directory, path)
    title = chat.title or "Conversation"
    text = conversation_markdown(chat.conversation.entries, title)
    text = redaction_of(chat.directory, chat.environment).redact(text)
    is_page = path.suffix in (".html", ".htm")
    write_new_file(path, conversation_html(text, title) if is_page else text)
    chat.conversation.add_notice(
        f"Exported to {path}. Keys with a known form, values of secret variables and the path of"
        " the project are hidden; read it before you share it."
    )
