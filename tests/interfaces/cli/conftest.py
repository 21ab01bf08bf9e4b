"""The command line as a user meets it: in a project, with nothing in the environment."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from retinue.interfaces.cli.main import main
from retinue.testing.server import Answering, ModelServer, Received


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


@pytest.fixture(autouse=True)
def _bare_environment(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("RETINUE_", "OPENAI_", "ANTHROPIC_", "OLLAMA_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(project)


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
    """Call `retinue` with these arguments, in this process."""

    def call(*argv: str) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main(argv)
        out, err = capsys.readouterr()
        assert isinstance(exited.value.code, int)
        return Done(exited.value.code, out, err)

    return call


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


class Serving:
    """A server of its own thread: the commands have the main one, as they need it for signals."""

    def __init__(self, answers: Sequence[Answering], pages: Mapping[str, Any]) -> None:
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
        """Wait until that many requests have come."""
        self._wait(self._server.received(count))

    def _wait(self, work: Coroutine[Any, Any, object]) -> None:
        # A command that breaks before it asks would be waited for without end.
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


@pytest.fixture
def serve() -> Iterator[Callable[..., Serving]]:
    """Serve these answers, each to one request, until the test is over; and these pages."""
    with ExitStack() as stack:
        yield lambda *answers, **kw: stack.enter_context(Serving(answers, kw.get("pages", {})))
