"""The keys there are: tables, from which the help and the bindings are made."""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """`keys` as Textual names them, `shown` as people read them.

    Those without an action mean something to a widget of Textual's, or to the prompt.
    """

    keys: str
    shown: str
    action: str
    help: str


KEYS = (
    Key("enter", "enter", "", "Send. A new line is ctrl+j, or enter after a \\."),
    Key("up,down", "up, down", "", "What was typed before."),
    Key("tab", "tab", "", "Take what is proposed; else go to the agents, and back."),
    Key("ctrl+underscore", "ctrl+_", "", "Take back what was typed last."),
    Key("escape", "esc", "escape", "Back to the prompt; from there, interrupt what is under way."),
    Key("ctrl+g", "ctrl+g", "failure", "See why an agent failed; again: the next one that did."),
    Key("ctrl+o", "ctrl+o", "whole", "Show all that tools did, or little of it."),
    Key("ctrl+t", "ctrl+t", "agents", "Hide the agents, or show them."),
    Key("shift+tab", "shift+tab", "mode", "The next mode: plan, normal, auto."),
    Key("pageup", "page up", "scroll(-1)", "Scroll the conversation up,"),
    Key("pagedown", "page down", "scroll(1)", "and down."),
    Key("f1", "f1", "help", "This help."),
    Key(
        *("ctrl+c", "ctrl+c", "interrupt"),
        "Interrupt what is under way; else clear the line; else leave.",
    ),
    Key("ctrl+z", "ctrl+z", "suspend_process", "Back to the shell for now; its fg goes on here."),
    Key("ctrl+q", "ctrl+q", "leave", "Leave. What was under way can be gone on with."),
)
TREE_KEYS = (
    Key("up,k", "up, k", "move(-1)", "The agent above."),
    Key("down,j", "down, j", "move(1)", "The agent below."),
    Key("pageup", "page up", "page(-1)", "A page up."),
    Key("pagedown", "page down", "page(1)", "A page down."),
    Key("home", "home", "edge(0)", "The first."),
    Key("end", "end", "edge(-1)", "The last."),
    Key("right", "right", "fold(True)", "Show what is below it."),
    Key("left", "left", "fold(False)", "Hide what is below it, or go to its parent."),
    Key("enter", "enter", "choose", "See all about it; those that are folded are shown."),
    Key("x", "x", "stop", "Stop it, and all below it."),
)
DETAIL_KEYS = (
    Key("escape,q", "esc, q", "back", "Back to the conversation."),
    Key("n", "n", "next(1)", "The next agent."),
    Key("p", "p", "next(-1)", "The one before."),
    Key("f,ctrl+g", "f, ctrl+g", "failure", "The next one that failed."),
    Key("o,ctrl+o", "o, ctrl+o", "whole", "All that tools answered, or little of it."),
    Key("t", "t", "transcript", "Go to the transcript."),
    Key("x", "x", "stop", "Stop it, and all below it."),
    Key("up,k", "up, k", "by(-1)", "Scroll up,"),
    Key("down,j", "down, j", "by(1)", "and down."),
    Key("pageup,b", "page up, b", "page(-1)", "A page up."),
    Key("pagedown,space", "page down, space", "page(1)", "A page down."),
    Key("home", "home", "edge(0)", "The beginning."),
    Key("end", "end", "edge(1)", "The end."),
)
