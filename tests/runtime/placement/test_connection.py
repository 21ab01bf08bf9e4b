"""Messages and files on one connection between a run and a host."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from retinue.errors import WorkspaceError
from retinue.runtime.placement.connection import PIECE_BYTES, Connection, transfer_folder


@asynccontextmanager
async def connected(tmp_path: Path) -> AsyncIterator[tuple[Connection, Connection]]:
    ends = []
    for name, opened in zip("ab", socket.socketpair(), strict=True):
        (tmp_path / name).mkdir(exist_ok=True)
        reader, writer = await asyncio.open_connection(sock=opened)
        ends.append(Connection(reader, writer, str(tmp_path / name)))
    try:
        yield ends[0], ends[1]
    finally:
        for end in ends:
            end.close()


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, 5 * PIECE_BYTES + 1])
async def test_a_file_arrives_before_what_is_sent_after_it(tmp_path: Path, size: int) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(os.urandom(size))

    async def send(end: Connection) -> None:
        end.send(b"before")
        await end.send_file("one.bundle", str(sent))
        end.send(b"after")

    async with connected(tmp_path) as (ours, theirs):
        sending = asyncio.create_task(send(ours))
        assert await theirs.receive() == b"before"
        assert await theirs.receive() == b"after"
        await sending
        stored = tmp_path / "b" / "one.bundle"
        assert theirs.received("one.bundle") == str(stored)
        assert stored.read_bytes() == sent.read_bytes()


async def test_messages_pass_between_the_pieces_of_a_file(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(bytes(40 * PIECE_BYTES))
    async with connected(tmp_path) as (ours, theirs):
        sending = asyncio.create_task(ours.send_file("large", str(sent)))
        ours.send(b"meanwhile")
        # Nobody has read yet, and the file is larger than what the socket holds.
        assert await theirs.receive() == b"meanwhile"
        assert not sending.done()
        with pytest.raises(WorkspaceError, match="'large' was not sent"):
            theirs.received("large")
        receiving = asyncio.create_task(theirs.receive())
        await sending
        ours.send(b"end")
        assert await receiving == b"end"
        assert os.stat(theirs.received("large")).st_size == 40 * PIECE_BYTES


async def test_a_file_that_cannot_be_stored_does_not_stop_messages(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(bytes(3 * PIECE_BYTES))
    async with connected(tmp_path) as (ours, theirs):
        (tmp_path / "b" / "one.part").mkdir()
        sending = asyncio.create_task(ours.send_file("one", str(sent)))
        receiving = asyncio.create_task(theirs.receive())
        await sending
        ours.send(b"end")
        assert await receiving == b"end"
        with pytest.raises(WorkspaceError, match=r"b cannot be written \(Is a directory\)"):
            theirs.received("one")


async def test_a_folder_that_another_process_took_for_forgotten_is_made_again(
    tmp_path: Path,
) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(b"x")
    async with connected(tmp_path) as (ours, theirs):
        (tmp_path / "b").rmdir()
        await ours.send_file("one", str(sent))
        ours.send(b"end")
        assert await theirs.receive() == b"end"
        assert theirs.received("one") == str(tmp_path / "b" / "one")


@pytest.mark.parametrize("name", ["../escaped", ".hidden", "a/b", ""])
async def test_a_name_cannot_lead_elsewhere(tmp_path: Path, name: str) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(b"x")
    async with connected(tmp_path) as (ours, theirs):
        await ours.send_file(name, str(sent))
        with pytest.raises(WorkspaceError, match="is no name of a file from a host"):
            await theirs.receive()
        with pytest.raises(WorkspaceError, match="was not sent"):
            theirs.received(name)
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "sent"]


def test_folders_of_killed_processes_are_removed_after_a_week(tmp_path: Path) -> None:
    for name, days in (("old", 8), ("new", 1)):
        (tmp_path / name).mkdir()
        then = os.stat(tmp_path).st_mtime - days * 86_400
        os.utime(tmp_path / name, (then, then))
    with transfer_folder(str(tmp_path)) as folder:
        assert sorted(os.listdir(tmp_path)) == sorted(["new", os.path.basename(folder)])
    assert os.listdir(tmp_path) == ["new"]


async def test_a_message_of_any_length_is_not_read(tmp_path: Path) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"M" + (2**32 - 1).to_bytes(4, "big"))
    ours, theirs = socket.socketpair()
    with theirs:
        _, writer = await asyncio.open_connection(sock=ours)
        with pytest.raises(WorkspaceError, match="4,294,967,295 bytes, which is too much"):
            await Connection(reader, writer, str(tmp_path)).receive()
        writer.close()
