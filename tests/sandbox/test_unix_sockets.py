from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from retinue.domain.scope import ANYWHERE
from retinue.errors import WorkspaceError
from retinue.sandbox.unix_sockets import has_sockets
from tests.sandbox.probe import SandboxProbe

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux lists them")


@pytest.mark.parametrize("spelled", ["s", "./s", "{folder}/s", "{folder}/../{name}/s", "link/s"])
def test_socket_is_found_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelled: str
) -> None:
    here, there = tmp_path / "h", tmp_path / "t"
    for folder in (here, there):
        folder.mkdir()
    os.symlink(here, here / "link")
    monkeypatch.chdir(here)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(spelled.format(folder=here, name=here.name))
        assert has_sockets([str(here)])
        assert has_sockets([str(tmp_path)])
        assert not has_sockets([str(there)])


def test_abstract_socket_is_in_no_folder(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0retinue-{os.getpid()}")
        assert not has_sockets([str(tmp_path)])


async def test_socket_of_another_program_in_the_workspace_is_unreachable(
    probe: SandboxProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(probe.root)
    with (
        socket.socket(socket.AF_UNIX) as stream,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        stream.bind("stream")  # The whole path may be too long for a socket.
        stream.listen()
        datagrams.bind("datagrams")
        datagrams.setblocking(False)
        done = await probe.python(
            """
import socket
def stream():
    socket.socket(socket.AF_UNIX).connect("stream")
def datagram():
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", "datagrams")
def turned():
    socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", "datagrams")
def passed():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    left.connect("stream")
for act in (stream, datagram, turned, passed):
    try:
        act()
        print("escaped", act.__name__)
    except OSError:
        print("failed")
""",
            write=ANYWHERE,
        )
        with pytest.raises(BlockingIOError):
            datagrams.recv(10)
    assert done.output == "failed\n" * 4


async def test_own_unix_sockets_work_in_the_full_tier(probe: SandboxProbe) -> None:
    if not probe.full:
        pytest.skip("the reduced tier has no sockets, and says so")
    done = await probe.python(
        """
import os, socket
server = socket.socket(socket.AF_UNIX)
server.bind("/tmp/own")
server.listen()
socket.socket(socket.AF_UNIX).connect("/tmp/own")
print("connected")
"""
    )
    assert "connected" in done.output


async def test_socket_that_appears_later_ends_the_command(
    probe: SandboxProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(probe.root)
    if not probe.full:
        pytest.skip("the reduced tier has no sockets, and says so")
    begun = probe.root / "src" / "begun"
    os.mkfifo(begun)
    running = asyncio.ensure_future(probe.run("echo x >src/begun; sleep 100"))
    await asyncio.to_thread(begun.read_text)
    with socket.socket(socket.AF_UNIX) as late:
        late.bind("late")
        late.listen()
        with pytest.raises(WorkspaceError, match="another program has made a socket among"):
            await running
        again = await probe.python("import socket\nsocket.socket(socket.AF_UNIX)")
        assert "Address family not supported" in again.output
