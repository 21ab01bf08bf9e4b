"""The line that says what the user of a chat waits for, and since when."""

from __future__ import annotations

from collections import deque

from retinue.domain.agent_state import ROOT_ID, AgentState
from retinue.domain.plural import plural
from retinue.interfaces.chat.chat import Chat
from retinue.interfaces.view.activity_line import (
    activity_line,
    agent_counts,
    fan_out_progress,
    root_activity,
)
from retinue.interfaces.view.agent_tree import AgentTree
from retinue.interfaces.view.conversation_entries import Frame
from retinue.interfaces.view.styled_text import Line, styled

# While a model thinks, its server sends something several times a second. A server that only keeps
# the connection open sends something every few seconds.
THINKING_SIGNS, THINKING_S = 3, 3.0


class Activity:
    """Draws the activity of a chat, and how long ago it began."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._what = ""
        self._since = 0.0
        self._signs: deque[float] = deque(maxlen=THINKING_SIGNS)
        chat.on_life = lambda: self._signs.append(chat.clock.now())

    def line(self, frame: Frame, width: int) -> Line | None:
        """The line; None while nothing happens."""
        what, tree = self._current(frame.now)
        if what != self._what:
            self._what, self._since = what, frame.now
            self._signs.clear()
        if not what:
            return None
        loads = self._chat.runtime.loads if self._chat.host.ready else ()
        counts = styled() if tree is None or not tree.run.agents else agent_counts(tree, loads)
        # The progress of a fan-out has its own estimate of the time.
        since_s = 0.0 if what[:1].isdigit() else frame.now - self._since
        return activity_line(what, since_s, counts, spinner=frame.spinner, width=width)

    def _current(self, now: float) -> tuple[str, AgentTree | None]:
        chat = self._chat
        if chat.host.opening:
            return chat.opening_status or "starting", None
        if chat.current_run_id is not None:
            tree = chat.forest.trees.get(chat.current_run_id)
            root = None if tree is None else tree.run.root
            if tree is None or root is None or not root.turn:
                return "recording the files of the project", None
            return self._of_root(root, tree, now), tree
        if chat.waiting_for:
            return chat.waiting_for, None
        for tree in reversed(chat.forest.trees.values()):
            if tree.active:
                running = plural(len(chat.active_children()), "agent")
                return fan_out_progress(tree, now) or f"{running} in the background", tree
        return "", None

    def _of_root(self, root: AgentState, tree: AgentTree, now: float) -> str:
        chat = self._chat
        what = root_activity(
            root,
            tree,
            now=now,
            writing=bool(chat.streamed_text(tree.run.id, ROOT_ID)),
            thinking=len(self._signs) == THINKING_SIGNS and now - self._signs[0] < THINKING_S,
            loads=chat.runtime.loads if chat.host.ready else (),
        )
        about = (root.id, *root.children)
        progress = next((text for one in about if (text := tree.progress(one))), "")
        return f"{what}: {progress}" if progress else what
