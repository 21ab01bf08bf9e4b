"""Key bindings of the chat, as tables. The help and the bindings of the widgets use them."""

from __future__ import annotations

from typing import NamedTuple


class KeyBinding(NamedTuple):
    """`keys` are Textual's names of the keys, `label` the names that the help shows.

    A binding without an action is handled by the input box, or by a widget of Textual.
    """

    keys: str
    label: str
    action: str
    help: str


KEYS = (
    KeyBinding("enter", "enter", "", "Send. For a new line, use ctrl+j, or type \\ before enter."),
    KeyBinding("up,down", "up, down", "", "Browse the input history."),
    KeyBinding("tab", "tab", "", "Accept a completion, or switch between input and agents."),
    KeyBinding("ctrl+r", "ctrl+r", "history", "Search the input history."),
    KeyBinding("ctrl+p", "ctrl+p", "palette", "Choose a command from a list."),
    KeyBinding("ctrl+underscore", "ctrl+_", "", "Undo the last edit of the input."),
    KeyBinding("f4", "f4", "edit", "Edit the input in your editor (VISUAL, else EDITOR)."),
    KeyBinding("escape", "esc", "escape", "Return to the input; from there, interrupt the run."),
    KeyBinding("ctrl+g", "ctrl+g", "failure", "Show why an agent failed; again for the next one."),
    KeyBinding("ctrl+o", "ctrl+o", "toggle_full", "Show or hide the full output of tools."),
    KeyBinding("ctrl+t", "ctrl+t", "agents", "Show or hide the agents."),
    KeyBinding("shift+tab", "shift+tab", "mode", "Switch to the next mode: plan, normal, auto."),
    KeyBinding("pageup", "page up", "scroll(-1)", "Scroll the conversation up."),
    KeyBinding("pagedown", "page down", "scroll(1)", "Scroll the conversation down."),
    KeyBinding("f1", "f1", "help", "Show this help."),
    KeyBinding("ctrl+c", "ctrl+c", "interrupt", "Interrupt the run, clear the input, or quit."),
    KeyBinding("ctrl+z", "ctrl+z", "suspend_process", "Go to the shell; fg brings you back."),
    KeyBinding("ctrl+q", "ctrl+q", "quit_chat", "Quit. You can resume an interrupted run later."),
)  # fmt: skip
TREE_KEYS = (
    KeyBinding("up,k", "up, k", "move(-1)", "Move up."),
    KeyBinding("down,j", "down, j", "move(1)", "Move down."),
    KeyBinding("pageup", "page up", "page(-1)", "Move one page up."),
    KeyBinding("pagedown", "page down", "page(1)", "Move one page down."),
    KeyBinding("home", "home", "edge(0)", "Go to the first agent."),
    KeyBinding("end", "end", "edge(-1)", "Go to the last agent."),
    KeyBinding("right", "right", "expand(True)", "Show the children."),
    KeyBinding("left", "left", "expand(False)", "Hide the children, or go to the parent."),
    KeyBinding("enter", "enter", "select", "Show the details of the agent, or expand a group."),
    KeyBinding("x", "x", "cancel", "Cancel the agent and its children."),
)
AGENT_SCREEN_KEYS = (
    KeyBinding("escape,q", "esc, q", "back", "Return to the conversation."),
    KeyBinding("n", "n", "next(1)", "Show the next agent."),
    KeyBinding("p", "p", "next(-1)", "Show the previous agent."),
    KeyBinding("f,ctrl+g", "f, ctrl+g", "failure", "Show the next agent that failed."),
    KeyBinding("o,ctrl+o", "o, ctrl+o", "toggle_full", "Show or hide the full output of tools."),
    KeyBinding("t", "t", "transcript", "Go to the transcript."),
    KeyBinding("x", "x", "cancel", "Cancel the agent and its children."),
    KeyBinding("up,k", "up, k", "scroll_by(-1)", "Scroll up."),
    KeyBinding("down,j", "down, j", "scroll_by(1)", "Scroll down."),
    KeyBinding("pageup,b", "page up, b", "page(-1)", "Scroll one page up."),
    KeyBinding("pagedown,space", "page down, space", "page(1)", "Scroll one page down."),
    KeyBinding("home", "home", "edge(0)", "Go to the beginning."),
    KeyBinding("end", "end", "edge(1)", "Go to the end."),
)
