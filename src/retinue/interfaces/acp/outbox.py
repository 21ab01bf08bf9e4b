"""Updates of one session on their way to the editor. Bursts are merged before they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

Update = dict[str, Any]
Send = Callable[[Update], None]

FLUSH_S = 0.05
CHILD_FLUSH_S = 0.5
MAX_CHILD_UPDATES = 50
"""Progress of children per CHILD_FLUSH_S: 200 children must not flood an editor."""
_CHUNKS = ("agent_message_chunk", "agent_thought_chunk")


class Outbox:
    """Sends updates in order. For the progress of a child, it sends only the latest update."""

    def __init__(self, send: Send, is_congested: Callable[[], bool]) -> None:
        self._send = send
        self._is_congested = is_congested
        self._queue: list[Update] = []
        self._progress: dict[str, Update] = {}
        """Progress by id of the tool call, the longest waiting first."""
        self._filled = asyncio.Event()

    def put(self, update: Update) -> None:
        """Send an update, after all earlier ones. It replaces progress of the same tool call."""
        self._progress.pop(update.get("toolCallId", ""), None)
        last = self._queue[-1] if self._queue else None
        kind = update["sessionUpdate"]
        if last is not None and kind in _CHUNKS and last["sessionUpdate"] == kind:
            text = last["content"]["text"] + update["content"]["text"]
            self._queue[-1] = update | {"content": {"type": "text", "text": text}}
        else:
            self._queue.append(update)
        self._filled.set()

    def put_progress(self, update: Update) -> None:
        """Send progress of a tool call later, unless a newer update replaces it first."""
        self._progress[update["toolCallId"]] = update
        self._filled.set()

    def flush(self) -> None:
        """Send all waiting updates."""
        self._send_queue()
        self._send_progress(len(self._progress))
        self._filled.clear()

    async def keep_sending(self) -> None:
        """Send updates until cancelled. While the editor does not read, updates wait here."""
        next_progress_at = 0.0
        clock = asyncio.get_running_loop().time
        while True:
            await self._filled.wait()
            if not self._is_congested():
                self._send_queue()
                if clock() >= next_progress_at:
                    self._send_progress(MAX_CHILD_UPDATES)
                    next_progress_at = clock() + CHILD_FLUSH_S
                if not self._progress:
                    self._filled.clear()
            await asyncio.sleep(FLUSH_S)

    def _send_queue(self) -> None:
        queue, self._queue = self._queue, []
        for update in queue:
            self._send(update)

    def _send_progress(self, limit: int) -> None:
        for name in list(self._progress)[:limit]:
            self._send(self._progress.pop(name))
