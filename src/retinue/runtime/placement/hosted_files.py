"""The files of agents on a host that does not see them: it gets them, and sends changes back."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Coroutine
from typing import Any

from retinue.errors import RetinueError, ToolFailure, WorkspaceError
from retinue.ports.file_tree import ProjectFacts, WorkingCopy
from retinue.ports.mirror import Mirror
from retinue.processes.removal import remove_folder
from retinue.runtime.core.task_group import run_to_completion
from retinue.runtime.placement import messages as msg
from retinue.runtime.placement.host import FileChannel
from retinue.runtime.placement.link import Link
from retinue.runtime.placement.sent_files import hash_of
from retinue.threads import in_thread, in_thread_shielded

OpenMirror = Callable[[ProjectFacts], Mirror]
"""Opens the mirror of a project on this machine. Blocks."""
HISTORY_S = 600.0
_CHANGED = "refs/retinue/files"


class _Shared:
    """A copy that several agents read, and these agents."""

    def __init__(self) -> None:
        self.making = asyncio.Lock()
        self.copy: WorkingCopy | None = None
        self.readers: list[HostedFiles] = []


class HostFiles:
    """What the agents of a host share: mirrors, the connection, and copies that they read."""

    def __init__(self, open_mirror: OpenMirror, channel: FileChannel) -> None:
        self.channel = channel
        self._open_mirror = open_mirror
        self._opening = asyncio.Lock()
        self._mirrors: dict[str, Mirror] = {}
        self._shared: dict[tuple[str, str, str | None], _Shared] = {}
        self._numbers = itertools.count(1)

    def new_name(self, kind: str) -> str:
        """A name that no other file or copy of this machine has."""
        return f"{kind}-{os.getpid()}-{next(self._numbers)}"

    async def mirror(self, facts: ProjectFacts) -> Mirror:
        async with self._opening:
            if facts.id not in self._mirrors:
                self._mirrors[facts.id] = await in_thread(lambda: self._open_mirror(facts))
        return self._mirrors[facts.id]

    def shared(self, files: msg.PlacedFiles) -> _Shared:
        key = files.project.id, files.commit, files.since
        return self._shared.setdefault(key, _Shared())

    async def leave(self, reader: HostedFiles, files: msg.PlacedFiles) -> None:
        """Remove the shared copy of `reader` if nobody else reads it."""
        shared = self.shared(files)
        if reader in shared.readers:
            shared.readers.remove(reader)
        if not shared.readers:
            del self._shared[files.project.id, files.commit, files.since]
            if shared.copy is not None:
                await shared.copy.remove()


class HostedFiles:
    """The files of one agent, in a working copy on this machine."""

    def __init__(
        self, host: HostFiles, link: Link, placed: msg.PlacedFiles, directory: str
    ) -> None:
        self._host = host
        self._link = link
        self._placed = placed
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._mirror: Mirror
        self._copy: WorkingCopy | None = None
        self._commit = placed.commit
        """The files as the run and this host have both seen them."""
        self._lock = asyncio.Lock()

    async def open(self) -> WorkingCopy:
        """Get the files. Raises WorkspaceError."""
        placed = self._placed
        self._mirror = mirror = await self._host.mirror(placed.project)
        commits = (placed.commit, placed.base)
        if not await mirror.has(commits):
            async with mirror.locked():
                # Another agent may have got them meanwhile.
                if not await mirror.has(commits):
                    wanted = msg.GetCommits(await mirror.received())
                    await self._receive(await self._link.ask(wanted, str), mirror.store)
        if not placed.name:
            return await self._open_shared()
        await run_to_completion(self._make_copy(placed.name, self._get_history))
        assert self._copy is not None, "it was made"
        return self._copy

    async def _make_copy(self, name: str, before_history: Callable[[], None]) -> None:
        placed = self._placed
        self._copy = await self._mirror.copy(
            placed.base,
            name=name,
            directory=self._directory,
            content=placed.commit,
            since=placed.since,
            before_history=before_history,
        )

    async def _open_shared(self) -> WorkingCopy:
        shared = self._host.shared(self._placed)
        shared.readers.append(self)
        async with shared.making:
            if shared.copy is None:
                # Any agent that reads the copy at that time can ask for the history.
                name = self._host.new_name("read")
                await run_to_completion(
                    self._make_copy(name, lambda: shared.readers[-1]._get_history())
                )
                shared.copy, self._copy = self._copy, None
        assert shared.copy is not None, "it was made"
        return shared.copy

    async def send_changes(self, commit: str = "") -> None:
        """Have the run take over the changes, so that they are not lost with this host.

        `commit` has the files as they are now.
        """
        async with self._lock:
            if (copy := self._copy) is None:
                return
            commit = commit or await copy.snapshot(None)
            if commit == self._commit:
                return
            path = await copy.make_bundle({_CHANGED: commit}, [self._commit])
            name = self._host.new_name("changes")
            try:
                await self._host.channel.send_file(name, path)
            except OSError as error:
                raise WorkspaceError(f"The changes cannot be sent ({error.strerror}).") from error
            finally:
                await in_thread_shielded(lambda: remove_folder(os.path.dirname(path)))
            await self._link.ask(msg.PutFiles(name, self._commit, commit), None)
            self._commit = commit

    async def get_changes(self) -> None:
        """Get what others have changed, such as children whose work was merged."""
        async with self._lock:
            if (copy := self._copy) is None:
                return
            sent: msg.SentFiles = await self._link.ask(msg.GetChanges(self._commit), msg.SentFiles)
            if sent.bundle:
                async with self._mirror.locked():
                    await self._receive(sent.bundle, self._mirror.store)
                await copy.advance(self._commit, sent.commit, base=sent.base)
                self._commit = sent.commit

    def _get_history(self) -> None:
        """Get the user's commits. Called in a thread, which waits. Raises ToolFailure."""
        getting = asyncio.run_coroutine_threadsafe(self._ask_for_history(), self._loop)
        try:
            getting.result(HISTORY_S)
        except TimeoutError:
            getting.cancel()
            raise ToolFailure("The history has not arrived.") from None
        except RetinueError as error:
            raise ToolFailure(f"The history cannot be got: {error}") from error

    async def _ask_for_history(self) -> None:
        mirror = self._mirror
        async with mirror.locked():
            history = await mirror.history()
            have = {*history.values(), *await mirror.received()}
            wanted = msg.GetHistory(sorted(have), hash_of(history))
            if bundle := await self._link.ask(wanted, str):
                await self._receive(bundle, mirror.store_history)

    async def _receive(
        self, bundle: str, store: Callable[[str], Coroutine[Any, Any, None]]
    ) -> None:
        path = self._host.channel.received(bundle)
        try:
            await store(path)
        finally:
            await in_thread_shielded(lambda: os.unlink(path))

    async def close(self) -> None:
        """Remove the copy: the run has what was changed."""
        if not self._placed.name:
            await self._host.leave(self, self._placed)
        if self._copy is not None:  # Of a reader, if it was cancelled while it made the copy.
            copy, self._copy = self._copy, None
            await copy.remove()
