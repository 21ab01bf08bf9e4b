"""Which sandbox there is: the strongest that passes its trial, or none."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence

import msgspec

from retinue.ports import Sandbox
from retinue.sandbox import seccomp
from retinue.sandbox.canaries import try_out

INSTALL = "Install bubblewrap (Debian, Ubuntu, Fedora, Arch: the package is called so)."
# What gets through in the reduced tier, told to the user as it is.
LEAKS = (
    "sockets, and so test servers, do not work at all where the contract gives no network",
    "other processes' command lines can be read",
    "rights and times of files outside can be changed where the user owns them",
    "names and sizes of files outside can be seen",
    "the project's .retinue, with its journal, can be read",
    "memory is limited for each process, not for a command as a whole",
)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """`sandbox` is the best that holds; `rejected` says why each better one is not it."""

    sandbox: Sandbox | None
    rejected: tuple[str, ...] = ()

    @property
    def tier(self) -> str:
        return "none" if self.sandbox is None else self.sandbox.tier


_chosen: dict[tuple[object, ...], Choice] = {}


async def choose(environment: Mapping[str, str], *, readable: Sequence[str] = ()) -> Choice:
    """The strongest sandbox that holds. Each is tried out, once in the life of this process."""
    key = (*sorted(environment.items()), *readable)
    if key not in _chosen:
        _chosen[key] = await _choose(environment, readable)
    return _chosen[key]


async def _choose(environment: Mapping[str, str], readable: Sequence[str]) -> Choice:
    rejected: list[str] = []
    for name, candidate in _candidates(environment, readable):
        if isinstance(candidate, str):
            rejected.append(f"{name}: {candidate}")
            continue
        trial = await try_out(candidate)
        if trial.passed:
            return Choice(sandbox=candidate, rejected=tuple(rejected))
        what = f"let through: {', '.join(trial.escaped)}" if trial.escaped else trial.broken
        rejected.append(f"{name}: {what}")
    return Choice(sandbox=None, rejected=tuple(rejected))


def _candidates(
    environment: Mapping[str, str], readable: Sequence[str]
) -> list[tuple[str, Sandbox | str]]:
    if sys.platform == "darwin":
        from retinue.sandbox.seatbelt import Seatbelt

        return [("sandbox-exec", Seatbelt(environment, readable=readable))]
    if not sys.platform.startswith("linux"):
        return [("kernel", f"there is no sandbox for {sys.platform}")]
    if not seccomp.supported():
        return [("seccomp", "no program for this processor")]
    from retinue.sandbox.bubblewrap import Bubblewrap
    from retinue.sandbox.landlock import Landlock, abi

    bwrap = shutil.which("bwrap", path=environment.get("PATH"))
    return [
        (
            "bubblewrap",
            f"not found. {INSTALL}"
            if bwrap is None
            else Bubblewrap(environment, bwrap=bwrap, readable=readable),
        ),
        (
            "landlock",
            Landlock(environment, readable=readable)
            if abi()
            else "this kernel has none, or does not allow it",
        ),
    ]
