"""Parses server-sent events from bytes that arrive in any pieces."""

from __future__ import annotations

MAX_LINE_BYTES = 4 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """A line, or the data of one event, is larger than any model's reply."""


class EventParser:
    """Takes bytes, and returns the data of each event that has become complete.

    Data keeps surrounding white space, which JSON ignores. Events named `error`, and the lines
    `error: {…}` that some servers write instead, are collected in `errors`.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._rest_size = 0
        self._data: list[bytes] = []
        self._data_size = 0
        self._is_error = False
        self.errors: list[bytes] = []
        self.unknown_lines: list[bytes] = []
        """The first few lines that are no part of an event."""

    def feed(self, piece: bytes) -> list[bytes]:
        rest = self._rest
        if rest:
            if b"\n" not in piece:
                self._keep(piece)
                return []
            rest.append(piece)
            piece = b"".join(rest)
            rest.clear()
            self._rest_size = 0
        events: list[bytes] = []
        is_between_events = not self._data and not self._is_error
        if is_between_events and piece.startswith(b"data:"):
            events, piece = _unnamed_events(piece)
        lines = piece.split(b"\n")
        last = lines.pop()
        if last:
            self._keep(last)
        if is_between_events and lines and lines[0].startswith(b"event:"):
            whole = len(lines) - len(lines) % 3
            named = _named_events(lines[:whole])
            if named is not None:
                events += named
                lines = lines[whole:]
        return events + self._events(lines)

    def end(self) -> list[bytes]:
        """Return the rest of a stream that has no final newline."""
        lines = [b"".join(self._rest), b""]
        self._rest.clear()
        return self._events(lines)

    def _keep(self, piece: bytes) -> None:
        self._rest.append(piece)
        self._rest_size += len(piece)
        if self._rest_size > MAX_LINE_BYTES:
            raise EventTooLarge

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if line.startswith(b"data:"):
                if data:
                    self._continue(line[5:], events)
                else:
                    data.append(line[5:])
            elif line and line != b"\r":
                self._other(line)
            elif len(data) == 1 and not self._is_error:
                events.append(data.pop())
            elif data:
                self._dispatch(events)
        return events

    def _continue(self, value: bytes, events: list[bytes]) -> None:
        """Add a data line that follows another one."""
        data = self._data
        # Some servers leave out the blank line between events. Inside one JSON text a line never
        # ends in } where the next begins with { or [.
        if data[-1].rstrip()[-1:] == b"}" and value.lstrip()[:1] in (b"{", b"["):
            self._dispatch(events)
        data.append(value)
        self._data_size += len(value)
        if self._data_size > MAX_LINE_BYTES:
            raise EventTooLarge

    def _dispatch(self, events: list[bytes]) -> None:
        data = self._data
        if len(data) == 1:
            event = data.pop()
        else:
            event = b"\n".join(data)
            data.clear()
            self._data_size = 0
        if self._is_error:
            self.errors.append(event)
            self._is_error = False
        else:
            events.append(event)

    def _other(self, line: bytes) -> None:
        line = line.removesuffix(b"\r")
        if line.startswith(_BOM):
            # Only at the very start, where no pending data could be reordered.
            if line[3:].startswith(b"data:"):
                self._data.append(line[8:])
                return
            line = line[3:]
        field, _, value = line.partition(b":")
        if field == b"event":
            self._is_error = value.strip() == b"error"
        elif field == b"error":
            self.errors.append(value)
        elif field not in (b"", b"id", b"retry", b"data") and len(self.unknown_lines) < 4:
            self.unknown_lines.append(line[:200])


# Most servers write all events alike. Going through their lines one by one would cost a call a
# tenth more of the Responses API, and a hundredth more of others.


def _unnamed_events(piece: bytes) -> tuple[list[bytes], bytes]:
    """The data of events that have one line of data and a blank line, and the rest of `piece`.

    If there are others among them, all of `piece` is the rest.
    """
    end = piece.rfind(b"\n\n")
    values = piece[5:end].split(b"\n\ndata:")
    # Any other line would have a line end of its own.
    if piece.count(b"\n", 0, end + 2) != 2 * len(values):
        return [], piece
    return values, piece[end + 2 :]


def _named_events(lines: list[bytes]) -> list[bytes] | None:
    """The data of events that have a name, one line of data and a blank line; None of others."""
    if any(lines[2::3]):
        return None
    named = [line for line in lines[::3] if line.startswith(b"event:") and b"error" not in line]
    values = [line[5:] for line in lines[1::3] if line.startswith(b"data:")]
    return values if 3 * len(named) == 3 * len(values) == len(lines) else None
