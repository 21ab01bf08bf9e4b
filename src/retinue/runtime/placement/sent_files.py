"""The files of agents for hosts that do not see them: the side of their run, which has them."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from retinue.domain.contract import WorkspaceKind
from retinue.errors import WorkspaceError
from retinue.ports.file_tree import FileTree, ProjectFacts, WorkingCopy
from retinue.processes.removal import remove_folder
from retinue.runtime.agent.agent import Agent
from retinue.runtime.core.task_group import run_to_completion
from retinue.runtime.integration.checks import copy_names
from retinue.runtime.placement import messages as msg
from retinue.runtime.placement.host import FileChannel
from retinue.threads import in_thread_shielded

_FILES, _BASE = "refs/retinue/files", "refs/retinue/base"


def hash_of(history: Mapping[str, str]) -> str:
    """A hash of the names of the user's commits."""
    return hashlib.sha256(msgspec.json.encode(sorted(history.items()))).hexdigest()


class ProjectFiles:
    """What the agents of all runs share: the facts of their project, snapshots and bundles."""

    def __init__(self, project: FileTree) -> None:
        self._project = project
        self._facts: ProjectFacts | None = None
        self.problem = ""
        """Why commits cannot be sent; "" if they can."""
        self._next_snapshot: asyncio.Task[str] | None = None
        self._snapshot: asyncio.Task[str] | None = None
        self._bundles: dict[bytes, asyncio.Task[str]] = {}
        """Files with commits, by those that are wanted and those that the host has."""
        self._users: dict[bytes, int] = {}
        self._numbers = itertools.count(1)

    async def facts(self) -> ProjectFacts:
        if self._facts is None:
            self._facts = await self._project.facts()
        return self._facts

    async def check(self) -> None:
        """Find out whether commits can be sent."""
        try:
            self.problem = (await self.facts()).problem
        except WorkspaceError as error:
            self.problem = str(error)

    async def snapshot(self, tree: FileTree) -> str:
        """The current files. Calls for the project's before a snapshot begins share that."""
        if tree is not self._project:
            return await tree.snapshot(None)
        if self._next_snapshot is None:
            self._next_snapshot = asyncio.create_task(self._take(self._snapshot))
        return await asyncio.shield(self._next_snapshot)

    async def _take(self, running: asyncio.Task[str] | None) -> str:
        if running is not None:
            await asyncio.wait({running})
        self._snapshot, self._next_snapshot = self._next_snapshot, None
        return await self._project.snapshot(None)

    async def send(self, refs: Mapping[str, str], have: Sequence[str], channel: FileChannel) -> str:
        """Send commits to a host that has the commits `have`; returns the name of the bundle.

        Hosts that ask for the same at once get the same bundle.
        """
        key = msgspec.json.encode((sorted(refs.items()), sorted(have)))
        name = f"bundle-{next(self._numbers)}"
        if key not in self._bundles:
            self._bundles[key] = asyncio.create_task(self._project.make_bundle(refs, have))
            self._users[key] = 0
        self._users[key] += 1
        try:
            path = await asyncio.shield(self._bundles[key])
            await channel.send_file(name, path)
        except OSError as error:
            raise WorkspaceError(f"The files cannot be sent ({error.strerror}).") from error
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                await run_to_completion(self._remove(key))
        return name

    async def _remove(self, key: bytes) -> None:
        del self._users[key]
        making = self._bundles.pop(key)
        await asyncio.wait({making})
        if not making.cancelled() and making.exception() is None:
            path = os.path.dirname(making.result())
            await in_thread_shielded(lambda: remove_folder(path))


class SentFiles:
    """The files of one agent, which hosts get and send back."""

    def __init__(self, agent: Agent, project: ProjectFiles) -> None:
        self._agent = agent
        self._project = project
        # Changes from a lost host are stored before the next one gets the files.
        self._lock = asyncio.Lock()
        self._placed: Mapping[str, str] = {}

    async def placed(self) -> msg.PlacedFiles:
        """The files as they are now."""
        agent, facts = self._agent, await self._project.facts()
        async with self._lock:
            sent, name = await self._now(), ""
        self._placed = {_FILES: sent.commit, _BASE: sent.base}
        contract = agent.contract
        # An agent that only reads sees in its files what its children write.
        if not self._reads_only or contract.permissions.can_spawn_children:
            name, *_ = copy_names(contract.parent.run_id, agent.id)
        return msg.PlacedFiles(
            project=facts,
            commit=sent.commit,
            base=sent.base,
            since=agent.files.tree.location.base if self._reads_only else None,
            name=name,
        )

    @property
    def _reads_only(self) -> bool:
        return self._agent.contract.execution.workspace is WorkspaceKind.READONLY

    async def _now(self) -> msg.SentFiles:
        tree = self._agent.files.tree
        commit = await self._project.snapshot(tree)
        return msg.SentFiles(commit, tree.location.base or commit)

    async def get(self, wanted: msg.GetCommits, channel: FileChannel) -> str:
        """Send the commits of the placement; returns the name of the bundle."""
        return await self._project.send(self._placed, wanted.have, channel)

    async def get_changes(self, wanted: msg.GetChanges, channel: FileChannel) -> msg.SentFiles:
        """Send the files as they are now."""
        async with self._lock:
            sent = await self._now()
        if sent.commit == wanted.commit:
            return sent
        refs = {_FILES: sent.commit, _BASE: sent.base}
        bundle = await self._project.send(refs, [wanted.commit], channel)
        return msgspec.structs.replace(sent, bundle=bundle)

    async def get_history(self, wanted: msg.GetHistory, channel: FileChannel) -> str:
        """Send the user's commits; returns the name of the bundle, or "" if they are `known`."""
        refs = await self._agent.files.tree.history()
        if not refs or hash_of(refs) == wanted.known:
            return ""
        return await self._project.send(refs, wanted.have, channel)

    async def put(self, sent: msg.PutFiles, channel: FileChannel) -> None:
        """Take over the changes that the agent has made on a host."""
        tree = self._agent.files.tree
        path = channel.received(sent.bundle)
        try:
            if self._reads_only:
                # Its files are those of its parent.
                raise WorkspaceError("An agent that only reads sends no changes.")
            async with self._lock:
                commits = await tree.read_bundle(path)
                if sent.commit not in commits.values():
                    raise WorkspaceError(f"The bundle lacks {sent.commit}.")
                # Of the agents that write, only those with a copy run on hosts.
                copy = cast("WorkingCopy", tree)
                await copy.advance(sent.before, sent.commit, base=tree.location.base)
        finally:
            await in_thread_shielded(lambda: os.unlink(path))
