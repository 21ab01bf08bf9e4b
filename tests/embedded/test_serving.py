"""One server for all processes of a user: the server is a stub; processes and locks are real."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from retinue.embedded.serving import ADDRESS_FILE, LOG_FILE, ServerShare, running_server
from retinue.errors import ProviderError

STAND_IN = Path(__file__).parent / "programs" / "stand_in.py"
Make = Callable[..., ServerShare]


@pytest.fixture
async def lease(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes shares in one server; whatever still serves in the end is ended."""
    made: list[ServerShare] = []

    def make(*trouble: str, idle_s: float = 0.0) -> ServerShare:
        command = [sys.executable, str(STAND_IN), str(tmp_path), str(idle_s), *trouble]
        made.append(ServerShare(tmp_path, command, {"PATH": os.environ["PATH"]}))
        return made[-1]

    yield make
    for one in made:
        one.release()
    address = running_server(tmp_path)
    if address is not None:
        os.kill(address.pid, signal.SIGKILL)


async def _gone(folder: Path) -> None:
    async with asyncio.timeout(20):
        while running_server(folder) is not None:  # noqa: ASYNC110 - it is another process that ends
            await asyncio.sleep(0.02)


async def test_concurrent_callers_start_one_server(lease: Make, tmp_path: Path) -> None:
    shares = [lease() for _ in range(3)]
    first, *others = await asyncio.gather(*(share.acquire() for share in shares))
    assert [other.pid for other in others] == [first.pid] * 2
    assert (tmp_path / "starts").read_text().split() == [str(first.pid)]


async def test_server_runs_while_a_share_is_held(lease: Make, tmp_path: Path) -> None:
    one, other = lease(), lease()
    address = await one.acquire()
    await other.acquire()
    one.release()
    # It has looked at least once whether anybody is left, and would be gone.
    await asyncio.sleep(1.2)
    assert running_server(tmp_path) == address
    other.release()
    await _gone(tmp_path)
    assert not (tmp_path / ADDRESS_FILE).exists()


async def test_server_is_started_again_after_it_ended(lease: Make, tmp_path: Path) -> None:
    one = lease()
    first = await one.acquire()
    one.release()
    await _gone(tmp_path)
    assert (await lease().acquire()).pid != first.pid


async def test_address_of_a_killed_server_is_ignored(lease: Make, tmp_path: Path) -> None:
    share = lease(idle_s=60)
    first = await share.acquire()
    os.kill(first.pid, signal.SIGKILL)
    await _gone(tmp_path)
    assert (tmp_path / ADDRESS_FILE).exists()
    assert (await share.acquire()).pid != first.pid


async def test_address_file_is_private(lease: Make, tmp_path: Path) -> None:
    address = await lease().acquire()
    assert (tmp_path / ADDRESS_FILE).stat().st_mode & 0o077 == 0
    assert address.key not in repr(address)[8:].replace("pid", "")


async def test_failed_start_has_a_reason(lease: Make, tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match="could not be started: …no such instruction set"):
        await lease("broken").acquire()
    (tmp_path / LOG_FILE).write_text("")
    assert running_server(tmp_path) is None


async def test_cancelled_start_leaves_no_process(lease: Make, tmp_path: Path) -> None:
    share = lease()

    def give_up() -> None:
        task.cancel()

    task = asyncio.ensure_future(share.acquire(give_up))
    with pytest.raises(asyncio.CancelledError):
        await task
    share.release()
    await _gone(tmp_path)


async def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    share = ServerShare(tmp_path / "file", ["true"], {})
    with pytest.raises(
        ProviderError, match=r"served from .*/file: Not a directory\. Set XDG_CACHE"
    ):
        await share.acquire()
