"""What can be typed behind a slash: a table, from which help and completion are made too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from retinue.config.settings_file import load_settings
from retinue.discovery import discover
from retinue.domain.budget import Budget, Limits
from retinue.domain.grant import Mode
from retinue.errors import RetinueError, UsageError
from retinue.interfaces.chat.chat import MODES, Chat
from retinue.interfaces.chat.export import exported
from retinue.interfaces.chat.input_parser import Addressed, Message, Shell, Slash, parse
from retinue.interfaces.chat.keys import DETAIL_KEYS, KEYS, TREE_KEYS
from retinue.interfaces.chat.questions import Question
from retinue.interfaces.cli.options import LIMIT_FLAGS
from retinue.interfaces.view.agent_tree import (
    DisplayState,
    display_state,
    elapsed_s,
    failure_reason,
)
from retinue.interfaces.view.file_diff import diff_lines
from retinue.interfaces.view.formatting import (
    format_cost,
    format_duration,
    one_line,
    pad,
    plural,
    short_count,
)
from retinue.interfaces.view.styled_text import Line, Span, Tone, clip_line, wrap
from retinue.project import open_journal
from retinue.runtime.history.undo import UndoResult

Choice = tuple[str, str]
LISTED_TASKS = 40
LISTED_SESSIONS = 15
SHOWN_CHANGES = 400


class Command(msgspec.Struct, frozen=True):
    """`run` gets what stands behind the name; `choices` are what could stand there first."""

    name: str
    usage: str
    help: str
    run: Callable[[Chat, str], None]
    choices: Callable[[Chat], Iterable[Choice]] = lambda _: ()
    aliases: tuple[str, ...] = ()


def submit(chat: Chat, text: str) -> None:
    """Do what a line says that was typed. Mistakes become notices."""
    if not text.strip():
        return
    chat.history.add(text)
    try:
        # Only the first is seen, so nothing is an answer to another.
        question = next(iter(chat.questions.open), None)
        if question is not None and answers(question, text):
            question.answer(text)
            return
        match parse(text, names=chat.names(), is_file=chat.is_file):
            case Slash(name, argument):
                _perform(chat, name, argument)
            case Shell(command):
                chat.run_shell(command)
            case Addressed(name, words):
                chat.address(name, words)
            case Message() as message:
                chat.send(message)
    except RetinueError as error:
        chat.problem(error)


def answers(question: Question, text: str) -> bool:
    """Is what was typed an answer, and no command?"""
    return question.takes(text) and not text.startswith(("/", "!"))


def _perform(chat: Chat, name: str, argument: str) -> None:
    command = BY_NAME.get(name)
    if command is None:
        near = get_close_matches(name, BY_NAME, n=1)
        hint = f"; did you mean /{near[0]}?" if near else "; /help lists them."
        raise UsageError(f"There is no command /{name}{hint}")
    command.run(chat, argument)


def _help(chat: Chat, argument: str) -> None:
    if argument:
        name = argument.removeprefix("/")
        if name not in BY_NAME:
            raise UsageError(f"There is no command /{name}; /help lists them.")
        command = BY_NAME[name]
        chat.conversation.add_notice(f"/{command.name} {command.usage}\n{command.help}", Tone.PLAIN)
        return
    tables = help_tables()

    def lines(width: int) -> list[Line]:
        shown: list[Line] = []
        for title, items in tables.items():
            shown += [(), (Span(title, Tone.STRONG),)] if shown else [(Span(title, Tone.STRONG),)]
            for what, text in items:
                head = f"  {pad(what, 24)} "
                shown += wrap([Span(text)], width, first=head, rest=" " * len(head), tone=Tone.CODE)
        return shown

    chat.conversation.add_notice(lines)


def help_tables() -> dict[str, list[Choice]]:
    """All that can be typed and pressed, with what it does, by title."""
    return {
        "Commands": [(f"/{c.name} {c.usage}".rstrip(), c.help) for c in COMMANDS],
        "Prefixes": [
            ("@FILE", "Give a file of the project along with what you say."),
            ("@ROLE task", "Send an agent of that role, like /spawn."),
            ("@AGENT text", "Say something to an agent at work."),
            ("!command", "Run a shell command; the next message tells its output to the model."),
        ],
        "Keys": [(key.shown, key.help) for key in KEYS],
        "Keys among the agents": [(key.shown, key.help) for key in TREE_KEYS],
        "Keys in the details of an agent": [(key.shown, key.help) for key in DETAIL_KEYS],
    }


def _spawn(chat: Chat, argument: str) -> None:
    roles = chat.runtime.roles
    first, _, rest = argument.partition(" ")
    role, task = (first, rest.strip()) if first in roles else ("researcher", argument)
    if not task:
        raise UsageError(f"Say what it should do: /spawn [{'|'.join(roles)}] task")
    chat.spawn(role, task)


def _plan(chat: Chat, argument: str) -> None:
    if not argument:
        raise UsageError("Say what the plan is for: /plan GOAL")
    chat.plan(argument)


def _tasks(chat: Chat, _: str) -> None:
    found = [(tree, agent) for tree, agent in chat.agents() if agent.parent_id is not None]
    if not found:
        chat.conversation.add_notice("No tasks were delegated in this conversation yet.")
        return
    # What failed first, then what is under way, then the rest; within each, the latest first.
    order = {mark: number for number, mark in enumerate(DisplayState)}
    found.sort(key=lambda pair: order[display_state(pair[1])])
    now = chat.clock.now()

    def lines(width: int) -> list[Line]:
        shown: list[Line] = [
            (Span(pad("agent", 18) + pad("status", 17) + pad("time", 9) + "task", Tone.DIM),)
        ]
        for _, agent in found[:LISTED_TASKS]:
            mark = display_state(agent)
            name = f"{agent.id} {agent.path.rpartition('/')[2]}"
            status = str(agent.status or mark).replace("_", " ")
            took = format_duration(elapsed_s(agent, now)) if agent.started_at else ""
            why = f"  ({failure_reason(agent)})" if mark is DisplayState.FAILED else ""
            head = pad(name, 17) + " "
            middle = pad(status, 16) + " "
            shown.append(
                clip_line(
                    (
                        Span(head),
                        Span(middle, Tone(mark)),
                        Span(pad(took, 8) + " ", Tone.DIM),
                        Span(one_line(agent.title)),
                        Span(why, Tone.FAILED),
                    ),
                    width,
                )
            )
        if len(found) > LISTED_TASKS:
            shown.append((Span(f"… and {len(found) - LISTED_TASKS:,} more", Tone.DIM),))
        return shown

    chat.conversation.add_notice(lines)


def _agents(chat: Chat, _: str) -> None:
    roles = list(chat.runtime.roles.values())

    def lines(width: int) -> list[Line]:
        return [
            clip_line(
                (Span(pad(role.name, 16) + " ", Tone.CODE), Span(one_line(role.description))),
                width,
            )
            for role in roles
        ]

    chat.conversation.add_notice(lines)


def _model(chat: Chat, argument: str) -> None:
    if argument:
        chat.engine.change(model=argument)
        chat.conversation.add_notice(f"The model is {argument} from now on.")
        return
    chat.engine.begin(_list_models(chat))


async def _list_models(chat: Chat) -> None:
    current = chat.runtime.policy.model if chat.engine.ready else "none"
    settings = load_settings(chat.environment.user_settings_file, chat.directory)
    found = await discover(chat.environment, settings)
    lines = [f"The model is {current}. Another: /model NAME"]
    lines += [f"  {name} = {model}" for name, model in _models(chat)]
    lines += [f"  {offer}" for offer in found.options]
    chat.conversation.add_notice("\n".join(lines))


def _models(chat: Chat) -> list[Choice]:
    settings = load_settings(chat.environment.user_settings_file, chat.directory)
    return list(settings.user.models.items())


def _mode(chat: Chat, argument: str) -> None:
    if not argument:
        chat.conversation.add_notice(
            f"The mode is {chat.runtime.policy.mode}; there are: {', '.join(Mode)}."
        )
        return
    if argument not in list(Mode):
        raise UsageError(f"Unknown mode {argument!r}; there are: {', '.join(Mode)}.")
    chat.engine.change(mode=argument)
    chat.conversation.add_notice(f"The mode is {argument} from now on: {MODES[Mode(argument)]}.")


def _cancel(chat: Chat, argument: str) -> None:
    if argument:
        agent = chat.cancel(argument)
        chat.conversation.add_notice(f"Stopping {agent.id} ({agent.path}).")
    elif not chat.stop():
        raise UsageError("Nothing is at work.")


def _diff(chat: Chat, argument: str) -> None:
    chat.engine.begin(_show_changes(chat, argument))


async def _show_changes(chat: Chat, name: str) -> None:
    changes = await chat.changes(name)
    if not changes:
        raise UsageError(f"{name or 'This conversation'} has changed no files.")

    def lines(width: int) -> list[Line]:
        shown = [line for change in changes for line in diff_lines(change, width)]
        if len(shown) > SHOWN_CHANGES:
            more = plural(len(shown) - SHOWN_CHANGES, "more line")
            shown = [*shown[:SHOWN_CHANGES], (Span(f"… {more}: `retinue diff`", Tone.DIM),)]
        return shown

    chat.conversation.add_notice(lines)


def _undo(chat: Chat, argument: str) -> None:
    chat.engine.begin(_rewrite(chat, chat.undo(argument), "undone"))


def _redo(chat: Chat, argument: str) -> None:
    chat.engine.begin(_rewrite(chat, chat.redo(argument), "redone"))


async def _rewrite(chat: Chat, work: Awaitable[UndoResult], done: str) -> None:
    rewritten = await work
    if not rewritten.ok:
        raise UsageError(
            f"Nothing was {done}, for this is in the way: {', '.join(rewritten.refused)}."
            " Settle that first, or edit the files yourself."
        )
    files = [f"  {file}" for file in rewritten.files]
    chat.conversation.add_notice("\n".join([f"{plural(len(files), 'file')} {done}:", *files]))


def _resume(chat: Chat, argument: str) -> None:
    chat.engine.check_idle()
    if not argument and chat.interrupted is not None:
        chat.go_on()
    elif argument:
        chat.engine.begin(chat.resume(argument))
    else:
        chat.engine.begin(_list_sessions(chat))


async def _list_sessions(chat: Chat) -> None:
    async with open_journal(chat.directory) as store:
        rows = await store.runs(limit=200)
    sessions: dict[str, list[Any]] = {}
    for row in rows:
        if row.session is not None:
            sessions.setdefault(row.session, []).append(row)
    if not sessions:
        raise UsageError("There is no conversation to go on with yet.")
    now = chat.clock.now()

    def lines(width: int) -> list[Line]:
        shown: list[Line] = [(Span("Go on with one of these: /resume ID", Tone.DIM),)]
        for name, runs in list(sessions.items())[:LISTED_SESSIONS]:
            said = (
                f"{format_duration(now - runs[0].started_at)} ago, {plural(len(runs), 'message')}"
            )
            shown.append(
                clip_line(
                    (
                        Span(f"  {name}  ", Tone.CODE),
                        Span(pad(said, 24) + " ", Tone.DIM),
                        Span(one_line(runs[-1].task)),
                    ),
                    width,
                )
            )
        return shown

    chat.conversation.add_notice(lines)


def _budget(chat: Chat, argument: str) -> None:
    if argument:
        name, value = _limit(argument)
        limits = chat.engine.options.get("limits", Limits())
        chat.engine.change(limits=msgspec.structs.replace(limits, **{name: value}))
        chat.conversation.add_notice(f"{name} is {value:,} for each message from now on.")
        return
    budget, trees = chat.runtime.policy.budget, list(chat.forest.trees.values())
    tokens = sum(tree.run.usage.tokens for tree in trees)
    cost = sum(tree.run.usage.cost_usd for tree in trees)
    limits = [f"  {name} {_amount(budget, name)}" for name in LIMIT_FLAGS]
    spent = f"{short_count(tokens)} tokens{f', {format_cost(cost)}' if cost else ''}"
    chat.conversation.add_notice(
        "\n".join(
            [
                f"This conversation has used {spent}.",
                "Limits of each message, changed by /budget NAME VALUE:",
                *limits,
            ]
        )
    )


def _limit(argument: str) -> tuple[str, int | float]:
    name, _, value = argument.replace("=", " ").partition(" ")
    if name not in LIMIT_FLAGS:
        raise UsageError(f"Unknown limit {name!r}; there are: {', '.join(LIMIT_FLAGS)}.")
    try:
        digits = value.strip().replace(",", "").replace("_", "")
        number: int | float = LIMIT_FLAGS[name].type(digits)
    except ValueError:
        raise UsageError(f"{name} must be a number, not {value.strip()!r}.") from None
    Budget(**{name: number})  # type: ignore[arg-type]  # Says what is wrong with it.
    return name, number


def _amount(budget: Budget, name: str) -> str:
    value = getattr(budget, name)
    return "none" if value is None else f"{value:,g}" if isinstance(value, float) else f"{value:,}"


def _status(chat: Chat, _: str) -> None:
    policy = chat.runtime.policy
    sandbox = chat.runtime.sandbox
    tree = chat.tree
    facts = {
        "directory": str(chat.directory),
        "model": policy.model,
        "mode": f"{policy.mode} ({MODES[policy.mode]})",
        "sandbox": "none: shell commands are off" if sandbox is None else sandbox.tier,
        "session": chat.session or "not begun",
        "agents": _counts(tree.counts) if tree is not None else "none",
    }
    chat.conversation.add_notice("\n".join(f"{what:<10} {text}" for what, text in facts.items()))


def _counts(counts: dict[DisplayState, int]) -> str:
    return ", ".join(f"{number:,} {mark}" for mark, number in counts.items() if number) or "none"


def _compact(chat: Chat, _: str) -> None:
    chat.compact()


def _clear(chat: Chat, _: str) -> None:
    chat.engine.check_idle()
    chat.begin_anew()


def _export(chat: Chat, argument: str) -> None:
    name = argument or f"conversation-{chat.session or 'new'}.md"
    path = chat.directory / Path(name).expanduser()
    if not chat.conversation.entries:
        raise UsageError("There is nothing to export yet.")
    try:
        with path.open("x", encoding="utf-8", errors="replace") as file:
            file.write(exported(chat.conversation.entries))
    except FileExistsError:
        raise UsageError(f"{path} is there already; name another: /export FILE") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
    chat.conversation.add_notice(f"Written to {path}")


def _quit(chat: Chat, _: str) -> None:
    chat.on_quit()


def _role_choices(chat: Chat) -> list[Choice]:
    return [(role.name, role.description) for role in chat.runtime.roles.values()]


def _agent_choices(chat: Chat) -> list[Choice]:
    return [(agent.id, f"{agent.path}  {agent.title}") for _, agent in chat.at_work()]


def _worker_choices(chat: Chat) -> list[Choice]:
    return [
        (a.id, f"{a.path}  {a.title}")
        for _, a in chat.agents()
        if a.change_numbers or a.unmerged_files
    ]


COMMANDS = (
    Command("spawn", "[ROLE] TASK", "Give a task to an agent beside the conversation.", _spawn,
            _role_choices),
    Command("plan", "GOAL", "Have a plan written; look at it, edit it, and have it carried out.",
            _plan),
    Command("tasks", "", "The tasks that were delegated, with status and duration.", _tasks),
    Command("agents", "", "The roles there are.", _agents),
    Command("diff", "[AGENT]", "What the last message, or one agent, has done to the files.",
            _diff, _worker_choices),
    Command("undo", "[AGENT]", "Take that back; what you have changed since stays.", _undo,
            _worker_choices),
    Command("redo", "[AGENT]", "Make again what was taken back.", _redo, _worker_choices),
    Command("cancel", "[AGENT]", "Stop what is under way, or one agent, for good.", _cancel,
            _agent_choices, ("stop",)),
    Command("model", "[NAME]", "Show or change the model.", _model, _models),
    Command("mode", "[MODE]", "Show or change how much happens without asking.", _mode,
            lambda _: [(str(mode), text) for mode, text in MODES.items()], ("permissions",)),
    Command("budget", "[NAME VALUE]", "What was used; show or change the limits.", _budget,
            lambda _: [(name, "") for name in LIMIT_FLAGS]),
    Command("status", "", "Model, mode, sandbox and session.", _status),
    Command("resume", "[ID]", "Go on with what was interrupted, or with an earlier conversation.",
            _resume),
    Command("compact", "", "Have the conversation summed up, and go on from that.", _compact),
    Command("clear", "", "Begin a new conversation.", _clear, aliases=("new",)),
    Command("export", "[FILE]", "Write the conversation to a file, as Markdown.", _export),
    Command("help", "[COMMAND]", "This.", _help, aliases=("?",)),
    Command("quit", "", "Leave. What was under way can be gone on with.", _quit, aliases=("exit",)),
)  # fmt: skip
BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
