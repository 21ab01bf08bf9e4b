"""Which sandbox there is: the strongest that passes its trial, or none."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import msgspec

from retinue.ports.sandbox import Sandbox
from retinue.programs import find_program
from retinue.sandbox import seccomp
from retinue.sandbox.cgroups import cgroups
from retinue.sandbox.limits import ProcessLimits
from retinue.sandbox.self_test import SelfTestResult, run_self_test

INSTALL_HINT = "Install bubblewrap (Debian, Ubuntu, Fedora, Arch: the package is called so)."
FULL_TIER_HINT = (
    "For the full tier, install bubblewrap and let it make user namespaces: in a container by"
    " --security-opt seccomp=unconfined, on Ubuntu by an AppArmor profile for bwrap."
)
_ENFORCED = {
    "full": "files, network, processes, memory and system calls of commands are what their contract"
    " says",
    "reduced": "files, network, signals and system calls of commands are what their contract says",
}
# What gets through in the reduced tier, told to the user as it is.
REDUCED_TIER_LEAKS = {
    "arguments": "what other programs there are, with their command lines and whatever else /proc"
    " tells everybody, and the list of connections can be read",
    "rights": "rights, owners and times of files that may not be written can be changed, where they"
    " are the user's",
    "existence": "it can be seen whether a file outside exists, and its size and times",
    "space": "files outside of the workspace are limited in size, but not in number",
}
# Of the full tier: a mount that cannot be written does not keep anybody from a pipe or a socket.
NAMED_PIPE_LEAK = "a named pipe in the workspace can be written to, for the program that reads it"
NEW_SOCKET_LEAK = (
    "a socket that another program makes in the workspace while a command runs can be spoken to for"
    " a quarter of a second: then the command is ended"
)
# Of every tier.
NEW_REPOSITORY_LEAK = (
    "a repository that a command makes is one, and one that is made inside of the workspace by"
    " somebody else after the first command is open: git, used in it, runs what is set up there"
)
FILE_LOCK_LEAK = "a file that can be read can be locked (flock) while a command runs"
# What does not work in it.
REDUCED_TIER_UNSUPPORTED = (
    "sockets: without network there are none, so that no test server works",
    "new names at the top of the workspace, which only the file tools can make",
    "named semaphores and shared memory, so that multiprocessing of Python does not work",
    "terminals of its own, and waiting for changes of files (inotify)",
    "settings in folders above the workspace: programs that look for them see them, and fail",
)
# Of a tier whose commands no control group counts.
_LEAKS_WITHOUT_CGROUPS = {
    "processes": "processes are limited for the user as a whole, and not at all for root",
    "memory": "memory is limited for each process, and not for a command as a whole",
}


class SandboxSelection(msgspec.Struct, frozen=True, kw_only=True):
    """`sandbox` is the best that holds; `rejected` says why each better one is not it.

    `leaks` and `unsupported` are what it does not hold, and what does not work in it.
    """

    sandbox: Sandbox | None
    name: str = ""
    rejected: tuple[str, ...] = ()
    leaks: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()

    @property
    def enforces(self) -> str:
        """What is enforced, in a sentence."""
        return _ENFORCED[self.tier]

    @property
    def tier(self) -> str:
        return "none" if self.sandbox is None else self.sandbox.tier


# How each kind did, once in the life of this process.
_self_tests: dict[tuple[str, str | None], SelfTestResult] = {}


async def select_sandbox(
    environment: Mapping[str, str], *, readable: Sequence[str] = (), cache: str | None = None
) -> SandboxSelection:
    """The strongest sandbox that holds, of those that this machine has.

    `cache` is a folder in which it may keep something for the next time.
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
            limited = cgroups(ProcessLimits()).limited
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
) -> list[tuple[str, Sandbox | str]]:
    if sys.platform == "darwin":
        from retinue.sandbox.seatbelt import Seatbelt

        return [("sandbox-exec", Seatbelt(environment, readable=readable))]
    if not sys.platform.startswith("linux"):
        return [("kernel", f"there is no sandbox for {sys.platform}")]
    if not seccomp.is_supported():
        return [("seccomp", "no program for this processor")]
    from retinue.sandbox import bubblewrap, landlock

    namespaces: Sandbox | str
    bwrap = find_program("bwrap", path=environment.get("PATH"))
    if bwrap is None:
        namespaces = f"not found. {INSTALL_HINT}"
    elif bubblewrap.REQUIRED_OPTION not in bubblewrap.supported_options(bwrap):
        namespaces = (
            f"{bwrap} is too old: it has no {bubblewrap.REQUIRED_OPTION}. Version 0.10 has."
        )
    else:
        namespaces = bubblewrap.Bubblewrap(environment, bwrap=bwrap, readable=readable, cache=cache)
    rules: Sandbox | str
    if landlock.abi_version() < landlock.MIN_ABI:
        rules = (
            f"this kernel has version {landlock.abi_version()};"
            f" version {landlock.MIN_ABI} (Linux 6.12) is needed"
        )
    else:
        rules = landlock.Landlock(environment, readable=readable)
    return [("bubblewrap", namespaces), ("landlock", rules)]
