"""Resource limits of commands: processes, memory, files and output."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from retinue.domain.scope import scope
from retinue.errors import WorkspaceError
from retinue.sandbox.cgroups import cgroups
from retinue.sandbox.limits import MIB, ProcessLimits
from tests.sandbox.probe import SandboxProbe

WithLimits = Callable[[ProcessLimits], SandboxProbe]


async def test_endless_output_is_cut(probe: SandboxProbe) -> None:
    done = await probe.run("yes | head -c 50000000", max_output_bytes=1000)
    assert len(done.output) < 1200
    assert done.truncated_bytes > 49_000_000


async def test_fork_bomb_is_stopped(probe: SandboxProbe, with_limits: WithLimits) -> None:
    by_cgroup = "processes" in cgroups(ProcessLimits()).limited
    if os.geteuid() == 0 and not by_cgroup:
        pytest.skip("root's processes are with_limits by a control group, and there is none")
    done = await with_limits(ProcessLimits(processes=100)).python(
        """
import os, time
made = 0
try:
    for _ in range(5000):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError as error:
    print("stopped")
print(made)
""",
        timeout_s=60,
    )
    assert done.output.startswith("stopped\n")
    most = ProcessLimits(processes=200).per_process(limited=frozenset())["RLIMIT_NPROC"]
    assert int(done.output.split()[1]) < (100 if by_cgroup else most)


async def test_endless_file_is_stopped(probe: SandboxProbe, with_limits: WithLimits) -> None:
    done = await with_limits(ProcessLimits(file_bytes=MIB)).run(
        'head -c 9000000 /dev/zero >"$TMPDIR/big"; stat -c %s "$TMPDIR/big"'
    )
    assert int(done.output.split()[-1]) == MIB


async def test_tmp_has_a_size_limit(probe: SandboxProbe, with_limits: WithLimits) -> None:
    if not probe.full:
        pytest.skip("the reduced tier limits each file alone, and says so")
    done = await with_limits(ProcessLimits(tmp_bytes=MIB)).run(
        "for n in /tmp/1 /tmp/2 /dev/shm/1 /dev/shm/2; do head -c 900000 /dev/zero >$n; done;"
        " du -skx /tmp /dev/shm"
    )
    sizes = [int(line.split()[0]) for line in done.output.splitlines() if line[0].isdigit()]
    assert max(sizes) <= 1024


@pytest.mark.parametrize("memory", ["bytearray(size)", "mmap.mmap(-1, size)"])
async def test_memory_is_limited(probe: SandboxProbe, with_limits: WithLimits, memory: str) -> None:
    try:
        done = await with_limits(ProcessLimits(memory_bytes=64 * MIB)).python(
            f"""
import mmap
size = 2**30
memory = {memory}
for place in range(0, size, 4096):
    memory[place] = 1
print('escaped')
"""
        )
    except WorkspaceError:
        return  # The kernel killed the sandbox too.
    assert "escaped" not in done.output


async def test_no_core_is_dumped(probe: SandboxProbe) -> None:
    (probe.root / "open").mkdir()
    done = await probe.run(
        "cd open; ulimit -c unlimited; sh -c 'kill -SEGV $$'; ls",
        write=scope("open/**"),
    )
    assert "core" not in done.output.split()
    assert os.listdir(probe.root / "open") == []


async def test_no_unlimited_folder_is_writable(probe: SandboxProbe) -> None:
    """Without a control group, files in memory are not limited."""
    done = await probe.run(
        "for place in / /dev"
        " /dev/pts /proc /etc /usr /run /var /opt /sys /root /home; do"
        ' (: >"$place/made") 2>/dev/null && echo "escaped $place"; done'
    )
    assert "escaped" not in done.output


async def test_limits_are_set_before_the_command_starts(probe: SandboxProbe) -> None:
    done = await probe.run("cat /proc/self/oom_score_adj; ulimit -f; cat /proc/self/limits")
    first, blocks, *limits = done.output.splitlines()
    assert first == "1000"
    assert int(blocks) * 512 == ProcessLimits().file_bytes
    # With 0 the kernel would start the host's program that collects core dumps.
    assert next(line.split()[4:6] for line in limits if line.startswith("Max core")) == ["1", "1"]
