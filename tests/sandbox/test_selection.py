"""What doctor says about a sandbox is true."""

from __future__ import annotations

import os
from collections.abc import Callable

from retinue.sandbox.limits import MIB, ProcessLimits
from retinue.sandbox.selection import REDUCED_TIER_LEAKS
from tests.sandbox.probe import SandboxProbe

WithLimits = Callable[[ProcessLimits], SandboxProbe]


async def test_known_leaks_are_those_that_doctor_lists(
    probe: SandboxProbe, with_limits: WithLimits
) -> None:
    """None of them is a leak in the full tier."""
    proofs = {
        "arguments": f"tr '\\0' ' ' </proc/{os.getpid()}/cmdline | grep -q .",
        "rights": f"chmod 0640 {probe.outside}/writable",
        "existence": f"stat {probe.outside}/secret",
        "space": "for n in 1 2 3; do head -c 900000 /dev/zero >$TMPDIR/$n || exit; done",
    }
    assert proofs.keys() == REDUCED_TIER_LEAKS.keys()
    script = "\n".join(f"({proof}) && echo leaked {name}" for name, proof in proofs.items())
    done = await with_limits(ProcessLimits(tmp_bytes=MIB)).run(script)
    leaked = {line.split()[1] for line in done.output.splitlines() if line.startswith("leaked ")}
    assert leaked == (set() if probe.full else REDUCED_TIER_LEAKS.keys())


async def test_named_pipe_is_writable_only_where_doctor_says_so(
    probe: SandboxProbe,
) -> None:
    path = probe.root / "src" / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        await probe.run("echo x >src/pipe")
        got = os.read(reader, 10)
    finally:
        os.close(reader)
    assert got == (b"x\n" if probe.full else b"")
