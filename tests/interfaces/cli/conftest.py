"""Fixtures: `retinue` in a project, with an empty environment."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyte
import pytest

from retinue.interfaces.cli.main import main
from retinue.testing.server import Answering, ModelServer, Received

STREAMS = ("stdin", "stdout", "stderr")
PATIENCE_S = 60
RETINUE = "from retinue.interfaces.cli.main import main; main()"
ANY = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


class Done(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Done]
"""Runs `retinue` with these arguments, in this process."""
Program = Callable[..., subprocess.Popen[bytes]]
"""Starts `retinue` with these arguments, in its own process."""
Script = Callable[[str], str]
"""Writes a script; returns the name of its model."""


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by all tests: the sandbox copies hundreds of files of `/etc` there."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _bare_environment(
    tmp_path: Path, project: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith(("RETINUE_", "OPENAI_", "ANTHROPIC_", "OLLAMA_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.chdir(project)
    # Tests must not depend on whether the embedded model is installed.
    monkeypatch.setitem(sys.modules, "xllamacpp", None)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[[str], Path]:
    """Write the user's own settings."""

    def write(text: str) -> Path:
        path = tmp_path / ".config" / "retinue" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def script(project: Path) -> Callable[[str], str]:
    """Write a script for the scripted model; gives the name of that model."""

    def write(text: str) -> str:
        (project / "script.yaml").write_text(text)
        return "scripted:script.yaml"

    return write


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs `retinue` with these arguments, in this process."""

    def call(*argv: str) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main(argv)
        out, err = capsys.readouterr()
        assert isinstance(exited.value.code, int)
        return Done(exited.value.code, out, err)

    return call


@pytest.fixture
def offered(cli: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], set[str]]:
    """Returns the candidates that `retinue` offers to bash; other shells ask in a similar way."""

    def ask(typed: str) -> set[str]:
        monkeypatch.setenv("_RETINUE_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
        done = cli()
        monkeypatch.delenv("_RETINUE_COMPLETE")
        assert (done.code, done.err) == (0, "")
        return {line.partition(",")[2] for line in done.out.splitlines()} - {""}

    return ask


@pytest.fixture
def program() -> Callable[..., subprocess.Popen[bytes]]:
    """Start `retinue` as a process of its own."""

    def start(*argv: str) -> subprocess.Popen[bytes]:
        run = "from retinue.interfaces.cli.main import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", run, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


class Terminal:
    """A program in its own terminal, with the screen it has drawn.

    `see` and `until` wait for up to a minute.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        program: str = RETINUE,
        columns: int = 80,
        lines: int = 24,
        **streams: int,
    ) -> None:
        self._master, slave = pty.openpty()
        self._screen = pyte.HistoryScreen(columns, lines, history=10_000)
        self._stream = pyte.ByteStream(self._screen)
        self._size(columns, lines)
        self.raw = b""
        stream = next(n for n, name in enumerate(STREAMS) if name not in streams)
        # Without a controlling terminal there would be no Ctrl-C.
        run = f"import fcntl, termios; fcntl.ioctl({stream}, termios.TIOCSCTTY, 0); {program}"
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-c", run, *argv],
            start_new_session=True,
            **dict.fromkeys(STREAMS, slave) | streams,  # type: ignore[call-overload]
        )
        os.close(slave)

    @property
    def text(self) -> str:
        """The screen, with the lines that were scrolled off its top."""
        gone = [
            "".join(line[x].data for x in range(self._screen.columns))
            for line in self._screen.history.top
        ]
        return "\n".join(line.rstrip() for line in [*gone, *self._screen.display]).rstrip("\n")

    @property
    def cursor_is_shown(self) -> bool:
        return not self._screen.cursor.hidden

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    def see(self, *texts: str) -> str:
        """Wait until all of these are on the screen."""
        return self.until(lambda: all(text in self.text for text in texts), f"{texts}")

    def until(self, condition: Callable[[], bool], what: str = "") -> str:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            over = self.process.poll() is not None and not self._read(0.05)
            late = time.monotonic() > deadline
            assert not (over or late) or condition(), f"waited for {what} in vain:\n{self.text}"
            self._read(0.05)
        return self.text

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def interrupt(self) -> int:
        """Press Ctrl-C twice: agents get no time to report. Wait for the end as `end` does."""
        self.type("\x03")
        self.see("Stopping")
        self.type("\x03")
        return self.end()

    def resize(self, columns: int, lines: int, *, wraps: bool = False) -> None:
        """Change the size. Lines that have become too long are cut, or wrapped if `wraps`."""
        rows: list[str] = []
        top = 0
        for y, text in enumerate("\n".join(self._screen.display).rstrip().split("\n")):
            if y == self._screen.cursor.y:
                top = len(rows)
            row = text.rstrip()
            rows += [row[x : x + columns] for x in range(0, len(row), columns)] or [""]
        at = f"\x1b[{top + 1 + self._screen.cursor.x // columns};1H"
        self._screen.resize(lines, columns)
        if wraps:
            assert len(rows) <= lines
            self._stream.feed(("\x1b[2J\x1b[H" + "\r\n".join(rows) + at).encode())
        self._size(columns, lines)

    def end(self) -> int:
        """Wait for the end of the command; return its exit code."""
        self.until(lambda: self.process.poll() is not None, "its end")
        while self._read(0.05):
            pass
        return self.process.returncode

    def hang_up(self) -> int:
        """Close the terminal and wait for the end of the command; return its exit code."""
        os.close(self._master)
        self._master = -1
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        if self._master >= 0:
            os.close(self._master)

    def _read(self, timeout_s: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], timeout_s)
        if not ready:
            return False
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # The other end is closed.
            return False
        self.raw += data
        self._stream.feed(data)
        return True

    def _size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


Start = Callable[..., Terminal]
"""Starts `retinue` in a terminal."""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Terminal]]:
    """Start `retinue` in a terminal."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with ExitStack() as stack:

        def start(*argv: str, **options: Any) -> Terminal:
            opened = Terminal(argv, **options)
            stack.callback(opened.close)
            return opened

        yield start


@pytest.fixture
def shell_in_terminal(terminal: Callable[..., Terminal]) -> Callable[..., Terminal]:
    """Start any program in a terminal."""
    return partial(terminal, program=ANY)


class Serving:
    """A model server in its own thread: commands need the main thread for signals."""

    def __init__(
        self,
        answers: Sequence[Answering] | Callable[[Received], Answering],
        pages: Mapping[str, Any],
    ) -> None:
        self._server = ModelServer(answers, pages=pages)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    @property
    def model(self) -> str:
        return f"openai:m@{self.url}"

    @property
    def url(self) -> str:
        return self._server.base_url

    @property
    def visits(self) -> list[Received]:
        return self._server.visits

    @property
    def requests(self) -> list[Received]:
        return self._server.requests

    def received(self, count: int) -> None:
        """Wait until `count` requests have arrived."""
        self._wait(self._server.received(count))

    def open(self, gate: asyncio.Event) -> None:
        """Let an answer go that waits for this."""
        self._loop.call_soon_threadsafe(gate.set)

    def _wait(self, work: Coroutine[Any, Any, object]) -> None:
        # With a timeout, since a command that fails early sends no request.
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    def __enter__(self) -> Serving:
        self._thread.start()
        self._wait(self._server.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._server.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


Serve = Callable[..., Serving]
"""Starts a model server with these answers."""


@pytest.fixture
def serve() -> Iterator[Callable[..., Serving]]:
    """Starts a server with these answers, one per request, and these pages."""
    with ExitStack() as stack:
        yield lambda *answers, **kw: stack.enter_context(Serving(answers, kw.get("pages", {})))
