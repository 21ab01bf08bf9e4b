"""Slash commands of the chat, as a table that help and completion use too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial

import msgspec

from retinue.domain.agent_state import AgentState
from retinue.domain.slash_command import split_command
from retinue.errors import RetinueError, UsageError
from retinue.interfaces.chat.chat import Action, Chat, Choice
from retinue.interfaces.chat.file_changes import redo, rewind, show_changes, undo
from retinue.interfaces.chat.input_parser import (
    AddressedInput,
    CommandInput,
    MessageInput,
    ShellInput,
    parse_input,
)
from retinue.interfaces.chat.keys import AGENT_SCREEN_KEYS, KEYS, TREE_KEYS
from retinue.interfaces.chat.plan_command import run_plan
from retinue.interfaces.chat.questions import Question
from retinue.interfaces.chat.session_commands import (
    clear,
    compact,
    copy,
    export,
    fork,
    rename,
    resume,
    show_sessions,
)
from retinue.interfaces.chat.setting_commands import (
    change_budget,
    change_mode,
    change_model,
    change_theme,
    mode_choices,
    model_choices,
    theme_choices,
)
from retinue.interfaces.chat.shell_command import run_shell
from retinue.interfaces.cli.options import LIMIT_FLAGS
from retinue.interfaces.mentions import is_file_in, missing_files_text
from retinue.interfaces.view.agent_tree import (
    DisplayState,
    display_state,
    elapsed_s,
    failure_reason,
    short_name,
)
from retinue.interfaces.view.formatting import format_duration, one_line, pad
from retinue.interfaces.view.modes import MODES
from retinue.interfaces.view.styled_text import Line, Tone, styled, wrap

MAX_TASKS = 40


class SlashCommand(msgspec.Struct, frozen=True):
    """`run` gets the text after the name; a coroutine that it returns runs as a task of the host.

    `choices` are completions of the first word after the name.
    """

    name: str
    usage: str
    help: str
    run: Action
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
        is_file = partial(is_file_in, chat.directory)
        match parse_input(text, names=chat.addressable_names(), is_file=is_file):
            case CommandInput(name, argument):
                _run_command(chat, name, argument)
            case ShellInput(command):
                run_shell(chat, command)
            case AddressedInput(name, text):
                chat.send_to(name, text)
            case MessageInput() as message:
                chat.send_message(message)
                if missing := missing_files_text(text, is_file):
                    chat.conversation.add_notice(missing, Tone.STOPPED)
    except RetinueError as error:
        chat.show_error(error)


def answers(question: Question, text: str) -> bool:
    """Whether the text is an answer to the question, and not a command."""
    return question.accepts(text) and not text.startswith(("/", "!"))


def _run_command(chat: Chat, name: str, argument: str) -> None:
    command = COMMANDS_BY_NAME.get(name)
    if command is None:
        if name in SHELL_COMMANDS:
            raise UsageError(f"There is no /{name} here. In a shell, use: {SHELL_COMMANDS[name]}")
        near = get_close_matches(name, COMMANDS_BY_NAME, n=1)
        hint = f"Did you mean /{near[0]}?" if near else "/help lists all commands."
        raise UsageError(f"Unknown command /{name}. {hint}")
    chat.perform(command.run, argument)


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
    """Choose who gets a task: a role, or an agent that runs."""

    def draft(chat: Chat, name: str) -> None:
        chat.on_draft(f"@{name} ")

    chat.pick("Agents", [*active_choices(chat), *role_choices(chat)], draft)


def _cancel(chat: Chat, argument: str) -> None:
    if argument:
        agent = chat.cancel_agent(argument)
        chat.conversation.add_notice(f"Cancelling {agent.id} ({agent.path}).")
    elif not chat.cancel_current():
        raise UsageError("Nothing is running.")


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


def role_choices(chat: Chat) -> list[Choice]:
    return [(role.name, role.description) for role in chat.runtime.roles.values()]


def active_choices(chat: Chat) -> list[Choice]:
    return _agent_choices(agent for _, agent in chat.active_children())


def _agent_choices(agents: Iterable[AgentState]) -> list[Choice]:
    return [(agent.id, f"{agent.path}  {agent.title}") for agent in agents]


def _changed_files_choices(chat: Chat) -> list[Choice]:
    return _agent_choices(a for _, a in chat.agents() if a.change_numbers or a.unmerged_files)


COMMANDS = (
    SlashCommand("spawn", "[ROLE] TASK", "Start an agent in the background.",
                 _spawn, role_choices),
    SlashCommand("plan", "GOAL", "Write a plan, review and edit it, then run it.", run_plan),
    SlashCommand("tasks", "", "List child agents with status and duration.", _tasks),
    SlashCommand("agents", "", "Choose a role for a new agent, or a running agent.", _agents),
    SlashCommand("diff", "[AGENT]", "Show the last file changes, or those of one agent.",
                 show_changes, _changed_files_choices),
    SlashCommand("undo", "[AGENT]", "Undo the last file changes, or those of one agent.",
                 undo, _changed_files_choices),
    SlashCommand("redo", "[AGENT]", "Redo what /undo has undone.", redo, _changed_files_choices),
    SlashCommand("rewind", "", "Undo all changes since a message, and edit it.",
                 rewind, aliases=("checkpoint",)),
    SlashCommand("cancel", "[AGENT]", "Cancel the run, or one agent. It cannot be resumed.",
                 _cancel, active_choices, ("stop",)),
    SlashCommand("model", "[NAME]", "Choose the model. It is used once it has answered.",
                 change_model, model_choices, ("models",)),
    SlashCommand("mode", "[MODE]", "Show or change what agents may do without asking.",
                 change_mode, mode_choices, ("permissions", "approvals")),
    SlashCommand("theme", "[NAME]", "Choose the colours: auto, light, dark or terminal.",
                 change_theme, theme_choices, ("themes",)),
    SlashCommand("budget", "[NAME VALUE]", "Show usage, and show or change the limits.",
                 change_budget, lambda _: [(name, "") for name in LIMIT_FLAGS], ("usage", "cost")),
    SlashCommand("status", "", "Show model, mode, sandbox and session.", _status),
    SlashCommand("resume", "[ID]", "Resume the interrupted run, or an earlier conversation.",
                 resume, aliases=("continue",)),
    SlashCommand("fork", "[aN] [tN] [TEXT]", "Do a run again from the end of turn N, in a copy.",
                 fork),
    SlashCommand("sessions", "", "Resume or delete an earlier conversation.",
                 show_sessions),
    SlashCommand("rename", "TITLE", "Give this conversation another title.", rename),
    SlashCommand("copy", "[code]", "Copy the last answer, or its last code block.", copy,
                 lambda _: [("code", "The last code block")]),
    SlashCommand("compact", "", "Summarize the conversation to free context.",
                 compact, aliases=("summarize",)),
    SlashCommand("clear", "", "Start a new conversation.", clear, aliases=("new",)),
    SlashCommand("export", "[FILE]", "Export the conversation as Markdown, or to a FILE.html.",
                 export),
    SlashCommand("help", "[COMMAND]", "Show this help.", _help, aliases=("?",)),
    SlashCommand("quit", "", "Quit. You can resume an interrupted run later.",
                 lambda chat, _: chat.on_quit(), aliases=("exit", "q")),
)  # fmt: skip
# Slash commands of other chats.
SHELL_COMMANDS = {
    "commit": "retinue commit",
    "config": "retinue config",
    "doctor": "retinue doctor",
    "init": "retinue init",
    "login": "retinue setup",
    "mcp": "retinue tools",
    "skills": "retinue skills",
}
COMMANDS_BY_NAME = {
    name: command for command in COMMANDS for name in (command.name, *command.aliases)
}
