"""Output with a size limit: the beginning and the end are kept."""

from __future__ import annotations


class CappedOutput:
    """Keeps at most `max_bytes`: the first half shows what ran, the last half how it ended."""

    def __init__(self, max_bytes: int) -> None:
        self._head_bytes = max_bytes // 2
        self._tail_bytes = max_bytes - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._fed = 0

    def feed(self, data: bytes) -> None:
        self._fed += len(data)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Trimmed rarely: moving the bytes for each chunk would be quadratic.
        if len(self._tail) > 2 * self._tail_bytes + 65_536:
            self._trim()

    @property
    def truncated_bytes(self) -> int:
        return max(0, self._fed - self._head_bytes - self._tail_bytes)

    def text(self) -> str:
        """The kept output, with a note where bytes were cut."""
        self._trim()
        if not self.truncated_bytes:
            return (self._head + self._tail).decode("utf-8", "replace")
        head = self._head.decode("utf-8", "replace")
        tail = self._tail.decode("utf-8", "replace")
        return f"{head}\n[… {self.truncated_bytes:,} bytes cut …]\n{tail}"

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_bytes
        if excess > 0:
            del self._tail[:excess]
