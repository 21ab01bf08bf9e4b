"""Slash commands of the chat, as a table that help and completion use too."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from retinue.config.settings_file import load_settings
from retinue.discovery import discover
from retinue.domain.agent_state import AgentState
from retinue.domain.budget import Budget, Limits
from retinue.domain.grant import Mode
from retinue.domain.slash_command import split_command
from retinue.errors import RetinueError, UsageError
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.chat.export import conversation_markdown
from retinue.interfaces.chat.input_parser import (
    AddressedInput,
    CommandInput,
    MessageInput,
    ShellInput,
    parse_input,
)
from retinue.interfaces.chat.keys import AGENT_SCREEN_KEYS, KEYS, TREE_KEYS
from retinue.interfaces.chat.questions import Question
from retinue.interfaces.cli.options import LIMIT_FLAGS
from retinue.interfaces.view.agent_tree import (
    DisplayState,
    display_state,
    elapsed_s,
    failure_reason,
    short_name,
)
from retinue.interfaces.view.conversation_entries import ReplyEntry
from retinue.interfaces.view.file_diff import diff_lines
from retinue.interfaces.view.formatting import (
    format_cost,
    format_duration,
    one_line,
    pad,
    plural,
    short_count,
)
from retinue.interfaces.view.modes import MODES
from retinue.interfaces.view.styled_text import Line, Tone, styled, wrap
from retinue.project import open_journal, refuse_links
from retinue.runtime.history.undo import UndoResult

Choice = tuple[str, str]
Work = Coroutine[Any, Any, None]
MAX_TASKS = 40
MAX_SESSIONS = 15
MAX_CHANGE_LINES = 400


class SlashCommand(msgspec.Struct, frozen=True):
    """`run` gets the text after the name; a coroutine that it returns runs as a task of the host.

    `choices` are completions of the first word after the name.
    """

    name: str
    usage: str
    help: str
    run: Callable[[Chat, str], Work | None]
    choices: Callable[[Chat], Iterable[Choice]] = lambda _: ()
    aliases: tuple[str, ...] = ()


def submit(chat: Chat, text: str) -> None:
    """Handle a line that the user typed. Errors become notices."""
    if not text.strip():
        return
    chat.history.add(text)
    try:
        question = chat.questions.first
        if question is not None and answers(question, text):
            question.answer(text)
            return
        name, _ = split_command(text)
        if name not in COMMANDS_BY_NAME and name in chat.commands:
            chat.run_command_file(text)
            return
        match parse_input(text, names=chat.addressable_names(), is_file=chat.is_file):
            case CommandInput(name, argument):
                _run_command(chat, name, argument)
            case ShellInput(command):
                chat.run_shell(command)
            case AddressedInput(name, text):
                chat.send_to(name, text)
            case MessageInput() as message:
                chat.send_message(message)
    except RetinueError as error:
        chat.show_error(error)


def answers(question: Question, text: str) -> bool:
    """Whether the text is an answer to the question, and not a command."""
    return question.accepts(text) and not text.startswith(("/", "!"))


def _run_command(chat: Chat, name: str, argument: str) -> None:
    command = COMMANDS_BY_NAME.get(name)
    if command is None:
        near = get_close_matches(name, COMMANDS_BY_NAME, n=1)
        hint = f"Did you mean /{near[0]}?" if near else "/help lists all commands."
        raise UsageError(f"Unknown command /{name}. {hint}")
    work = command.run(chat, argument)
    if work is not None:
        chat.host.start_task(work)


def _help(chat: Chat, argument: str) -> None:
    if argument:
        name = argument.removeprefix("/")
        if name not in COMMANDS_BY_NAME:
            raise UsageError(f"Unknown command /{name}. /help lists all commands.")
        command = COMMANDS_BY_NAME[name]
        chat.conversation.add_notice(f"/{command.name} {command.usage}\n{command.help}", Tone.PLAIN)
        return
    tables = help_tables()

    def lines(width: int) -> list[Line]:
        shown: list[Line] = []
        for title, items in tables.items():
            shown += [*([styled()] if shown else []), styled((title, Tone.STRONG))]
            for name, text in items:
                label = f"  {pad(name, 24)} "
                indent = " " * len(label)
                shown += wrap(styled(text), width, first=label, rest=indent, tone=Tone.CODE)
        return shown

    chat.conversation.add_notice(lines)


def help_tables() -> dict[str, list[Choice]]:
    """Commands, prefixes and keys with their help, by title."""
    return {
        "Commands": [(f"/{c.name} {c.usage}".rstrip(), c.help) for c in COMMANDS],
        "Prefixes": [
            ("/NAME arguments", "A command of a file; `retinue commands` lists them."),
            ("@FILE", "Attach a file of the project to your message."),
            ("@ROLE task", "Start an agent with that role, like /spawn."),
            ("@AGENT text", "Send a message to a running agent, or continue one that has ended."),
            ("!command", "Run a shell command. The model sees its output with your next message."),
        ],
        "Keys": [(key.label, key.help) for key in KEYS],
        "Keys in the list of agents": [(key.label, key.help) for key in TREE_KEYS],
        "Keys in the details of an agent": [(key.label, key.help) for key in AGENT_SCREEN_KEYS],
    }


def _spawn(chat: Chat, argument: str) -> None:
    roles = chat.runtime.roles
    first, _, rest = argument.partition(" ")
    role, task = (first, rest.strip()) if first in roles else ("researcher", argument)
    if not task:
        raise UsageError(f"/spawn needs a task: /spawn [{'|'.join(roles)}] TASK")
    chat.spawn(role, task)


def _plan(chat: Chat, argument: str) -> None:
    if not argument:
        raise UsageError("/plan needs a goal: /plan GOAL")
    chat.plan(argument)


def _tasks(chat: Chat, _: str) -> None:
    children = [agent for _, agent in chat.agents() if agent.parent_id is not None]
    if not children:
        chat.conversation.add_notice("This conversation has no child agents yet.")
        return
    # Failed agents first, then running ones, then the rest; within each, the latest run first.
    order = {state: number for number, state in enumerate(DisplayState)}
    children.sort(key=lambda agent: order[display_state(agent)])
    now = chat.clock.now()

    lines: list[Line] = [
        styled((pad("agent", 18) + pad("status", 17) + pad("time", 9) + "task", Tone.DIM))
    ]
    for agent in children[:MAX_TASKS]:
        state = display_state(agent)
        status = str(agent.status or state).replace("_", " ")
        took = format_duration(elapsed_s(agent, now)) if agent.started_at else ""
        reason = f"  ({failure_reason(agent)})" if state is DisplayState.FAILED else ""
        lines.append(
            styled(
                pad(f"{agent.id} {short_name(agent)}", 17) + " ",
                (pad(status, 16) + " ", Tone(state)),
                (pad(took, 8) + " ", Tone.DIM),
                one_line(agent.title),
                (reason, Tone.FAILED),
            )
        )
    if len(children) > MAX_TASKS:
        lines.append(styled((f"… and {len(children) - MAX_TASKS:,} more", Tone.DIM)))
    chat.conversation.add_lines(lines)


def _agents(chat: Chat, _: str) -> None:
    chat.conversation.add_lines(
        [
            styled((pad(role.name, 16) + " ", Tone.CODE), one_line(role.description))
            for role in chat.runtime.roles.values()
        ]
    )


def _model(chat: Chat, argument: str) -> Work | None:
    if not argument:
        return _list_models(chat)
    chat.host.reopen(model=argument)
    chat.conversation.add_notice(f"Model changed to {argument}.")
    return None


async def _list_models(chat: Chat) -> None:
    current = chat.runtime.model if chat.host.ready else "none"
    settings = load_settings(chat.environment, chat.directory)
    found = await discover(chat.environment, settings)
    if chat.on_pick is not None:
        choices = [*_models(chat), *((offer.name, str(offer)) for offer in found.options)]
        if choices:
            chat.on_pick(
                f"Model (now {current})", choices, lambda name: submit(chat, f"/model {name}")
            )
            return
    lines = [f"The model is {current}. Change it with /model NAME:"]
    lines += [f"  {name} = {model}" for name, model in _models(chat)]
    lines += [f"  {offer}" for offer in found.options]
    chat.conversation.add_notice("\n".join(lines))


def _models(chat: Chat) -> list[Choice]:
    settings = load_settings(chat.environment, chat.directory)
    return list(settings.user.models.items())


def _mode(chat: Chat, argument: str) -> None:
    if not argument and chat.on_pick is not None:
        choices = [(str(mode), MODES[mode]) for mode in Mode]
        title = f"Mode (now {chat.runtime.mode})"
        chat.on_pick(title, choices, lambda mode: submit(chat, f"/mode {mode}"))
        return
    if not argument:
        chat.conversation.add_notice(f"The mode is {chat.runtime.mode}. Modes: {', '.join(Mode)}.")
        return
    if argument not in list(Mode):
        raise UsageError(f"Unknown mode {argument!r}; use one of: {', '.join(Mode)}.")
    chat.host.reopen(mode=argument)
    chat.conversation.add_notice(f"Mode changed to {argument}: {MODES[Mode(argument)]}.")


def _cancel(chat: Chat, argument: str) -> None:
    if argument:
        agent = chat.cancel_agent(argument)
        chat.conversation.add_notice(f"Cancelling {agent.id} ({agent.path}).")
    elif not chat.cancel_current():
        raise UsageError("Nothing is running.")


async def _diff(chat: Chat, name: str) -> None:
    changes = await chat.changes(name)
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


async def _undo(chat: Chat, argument: str) -> None:
    _show_undo_result(chat, await chat.undo(argument), "undone")


async def _redo(chat: Chat, argument: str) -> None:
    _show_undo_result(chat, await chat.redo(argument), "redone")


def _show_undo_result(chat: Chat, result: UndoResult, done: str) -> None:
    if not result.ok:
        raise UsageError(
            f"Nothing was {done}: later changes conflict with it: {', '.join(result.refused)}."
            " Undo them first, or edit the files yourself."
        )
    files = [f"  {file}" for file in result.files]
    chat.conversation.add_notice("\n".join([f"{plural(len(files), 'file')} {done}:", *files]))


def _resume(chat: Chat, argument: str) -> Work | None:
    chat.host.check_idle()
    if argument:
        return chat.load_session(argument)
    if chat.interrupted_run is None:
        return _list_sessions(chat)
    chat.resume_interrupted()
    return None


async def _list_sessions(chat: Chat) -> None:
    async with open_journal(chat.directory, chat.host.options.get("environment")) as store:
        rows = await store.runs(limit=200)
    sessions: dict[str, list[Any]] = {}
    for row in rows:
        if row.session is not None and row.sealed:
            sessions.setdefault(row.session, []).append(row)
    if not sessions:
        raise UsageError("There is no earlier conversation to resume.")
    now = chat.clock.now()
    if chat.on_pick is not None:
        choices = [
            (name, f"{format_duration(now - runs[0].started_at)} ago  {one_line(runs[-1].task)}")
            for name, runs in sessions.items()
        ]
        chat.on_pick("Sessions", choices, lambda name: submit(chat, f"/resume {name}"))
        return

    lines: list[Line] = [styled(("Resume one of these with /resume ID:", Tone.DIM))]
    for name, runs in list(sessions.items())[:MAX_SESSIONS]:
        age = format_duration(now - runs[0].started_at)
        about = f"{age} ago, {plural(len(runs), 'message')}"
        lines.append(
            styled(
                (f"  {name}  ", Tone.CODE),
                (pad(about, 24) + " ", Tone.DIM),
                one_line(runs[-1].task),
            )
        )
    chat.conversation.add_lines(lines)


def _budget(chat: Chat, argument: str) -> None:
    if argument:
        name, value = _parse_limit(argument)
        limits = chat.host.options.get("limits", Limits())
        chat.host.reopen(limits=msgspec.structs.replace(limits, **{name: value}))
        chat.conversation.add_notice(f"{name} is now {value:,} for each message.")
        return
    budget, trees = chat.runtime.budget, list(chat.forest.trees.values())
    tokens = sum(tree.run.usage.tokens for tree in trees)
    cost = sum(tree.run.usage.cost_usd for tree in trees)
    limits = [f"  {name} {_limit_text(budget, name)}" for name in LIMIT_FLAGS]
    used = f"{short_count(tokens)} tokens{f', {format_cost(cost)}' if cost else ''}"
    lines = [f"This conversation has used {used}."]
    lines += ["Limits for each message; change one with /budget NAME VALUE:", *limits]
    chat.conversation.add_notice("\n".join(lines))


def _parse_limit(argument: str) -> tuple[str, int | float]:
    name, _, value = argument.replace("=", " ").partition(" ")
    if name not in LIMIT_FLAGS:
        raise UsageError(f"Unknown limit {name!r}; use one of: {', '.join(LIMIT_FLAGS)}.")
    try:
        digits = value.strip().replace(",", "").replace("_", "")
        number: int | float = LIMIT_FLAGS[name].type(digits)
    except ValueError:
        raise UsageError(f"{name} must be a number, not {value.strip()!r}.") from None
    Budget(**{name: number})  # type: ignore[arg-type]  # Raises for an invalid number.
    return name, number


def _limit_text(budget: Budget, name: str) -> str:
    value = getattr(budget, name)
    return "none" if value is None else f"{value:,g}" if isinstance(value, float) else f"{value:,}"


def _status(chat: Chat, _: str) -> None:
    runtime, sandbox = chat.runtime, chat.runtime.sandbox
    numbers = {} if chat.tree is None else chat.tree.counts
    counts = ", ".join(f"{number:,} {state}" for state, number in numbers.items() if number)
    facts = {
        "directory": str(chat.directory),
        "model": runtime.model,
        "mode": f"{runtime.mode} ({MODES[runtime.mode]})",
        "sandbox": "none: shell commands are off" if sandbox is None else sandbox.tier,
        "session": chat.session or "not started",
        "agents": counts or "none",
    }
    chat.conversation.add_notice("\n".join(f"{label:<10} {text}" for label, text in facts.items()))


def _copy(chat: Chat, argument: str) -> None:
    replies = [e.text for e in chat.conversation.entries if isinstance(e, ReplyEntry) and e.text]
    if argument == "code":
        found = re.findall(r"^```[^\n]*\n(.*?)^```", "\n\n".join(replies), re.M | re.S)
    elif argument:
        raise UsageError(f"/copy takes nothing or `code`, not {argument!r}.")
    else:
        found = replies
    if not found:
        raise UsageError("There is nothing to copy yet.")
    if chat.on_copy is None:
        raise UsageError("There is no terminal to copy with.")
    chat.on_copy(found[-1].rstrip("\n"))
    chat.conversation.add_notice(f"Copied {plural(len(found[-1].splitlines()), 'line')}.")


def _clear(chat: Chat, _: str) -> None:
    chat.host.check_idle()
    chat.start_new_conversation()


def _export(chat: Chat, argument: str) -> None:
    name = argument or f"conversation-{chat.session or 'new'}.md"
    path = chat.directory / Path(name).expanduser()
    if not chat.conversation.entries:
        raise UsageError("There is nothing to export yet.")
    refuse_links(chat.directory, path)
    try:
        with path.open("x", encoding="utf-8", errors="replace") as file:
            file.write(conversation_markdown(chat.conversation.entries))
    except FileExistsError:
        raise UsageError(f"{path} already exists. Name another file: /export FILE") from None
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}.") from None
    chat.conversation.add_notice(f"Exported to {path}")


def role_choices(chat: Chat) -> list[Choice]:
    return [(role.name, role.description) for role in chat.runtime.roles.values()]


def active_choices(chat: Chat) -> list[Choice]:
    return _agent_choices(agent for _, agent in chat.active_children())


def _agent_choices(agents: Iterable[AgentState]) -> list[Choice]:
    return [(agent.id, f"{agent.path}  {agent.title}") for agent in agents]


def _mode_choices(_: Chat) -> list[Choice]:
    return [(str(mode), text) for mode, text in MODES.items()]


def _changed_files_choices(chat: Chat) -> list[Choice]:
    return _agent_choices(a for _, a in chat.agents() if a.change_numbers or a.unmerged_files)


COMMANDS = (
    SlashCommand("spawn", "[ROLE] TASK", "Start an agent in the background.",
                 _spawn, role_choices),
    SlashCommand("plan", "GOAL", "Write a plan, review and edit it, then run it.", _plan),
    SlashCommand("tasks", "", "List child agents with status and duration.", _tasks),
    SlashCommand("agents", "", "List the roles that agents can have.", _agents),
    SlashCommand("diff", "[AGENT]", "Show the last file changes, or those of one agent.",
                 _diff, _changed_files_choices),
    SlashCommand("undo", "[AGENT]", "Undo the last file changes, or those of one agent.",
                 _undo, _changed_files_choices),
    SlashCommand("redo", "[AGENT]", "Redo what /undo has undone.", _redo, _changed_files_choices),
    SlashCommand("cancel", "[AGENT]", "Cancel the run, or one agent. It cannot be resumed.",
                 _cancel, active_choices, ("stop",)),
    SlashCommand("model", "[NAME]", "Show or change the model.", _model, _models),
    SlashCommand("mode", "[MODE]", "Show or change what agents may do without asking.",
                 _mode, _mode_choices, ("permissions",)),
    SlashCommand("budget", "[NAME VALUE]", "Show usage, and show or change the limits.",
                 _budget, lambda _: [(name, "") for name in LIMIT_FLAGS]),
    SlashCommand("status", "", "Show model, mode, sandbox and session.", _status),
    SlashCommand("resume", "[ID]", "Resume the interrupted run, or an earlier conversation.",
                 _resume),
    SlashCommand("sessions", "", "List earlier conversations, and resume one.",
                 lambda chat, _: _list_sessions(chat)),
    SlashCommand("copy", "[code]", "Copy the last answer, or its last code block.", _copy,
                 lambda _: [("code", "The last code block")]),
    SlashCommand("compact", "", "Summarize the conversation to free context.",
                 lambda chat, _: chat.compact()),
    SlashCommand("clear", "", "Start a new conversation.", _clear, aliases=("new",)),
    SlashCommand("export", "[FILE]", "Export the conversation as Markdown.", _export),
    SlashCommand("help", "[COMMAND]", "Show this help.", _help, aliases=("?",)),
    SlashCommand("quit", "", "Quit. You can resume an interrupted run later.",
                 lambda chat, _: chat.on_quit(), aliases=("exit",)),
)  # fmt: skip
COMMANDS_BY_NAME = {
    name: command for command in COMMANDS for name in (command.name, *command.aliases)
}
