"""`retinue` in a real terminal (tmux)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TMUX = shutil.which("tmux")
pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(TMUX is None, reason="tmux is not installed (Debian: tmux)"),
]

RETINUE = [sys.executable, "-c", "from retinue.interfaces.cli.main import main; main()"]
ENTERED = b"\x1b[?1049h"  # Switches to the alternate screen, which is empty then.
SCRIPT = """
rules:
  - match: "Break"
    steps:
      - fail: refused
        message: The key was refused.
  - match: "Look"
    steps:
      - call: list_dir
        args: {path: "."}
      - say: All is well here.
  - match: ""
    steps:
      - say: I send two.
        calls:
          - {call: spawn_agent, args: {role: researcher, task: "Look at it"}}
          - {call: spawn_agent, args: {role: reviewer, task: "Break it"}}
      - call: write_file
        args: {path: "out.txt", content: "written"}
      - say: Done.
      - say: Both are back. # It answers the reminder of the failed reviewer.
      - call: write_file
        args: {path: "late.txt", content: ""}
"""


class Terminal:
    """A terminal in a separate tmux server."""

    def __init__(self, folder: Path, project: Path) -> None:
        self._socket = str(folder / "tmux")
        self._project = project
        self._home = folder
        self.written = folder / "written"
        """Everything that was written to the terminal."""

    def _tmux(self, *arguments: str) -> str:
        assert TMUX is not None
        done = subprocess.run(
            [TMUX, "-S", self._socket, "-f", os.devnull, *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            env={"PATH": os.environ["PATH"], "HOME": str(self._home), "LANG": "C.UTF-8",
                 "VISUAL": "sed -i s/draft/text/", "TERM": "xterm-256color"},
        )  # fmt: skip
        return done.stdout

    def start(self, *arguments: str, size: tuple[int, int] = (100, 30)) -> None:
        self._tmux(
            "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "-c", str(self._project),
            *RETINUE, *arguments,
        )  # fmt: skip

        self._tmux("pipe-pane", "-o", f"cat >> {self.written}")

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    @property
    def text(self) -> str:
        return self._tmux("capture-pane", "-p")

    @property
    def pid(self) -> int:
        """The process in the terminal."""
        return int(self._tmux("display-message", "-p", "#{pane_pid}"))

    def ends(self) -> None:
        end = time.monotonic() + 60
        while self._tmux("list-sessions"):
            assert time.monotonic() < end, self.text
            time.sleep(0.05)

    def shows(self, *texts: str) -> str:
        end = time.monotonic() + 60
        while missing := [text for text in texts if text not in self.text]:
            assert time.monotonic() < end, f"{missing} never showed:\n{self.text}"
            time.sleep(0.05)
        return self.text

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    project = tmp_path / "project"
    project.mkdir()
    (project / "script.yaml").write_text(SCRIPT)
    # The path of a socket must be short.
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True).stdout.strip())
    opened = Terminal(folder, project)
    yield opened
    opened.close()
    shutil.rmtree(folder)


def test_the_input_is_edited_in_the_users_editor(terminal: Terminal) -> None:
    terminal.start("-m", "scripted:script.yaml")
    terminal.shows("agents ask before they change files")
    terminal.type("A long draft")
    terminal.shows("A long draft")
    terminal.press("F4")
    terminal.shows("A long text")
    terminal.press("Enter")
    terminal.shows("❯ A long text")


def test_chat_in_a_real_terminal(terminal: Terminal, tmp_path: Path) -> None:
    entry = {"command": "touch", "args": [str(tmp_path / "started")]}
    (tmp_path / "project" / ".mcp.json").write_text(json.dumps({"mcpServers": {"own": entry}}))
    terminal.start("-m", "scripted:script.yaml")
    terminal.shows("MCP server own (.mcp.json)", "Do you trust it?")
    terminal.type("never")
    terminal.press("Enter")
    terminal.shows("agents ask before they change files")
    assert not (tmp_path / "started").exists()
    terminal.type("Check this")
    terminal.press("-H", "1b", "5b", "4f")  # The terminal reports that it has lost the focus.
    terminal.press("Enter")
    terminal.shows("❯ Check this", "The agent asks to spawn a child", "reviewer: Break it")
    terminal.type("y")
    terminal.press("Enter")
    terminal.shows("The key was refused.", "out.txt (new file, +1 −0)")
    assert b"\a" in terminal.written.read_bytes(), "a bell notifies the user"
    terminal.type("y")
    terminal.press("Enter")
    terminal.shows("Both are back.", "out.txt (+1 line, new file)")
    assert (tmp_path / "project" / "out.txt").read_text() == "written"

    terminal.press("C-g")
    terminal.shows("reviewer.1  error", "The key was refused.", "Contract")
    terminal.press("Escape")
    terminal.shows("✗ reviewer.1")

    for width, height in ((80, 24), (200, 60)):
        terminal.resize(width, height)
        lines = terminal.shows("Both are back.", "reviewer.1", "esc interrupt").split("\n")
        assert max(map(len, lines)) <= width

    terminal.press("C-z")  # tmux resumes it at once, like fg in a shell.
    end = time.monotonic() + 60
    while terminal.written.read_bytes().count(ENTERED) < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    terminal.shows(
        "normal mode", "agent  ", "reviewer.1", "Both are back.", "────", "esc interrupt"
    )

    terminal.type("/tasks")
    terminal.press("Enter")
    terminal.shows("a2 reviewer.1     error")
    terminal.type("/sessions")
    terminal.press("Enter")  # A task reads them, and opens the list.
    terminal.shows("Sessions", "Check this (")
    terminal.press("Escape")
    terminal.shows("a2 reviewer.1     error")
    terminal.press("C-q")
    terminal.ends()
    terminal.start("-c", "-m", "scripted:script.yaml")
    terminal.shows("Check this", "Both are back.")
    terminal.type("Check this too")
    terminal.press("Enter")
    terminal.shows("late.txt (new file")
    process = Path(f"/proc/{terminal.pid}")
    terminal.close()  # The process gets a SIGHUP, and its terminal is gone.
    end = time.monotonic() + 60
    while process.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    runs = subprocess.run(
        [*RETINUE, "runs", "-C", str(tmp_path / "project")], capture_output=True, text=True
    )
    assert runs.stdout.count("interrupted") == 1, runs
