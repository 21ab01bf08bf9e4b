"""Selects a sandbox: the strongest on this machine that passes its self-test, or none."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import msgspec

from retinue.executables import find_program
from retinue.ports.sandbox import ProcessSandbox
from retinue.sandbox import seccomp
from retinue.sandbox.cgroups import cgroups
from retinue.sandbox.limits import DEFAULT_LIMITS
from retinue.sandbox.self_test import SelfTestResult, run_self_test

INSTALL_HINT = "Install bubblewrap (package `bubblewrap` on Debian, Ubuntu, Fedora and Arch)."
FULL_TIER_HINT = (
    "For the full tier, install bubblewrap and allow it to make user namespaces: in a container"
    " with --security-opt seccomp=unconfined, on Ubuntu with an AppArmor profile for bwrap."
)
_ENFORCED = {
    "full": "files, network, processes, memory and system calls of commands are confined to their"
    " contract",
    "reduced": "files, network, signals and system calls of commands are confined to their"
    " contract",
}
# Things that the reduced tier does not prevent; `retinue doctor` prints them.
REDUCED_TIER_LEAKS = {
    "arguments": "commands can list other programs, with their command lines and what else /proc"
    " shows to everyone, and network connections",
    "rights": "commands can change permissions, owners and times of files that they cannot write,"
    " if the files belong to you",
    "existence": "commands can see whether a file outside exists, and its size and times",
    "space": "files outside of the workspace are limited in size, but not in number",
}
# In the full tier: a read-only mount does not prevent writing to a pipe or a socket in it.
NAMED_PIPE_LEAK = "commands can write to a named pipe in the workspace that another program reads"
NEW_SOCKET_LEAK = (
    "if another program makes a socket in the workspace while a command runs, the command can"
    " connect to it for a quarter of a second; then the command is killed"
)
# In every tier.
NEW_REPOSITORY_LEAK = (
    "commands can write to a repository that was made in the workspace by a command, or by anyone"
    " after the first command: git, when you use it there, runs the hooks that it finds"
)
FILE_LOCK_LEAK = "commands can lock (flock) any file that they can read, while they run"
# Things that do not work in the reduced tier.
REDUCED_TIER_UNSUPPORTED = (
    "sockets: without network there are none, so test servers do not work",
    "new files and folders at the top of the workspace: only the file tools can make them",
    "named semaphores and shared memory, so Python's multiprocessing does not work",
    "pseudo terminals, and watching files for changes (inotify)",
    "settings in folders above the workspace: programs that look for them find them, and fail",
)
# Things that no tier prevents without control groups.
_LEAKS_WITHOUT_CGROUPS = {
    "processes": "the number of processes is limited per user, and not at all for root",
    "memory": "memory is limited for each process, not for a command as a whole",
}


class SandboxSelection(msgspec.Struct, frozen=True, kw_only=True):
    """The selected sandbox; `rejected` says why each stronger one was not selected.

    `leaks` is what the sandbox does not prevent, and `unsupported` what does not work in it.
    """

    sandbox: ProcessSandbox | None
    name: str = ""
    rejected: tuple[str, ...] = ()
    leaks: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()

    @property
    def enforces(self) -> str:
        """One sentence about what the sandbox enforces."""
        return _ENFORCED[self.tier]

    @property
    def tier(self) -> str:
        return "none" if self.sandbox is None else self.sandbox.tier


# Results of the self-tests, which run once per process.
_self_tests: dict[tuple[str, str | None], SelfTestResult] = {}


async def select_sandbox(
    environment: Mapping[str, str], *, readable: Sequence[str] = (), cache: str | None = None
) -> SandboxSelection:
    """The strongest sandbox of this machine that passes its self-test.

    `cache` is a folder in which the sandbox may keep files.
    """
    rejected: list[str] = []
    for name, candidate in _candidate_sandboxes(environment, readable, cache):
        if isinstance(candidate, str):
            rejected.append(f"{name}: {candidate}")
            continue
        kind = (name, environment.get("PATH"))
        if kind not in _self_tests:
            _self_tests[kind] = await run_self_test(candidate)
        trial = _self_tests[kind]
        if trial.passed:
            reduced = candidate.tier == "reduced"
            limited = cgroups(DEFAULT_LIMITS).limited
            return SandboxSelection(
                sandbox=candidate,
                name=name,
                rejected=tuple(rejected),
                leaks=(
                    *(
                        REDUCED_TIER_LEAKS.values()
                        if reduced
                        else (NAMED_PIPE_LEAK, NEW_SOCKET_LEAK)
                    ),
                    NEW_REPOSITORY_LEAK,
                    FILE_LOCK_LEAK,
                    *(text for what, text in _LEAKS_WITHOUT_CGROUPS.items() if what not in limited),
                ),
                unsupported=REDUCED_TIER_UNSUPPORTED if reduced else (),
            )
        what = f"let through: {', '.join(trial.escaped)}" if trial.escaped else trial.broken
        rejected.append(f"{name}: {what}")
    return SandboxSelection(sandbox=None, rejected=tuple(rejected))


def _candidate_sandboxes(
    environment: Mapping[str, str], readable: Sequence[str], cache: str | None
) -> list[tuple[str, ProcessSandbox | str]]:
    if sys.platform == "darwin":
        from retinue.sandbox.seatbelt import Seatbelt

        return [("sandbox-exec", Seatbelt(environment, readable=readable))]
    if not sys.platform.startswith("linux"):
        return [("kernel", f"there is no sandbox for {sys.platform}")]
    if not seccomp.is_supported():
        return [("seccomp", "there is no filter for this processor")]
    from retinue.sandbox import bubblewrap, landlock

    namespaces: ProcessSandbox | str
    bwrap = find_program("bwrap", path=environment.get("PATH"))
    if bwrap is None:
        namespaces = f"not found. {INSTALL_HINT}"
    elif bubblewrap.REQUIRED_OPTION not in bubblewrap.supported_options(bwrap):
        namespaces = (
            f"{bwrap} is too old: it has no {bubblewrap.REQUIRED_OPTION}. Version 0.10 has."
        )
    else:
        namespaces = bubblewrap.Bubblewrap(environment, bwrap=bwrap, readable=readable, cache=cache)
    rules: ProcessSandbox | str
    if landlock.abi_version() < landlock.MIN_ABI:
        rules = (
            f"this kernel has version {landlock.abi_version()};"
            f" version {landlock.MIN_ABI} (Linux 6.12) is needed"
        )
    else:
        rules = landlock.Landlock(environment, readable=readable)
    return [("bubblewrap", namespaces), ("landlock", rules)]
