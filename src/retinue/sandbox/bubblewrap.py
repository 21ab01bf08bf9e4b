"""Confinement by namespaces: bubblewrap builds a small world for each command.

The order of its arguments is the order of its mounts, and what comes later lies on top: the system,
the workspace for reading, what may be written, and over that what may never be.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from retinue.domain.grant import Network
from retinue.domain.reach import Reach
from retinue.errors import WorkspaceError
from retinue.ports import Completed
from retinue.sandbox.cgroups import Cgroups
from retinue.sandbox.limits import Limits
from retinue.sandbox.openings import CLOSED, openings
from retinue.sandbox.process import check, holding, run_process
from retinue.sandbox.seccomp import families_for, program
from retinue.sandbox.system import etc_files, etc_folders, programs
from retinue.sandbox.toolchains import homes, toolchains

HOME = "/tmp/home"
STATE = ".retinue"
# A process of root owns these in a namespace as well; writing to some of them reboots the machine.
# Each mount costs a good part of a millisecond, and nobody else can write there.
_PROC_OF_ROOT = ("/proc/irq", "/proc/bus", "/proc/fs")
_TRIGGER = "/proc/sysrq-trigger"
# How many commands that are running need an empty folder there.
_kept: Counter[str] = Counter()
NEEDED = "--bind-fd"


@cache
def options(bwrap: str) -> frozenset[str]:
    """What this version knows; versions differ by what distributions have added to them."""
    try:
        told = subprocess.run([bwrap, "--help"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    words = (told.stdout + told.stderr).decode(errors="replace").split()
    return frozenset(word for word in words if word.startswith("--"))


class Bubblewrap:
    """Tier full: files, network, processes and system calls are what the reach says, and no more.

    A command sees the system's programs, its workspace, and a `/tmp` of its own. Killing bubblewrap
    takes its whole process namespace along, daemons included, and it dies with us.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        bwrap: str,
        limits: Limits | None = None,
        readable: Sequence[str] = (),
    ) -> None:
        """`environment` is all that commands get to see; `readable` are more folders to show."""
        self._bwrap = bwrap
        self._options = options(bwrap)
        self._limits = limits or Limits()
        self._readable = tuple(readable)
        self._environment = {
            **{k: v for k, v in environment.items() if k != "SHELL"},
            **homes(environment),
            "HOME": HOME,
            "TMPDIR": "/tmp",
        }
        self._outside = dict(environment)
        self._cgroups = Cgroups.found(self._limits)

    @property
    def tier(self) -> str:
        return "full"

    async def run(
        self, command: str, *, reach: Reach, timeout_s: float, max_output_bytes: int
    ) -> Completed:
        """Run a shell command. A non-zero exit is a result, never an exception."""
        check(command, reach)
        with contextlib.ExitStack() as held:
            rules = holding(held, program(families=_families(reach.network), namespaced=True))
            told, telling = os.pipe()
            held.callback(os.close, told)
            held.callback(os.close, telling)
            places = _places(held, reach)
            held.enter_context(_closed(reach, places))
            files = _files(held, reach.network)
            argv = [self._bwrap, *self._world(reach, files, places)]
            argv += ["--seccomp", str(rules), "--json-status-fd", str(telling), "--"]
            argv += ["/bin/sh", "-c", command]
            first = self._limits.lines(counted=self._cgroups.counted)
            done = await run_process(
                held.enter_context(self._cgroups.around(argv, first=first)),
                directory="/",
                environment=self._environment,
                kill=_kill,
                timeout_s=timeout_s,
                max_output_bytes=max_output_bytes,
                pass_fds=(rules, telling, *(fd for fd, _ in (*files, *places))),
            )
            os.set_blocking(told, False)
            if not done.timed_out and b"exit-code" not in _read(told):
                # Never once more without: what failed is the sandbox, and not the command.
                raise WorkspaceError(
                    f"The sandbox failed: {done.output.strip() or 'it gave no reason'}."
                    " See `retinue doctor`."
                )
        return done

    def _world(
        self,
        reach: Reach,
        files: Sequence[tuple[int, str]],
        places: Sequence[tuple[int, str]],
    ) -> Iterator[str]:
        yield from (
            "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts",
            "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
        )  # fmt: skip
        # Where it is missing, the seccomp program alone sees to that.
        yield from ("--disable-userns",) if "--disable-userns" in self._options else ()
        if reach.network is not Network.ALL:
            yield "--unshare-net"
        yield from _system(files)
        outside = toolchains(self._outside, reach.root)
        for folder in dict.fromkeys((*outside, *self._readable, *reach.readable)):
            yield from ("--ro-bind-try", folder, folder)
        yield from ("--proc", "/proc")
        yield from ("--ro-bind", "/proc/sys", "/proc/sys")
        yield from ("--ro-bind-try", "/proc/pressure", "/proc/pressure")
        if os.geteuid() == 0:
            for path in _PROC_OF_ROOT:
                yield from ("--ro-bind-try", path, path)
            if os.path.exists(_TRIGGER):
                yield from ("--ro-bind", "/dev/null", _TRIGGER)
        size = ("--size", str(self._limits.tmp_bytes)) if "--size" in self._options else ()
        yield from ("--dev", "/dev", *size, "--tmpfs", "/dev/shm")
        yield from (*size, "--tmpfs", "/tmp", "--dir", HOME)
        yield from _workspace(reach, places)
        yield from ("--remount-ro", "/", "--chdir", reach.root)


def _workspace(reach: Reach, places: Sequence[tuple[int, str]]) -> Iterator[str]:
    root = reach.root
    yield from ("--ro-bind", root, root)
    for fd, path in places:
        yield from ("--bind-fd", str(fd), path)
    # In whatever was opened above, too. What is in `.git` runs on the host; `.retinue` is our own.
    for name in sorted(CLOSED):
        path = os.path.join(root, name)
        if os.path.lexists(path) and not os.path.islink(path):
            yield from ("--ro-bind", path, path)
    if os.path.isdir(state := os.path.join(root, STATE)):
        yield from ("--tmpfs", state, "--remount-ro", state)


def _system(files: Sequence[tuple[int, str]]) -> Iterator[str]:
    for path in programs():
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        else:
            yield from ("--ro-bind", path, path)
    for path in etc_folders():
        yield from ("--ro-bind", path, path)
    # Copied, which is far quicker than a mount.
    for fd, path in files:
        yield from ("--file", str(fd), path)


def _files(held: contextlib.ExitStack, network: Network) -> list[tuple[int, str]]:
    """Files of the system's to be copied, opened."""
    found: list[tuple[int, str]] = []
    for path in (*etc_files(), *(("/etc/resolv.conf",) if network is Network.ALL else ())):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            held.callback(os.close, fd)
            found.append((fd, path))
    return found


def _families(network: Network) -> tuple[int, ...]:
    return families_for(network, namespaced=network is not Network.ALL)


def _places(held: contextlib.ExitStack, reach: Reach) -> list[tuple[int, str]]:
    """What may be written, opened without going through a link: others may be at work there."""
    places: list[tuple[int, str]] = []
    # A link cannot be covered, so what holds one that must stay is not opened as a whole.
    linked = any(os.path.islink(os.path.join(reach.root, name)) for name in CLOSED)
    for path in openings(reach.root, reach.write_scope, whole_root=not linked):
        fd = _descend(reach.root, os.path.relpath(path, reach.root))
        if fd is not None:
            held.callback(os.close, fd)
            places.append((fd, path))
    return places


@contextlib.contextmanager
def _closed(reach: Reach, places: Sequence[tuple[int, str]]) -> Iterator[None]:
    """Have something at the names that must stay closed, so that it can be covered.

    Where the root is open, a command could otherwise make a `.git` of its own, with hooks that the
    user's next `git status` would run. An empty folder of that name means nothing to git.
    """
    made: list[str] = []
    if any(path == reach.root for _, path in places):
        for name in sorted(CLOSED):
            path = os.path.join(reach.root, name)
            if path in _kept or not os.path.lexists(path):
                with contextlib.suppress(OSError):
                    os.makedirs(path, exist_ok=True)
                    _kept[path] += 1
                    made.append(path)
    try:
        yield
    finally:
        for path in made:
            _kept[path] -= 1
            if not _kept[path]:
                del _kept[path]
                with contextlib.suppress(OSError):
                    os.rmdir(path)


def _descend(root: str, path: str) -> int | None:
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


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b""


def _kill(pid: int) -> None:
    """Its process namespace goes with it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
