"""Confinement by namespaces: bubblewrap gives each command a small file system of its own.

Bubblewrap mounts in the order of its arguments, and later mounts cover earlier ones: the system,
the workspace read-only, the writable paths, and over those the protected paths.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

from retinue.domain.grant import Access, Network
from retinue.domain.paths import PROTECTED_NAMES, SKILLS_FOLDER, STATE_FOLDER, is_below
from retinue.domain.protected_paths import is_start_up_module
from retinue.errors import WorkspaceError
from retinue.ports.sandbox import CommandResult, ShellCommand
from retinue.processes.child import Monitor, ProcessSpec
from retinue.sandbox.cgroups import cgroups
from retinue.sandbox.command import check_command, disk_monitor, memory_file, run_command
from retinue.sandbox.etc_copy import RESOLVER, etc_copy
from retinue.sandbox.limits import DEFAULT_LIMITS, ProcessLimits
from retinue.sandbox.placeholders import placeholders
from retinue.sandbox.seccomp import AF_UNIX, build_filter, socket_families
from retinue.sandbox.start_barrier import SHELL_PREFIX, StartBarrier
from retinue.sandbox.system_paths import program_folders
from retinue.sandbox.toolchains import command_environment, toolchain_folders, venv_base_folders
from retinue.sandbox.unix_sockets import check_no_sockets, has_sockets
from retinue.sandbox.writable_paths import (
    ClosedPaths,
    closed_paths,
    find_closed_paths,
    missing_paths,
    without_protected,
    writable_paths,
)

SANDBOX_HOME = "/tmp/home"
REQUIRED_OPTION = "--bind-fd"


@cache
def supported_options(bwrap: str) -> frozenset[str]:
    """The options of this bubblewrap; distributions add some to older versions."""
    try:
        done = subprocess.run([bwrap, "--help"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    words = (done.stdout + done.stderr).decode(errors="replace").split()
    return frozenset(word for word in words if word.startswith("--"))


class Bubblewrap:
    """Tier full: files, network, processes and system calls are confined to the access.

    A command sees the system's programs, its workspace, and a `/tmp` of its own. When bubblewrap is
    killed, its whole pid namespace ends, daemons included. It dies with our process.
    """

    tier = "full"
    relocates = True

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        bwrap: str,
        limits: ProcessLimits = DEFAULT_LIMITS,
        readable: Sequence[str] = (),
        cache: str | None = None,
    ) -> None:
        """`environment` is the whole environment of commands; `readable` are more folders to show.

        `cache` is a folder to keep the copy of `/etc` in.
        """
        self._bwrap = bwrap
        self._options = supported_options(bwrap)
        self._limits = limits
        self._cache = cache
        self._shown = [*toolchain_folders(environment), *readable]
        self._environment = environment
        self._home = environment.get("HOME", "")
        self._cgroups = cgroups(limits)

    async def run(self, command: ShellCommand) -> CommandResult:
        access = command.access
        check_command(command.text, access)
        async with contextlib.AsyncExitStack() as stack:
            barrier = self._start_barrier(stack)
            shell = ("/bin/sh", "-c", SHELL_PREFIX + command.text)
            environment, stdin = {**self._environment, **command.variables}, barrier.stdin
            spec, monitors = await self._prepare(stack, barrier, access, shell, environment, stdin)
            done = await run_command(spec, command, monitors=(disk_monitor(access.root), *monitors))
            if not done.timed_out and not barrier.command_ended:
                # The sandbox failed, not the command. It is never run again without the sandbox.
                why = barrier.failure or done.output.strip() or "it gave no reason"
                raise WorkspaceError(f"The sandbox failed: {why}. See `retinue doctor`.")
        return done

    @contextlib.asynccontextmanager
    async def process(
        self, command: str, *, access: Access, environment: Mapping[str, str]
    ) -> AsyncIterator[ProcessSpec]:
        check_command(command, access)
        async with contextlib.AsyncExitStack() as stack:
            shell = ("/bin/sh", "-c", f"exec {command}")
            barrier = self._start_barrier(stack)
            spec, _ = await self._prepare(
                stack, barrier, access, shell, environment, subprocess.PIPE, unix_sockets=False
            )
            yield spec

    def _start_barrier(self, stack: contextlib.AsyncExitStack) -> StartBarrier:
        return StartBarrier(stack, self._limits.per_process(limited=self._cgroups.limited))

    async def _prepare(
        self,
        stack: contextlib.AsyncExitStack,
        barrier: StartBarrier,
        access: Access,
        shell: Sequence[str],
        environment: Mapping[str, str],
        stdin: int,
        *,
        unix_sockets: bool = True,
    ) -> tuple[ProcessSpec, list[Monitor]]:
        """The process to start, and monitors for the time that it runs, until `stack` ends."""
        shown = [*self._shown, *venv_base_folders(_mount_point(access), self._home)]
        visible = _visible_folders(access, shown)
        families = _allowed_families(access, visible)
        if not unix_sockets:
            families = tuple(family for family in families if family != AF_UNIX)
        seccomp_fd = memory_file(stack, build_filter(families=families, namespaced=True))
        # In a thread: walking a large tree takes long.
        read_only = await asyncio.to_thread(closed_paths, access)
        stack.enter_context(placeholders(access.root, _closed_names(access, read_only)))
        stack.enter_context(placeholders(access.root, *missing_paths(access, read_only)))
        paths = await asyncio.to_thread(_writable, access, read_only)
        if access.root in paths:
            # A command could otherwise make a `.git`, with hooks that the user's next `git status`
            # would run. Git ignores an empty `.git` folder.
            stack.enter_context(placeholders(access.root, sorted(PROTECTED_NAMES)))
        writable = _open_mounts(stack, access, dict.fromkeys(paths, "--bind-fd"))
        tops = [mount.path for mount in writable]
        closed = await find_closed_paths(tops, access)
        protecting = _protect_nested(access, tops, read_only, closed)
        nested = _open_mounts(stack, access, protecting)
        slot = await stack.enter_async_context(self._cgroups.slot())
        arguments = self._arguments(access, shown, writable, nested)
        options = ("--seccomp", str(seccomp_fd), *barrier.options)
        stack.enter_context(barrier.opened())
        spec = ProcessSpec(
            argv=(*slot.argv_prefix, self._bwrap, *arguments, *options, "--", *shell),
            environment=command_environment(
                environment, _mount_point(access), home=SANDBOX_HOME, temporary="/tmp"
            ),
            directory="/",
            stdin=stdin,
            pass_fds=(seccomp_fd, *barrier.fds, *(m.fd for m in (*writable, *nested))),
            start_process=slot.start_process,
        )
        monitors: list[Monitor] = []
        if AF_UNIX in families:
            monitors.append(partial(check_no_sockets, visible))
        return spec, monitors

    def _arguments(
        self,
        access: Access,
        shown: Sequence[str],
        writable: Sequence[_Mount],
        nested: Sequence[_Mount],
    ) -> Iterator[str]:
        yield from (
            "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
            "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
        )  # fmt: skip
        # Where the option is missing, the seccomp filter alone prevents user namespaces.
        yield from ("--disable-userns",) if "--disable-userns" in self._options else ()
        if access.network is not Network.ALL:
            yield "--unshare-net"
        yield from _system_mounts()
        yield from ("--ro-bind", etc_copy(self._cache), "/etc")
        if access.network is Network.ALL:
            yield from ("--ro-bind-try", RESOLVER, RESOLVER)
        # Root keeps its uid in here, and root may write many files in /proc; one reboots the
        # machine.
        yield from ("--proc", "/proc", "--remount-ro", "/proc")
        size = ("--size", str(self._limits.tmp_bytes)) if "--size" in self._options else ()
        # /dev is read-only, since its size has no limit.
        yield from ("--dev", "/dev", *size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev")
        yield from (*size, "--tmpfs", "/tmp", "--dir", SANDBOX_HOME)
        # After /tmp, where such a folder may be.
        for folder in dict.fromkeys(shown):
            if folder != access.root:
                yield from ("--ro-bind-try", folder, folder)
        yield from _workspace_mounts(access, writable)
        for mount in nested:
            yield from mount.arguments(access)
        yield from ("--remount-ro", "/", "--chdir", _mount_point(access))


def _mount_point(access: Access) -> str:
    """The path at which commands see the root."""
    return access.mount_point or access.root


class _Mount(NamedTuple):
    """A path below the root, opened, and bubblewrap's option to mount it."""

    fd: int
    path: str
    option: str

    def arguments(self, access: Access) -> tuple[str, ...]:
        mounted_at = _mount_point(access) + self.path.removeprefix(access.root)
        return (self.option, str(self.fd), mounted_at)


def _workspace_mounts(access: Access, writable: Sequence[_Mount]) -> Iterator[str]:
    root, mount_point = access.root, _mount_point(access)
    for folder in access.readable:
        yield from ("--ro-bind-try", os.path.realpath(folder), folder)
    yield from ("--ro-bind", root, mount_point)
    for mount in writable:
        yield from mount.arguments(access)
    for name in access.shared_folders:
        # The agent may have put a link there since.
        if os.path.realpath(inside := os.path.join(root, name)) == inside and os.path.isdir(inside):
            folder = os.path.join(mount_point, name)
            yield from ("--ro-bind-try", folder, folder)
    # After the writable paths, so that these stay read-only even inside of them.
    for name in sorted(PROTECTED_NAMES):
        path = os.path.join(root, name)
        if os.path.lexists(path) and not os.path.islink(path):
            yield from ("--ro-bind", path, os.path.join(mount_point, name))
    if os.path.isdir(os.path.join(root, STATE_FOLDER)):
        state = os.path.join(mount_point, STATE_FOLDER)
        yield from ("--tmpfs", state)
        skills = os.path.join(os.path.realpath(root), SKILLS_FOLDER)
        # A link could lead anywhere.
        if os.path.isdir(skills) and os.path.realpath(skills) == skills:
            yield from ("--ro-bind", skills, os.path.join(mount_point, SKILLS_FOLDER))
        yield from ("--remount-ro", state)


@cache
def _system_mounts() -> tuple[str, ...]:
    words: list[str] = []
    for path in program_folders():
        if os.path.islink(path):
            words += ("--symlink", os.readlink(path), path)
        elif not os.path.isdir(path) or os.listdir(path):
            words += ("--ro-bind", path, path)
    return tuple(words)


def _visible_folders(access: Access, shown: Sequence[str]) -> tuple[str, ...]:
    """The folders of the host that a command sees."""
    shared = (os.path.join(_mount_point(access), name) for name in access.shared_folders)
    return (access.root, *shown, *program_folders(), *access.readable, *shared)


def _allowed_families(access: Access, visible: Sequence[str]) -> tuple[int, ...]:
    """Socket families for a command: no unix sockets if it sees one of another program."""
    families = socket_families(access.network, namespaced=access.network is not Network.ALL)
    if AF_UNIX in families and has_sockets(visible):
        return tuple(family for family in families if family != AF_UNIX)
    return families


def _closed_names(access: Access, closed: Sequence[str]) -> Iterator[str]:
    """Closed paths, relative to the root, that do not exist: an empty folder can be covered.

    Python finds no module in an empty folder `sitecustomize` or `sitecustomize.py`.
    """
    for number, path in enumerate(closed):
        below = os.path.relpath(path, access.root)
        folder_exists = os.path.isdir(os.path.dirname(path))
        if number < len(access.read_only) and not is_start_up_module(path):
            continue
        if folder_exists and not os.path.lexists(path) and access.may_write(below):
            yield below


def _writable(access: Access, closed: Sequence[str]) -> list[str]:
    # A mount cannot cover a link, so a root with a protected link is not made writable as a whole.
    linked = any(os.path.islink(os.path.join(access.root, name)) for name in PROTECTED_NAMES)
    paths = writable_paths(access.root, access.write_scope, whole_root=not linked)
    # A mount cannot cover a path that does not exist.
    uncovered = [p for p in closed if os.path.islink(p) or not os.path.exists(p)]
    return [
        part
        for path in paths
        if not any(is_below(path, one) for one in closed)
        for part in without_protected(path, uncovered)
    ]


def _open_mounts(
    stack: contextlib.AsyncExitStack, access: Access, options: Mapping[str, str]
) -> list[_Mount]:
    """Open paths to be mounted, without following links that others may create meanwhile."""
    mounts: list[_Mount] = []
    for path, option in options.items():
        fd = _open_without_links(access.root, os.path.relpath(path, access.root))
        if fd is not None:
            stack.callback(os.close, fd)
            mounts.append(_Mount(fd, path, option))
    return mounts


def _protect_nested(
    access: Access, tops: Sequence[str], read_only: Sequence[str], closed: ClosedPaths
) -> dict[str, str]:
    """Paths to mount, with options, that protect closed paths below the writable `tops`.

    The folders on the way to a closed path become mounts too, since a mount cannot be renamed.
    """
    options: dict[str, str] = {}
    own = os.path.join(access.root, ".git")
    for path in (*closed.git_dirs, *closed.hard_links, *read_only):
        above = [top for top in tops if is_below(path, top)]
        # `_workspace_mounts` protects the root's own `.git`.
        if not above or path == own:
            continue
        top = max(above, key=len)
        names = os.path.relpath(path, top).split(os.sep)
        for depth in range(1, len(names)):
            options.setdefault(os.path.join(top, *names[:depth]), "--bind-fd")
        options[path] = "--ro-bind-fd"
    # Sorted, so that a folder is mounted before what is in it. Nothing in a read-only one is
    # mounted again.
    covered = [path for path, option in options.items() if option == "--ro-bind-fd"]
    return {
        path: options[path]
        for path in sorted(options)
        if not any(path != one and is_below(path, one) for one in covered)
    }


def _open_without_links(root: str, path: str) -> int | None:
    here = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in () if path == "." else path.split("/"):
        try:
            below = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        except OSError:
            return None
        finally:
            os.close(here)
        here = below
    if stat.S_ISLNK(os.fstat(here).st_mode):
        os.close(here)
        return None
    return here
