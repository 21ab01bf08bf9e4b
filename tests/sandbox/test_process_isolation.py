"""Commands cannot signal, slow down or read other processes, or gain privileges."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from pathlib import Path

from retinue.domain.scope import scope
from tests.sandbox.probe import SandboxProbe

OPEN = scope("open/**")


async def test_processes_outside_cannot_be_signalled(probe: SandboxProbe) -> None:
    victim = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        done = await probe.run(
            f"kill -9 {victim.pid}; kill -STOP {os.getpid()}; kill -9 -{os.getpgrp()};"
            f" kill -9 -1; echo still here",
        )
        # A signal to all processes reaches only the command itself.
        assert done.exit_code != 0 or "still here" in done.output
        assert victim.returncode is None
        assert _process_state(victim.pid) == "S"
    finally:
        victim.kill()
        await victim.wait()


def _process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


async def test_priority_and_limits_of_other_processes_stay(probe: SandboxProbe) -> None:
    victim = await asyncio.create_subprocess_exec("sleep", "60")
    _wait_until_started(victim.pid, "sleep")
    before = _priority_and_limits(victim.pid)
    try:
        done = await probe.python(
            f"""
import ctypes, os, resource
def attempt(act, *arguments):
    try:
        act(*arguments)
        print("escaped", act.__name__)
    except OSError:
        pass
for pid in ({victim.pid}, {os.getpid()}, os.getppid()):
    attempt(resource.prlimit, pid, resource.RLIMIT_CPU, (1, 1))
    attempt(os.setpriority, os.PRIO_PROCESS, pid, 19)
    attempt(os.sched_setaffinity, pid, {{0}})
    attempt(os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))
    attempt(open, f"/proc/{{pid}}/oom_score_adj", "w")
    attempt(open, f"/proc/{{pid}}/comm", "w")
"""
        )
        assert _priority_and_limits(victim.pid) == before
        if not probe.full:  # In a pid namespace these pids may be those of the command.
            assert "escaped" not in done.output
    finally:
        victim.kill()
        await victim.wait()


def _wait_until_started(pid: int, name: str) -> None:
    """Wait for a program's name: it is set a moment after Popen returns (Python 3.13)."""
    while Path(f"/proc/{pid}/comm").read_text() != f"{name}\n":
        time.sleep(0.001)


def _priority_and_limits(pid: int) -> tuple[object, ...]:
    return (
        os.sched_getscheduler(pid),
        os.sched_getaffinity(pid),
        os.getpriority(os.PRIO_PROCESS, pid),
        Path(f"/proc/{pid}/limits").read_text(),
        Path(f"/proc/{pid}/oom_score_adj").read_text(),
        Path(f"/proc/{pid}/comm").read_text(),
    )


async def test_shared_memory_of_others_is_out_of_reach(probe: SandboxProbe) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    key = os.getpid()
    segment = libc.shmget(key, 4096, 0o1666)
    shared = probe.outside.joinpath("/dev/shm", f"retinue-{key}")
    shared.write_text("a secret\n")
    try:
        done = await probe.python(
            f"""
import ctypes, subprocess
libc = ctypes.CDLL(None, use_errno=True)
print("escaped" if libc.shmget({key}, 4096, 0) >= 0 else "none")
print("escaped" if libc.mq_open(b"/retinue-{key}", 0) >= 0 else "none")
subprocess.run("cat {shared}; echo x >{shared}", shell=True)
"""
        )
        assert "escaped" not in done.output
        assert "a secret" not in done.output
        assert shared.read_text() == "a secret\n"
    finally:
        libc.shmctl(segment, 0, None)
        shared.unlink()


async def test_no_privileges_are_gained(probe: SandboxProbe) -> None:
    done = await probe.run(
        "grep -E '^(CapEff|CapBnd|CapPrm|NoNewPrivs)' /proc/self/status;"
        " su -c id nobody; setpriv --reuid=1 id; sudo -n id; echo end"
    )
    facts = dict(line.split(":\t") for line in done.output.splitlines() if ":\t" in line)
    assert int(facts["CapEff"], 16) == int(facts["CapPrm"], 16) == 0
    assert facts["NoNewPrivs"] == "1"
    assert "uid=" not in done.output
    if os.geteuid() == 0 or probe.full:
        assert int(facts["CapBnd"], 16) == 0


async def test_no_terminal_and_no_input_is_inherited(probe: SandboxProbe) -> None:
    done = await probe.run("cat; (echo x >/dev/tty) 2>&1 | grep -c . ; tty; echo x >&0; echo end")
    assert "not a tty" in done.output
    assert done.output.endswith("end\n")


async def test_command_line_of_the_sandbox_has_no_secrets(probe: SandboxProbe) -> None:
    """Every user can read the command lines of all processes."""
    done = await probe.run("cat /proc/1/cmdline /proc/$PPID/cmdline | tr '\\0' ' '")
    assert "C.UTF-8" not in done.output


async def test_memory_of_the_parent_is_not_readable(probe: SandboxProbe) -> None:
    done = await probe.python(
        f"""
import ctypes
print(open("/proc/{os.getpid()}/mem", "rb").fileno())
print("escaped")
"""
    )
    assert "escaped" not in done.output
    done = await probe.python(
        f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.ptrace(16, {os.getpid()}, 0, 0), libc.ptrace(0, 0, 0, 0))
"""
    )
    assert done.output == "-1 -1\n"


async def test_no_descriptor_is_inherited(probe: SandboxProbe) -> None:
    read_fd, write_fd = os.pipe()
    try:
        os.set_inheritable(write_fd, True)
        (probe.root / "open").mkdir()
        done = await probe.run("ls -l /proc/self/fd", write=OPEN)
    finally:
        os.close(read_fd)
        os.close(write_fd)
    found = dict(line.split()[-3::2] for line in done.output.splitlines() if "->" in line)
    # Standard input and output, and the folder that `ls` reads.
    assert sorted(found) == ["0", "1", "2", "3"]
    assert found["0"] == "/dev/null"
    assert found["1"].startswith("pipe:")
    assert found["2"] == found["1"]
    assert found["3"].startswith("/proc/")


async def test_priority_of_all_processes_of_the_user_stays(probe: SandboxProbe) -> None:
    words = ["sleep", "60"]
    if os.geteuid() == 0:
        # The kernel spares processes with capabilities that the command lacks.
        words = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", *words]
    victim = await asyncio.create_subprocess_exec(*words)
    before = os.getpriority(os.PRIO_PROCESS, victim.pid)
    try:
        done = await probe.python(
            """
import ctypes, os
libc = ctypes.CDLL(None)
print(libc.setpriority(os.PRIO_USER, 0, 19), libc.syscall(251, 3, 0, 3 << 13))
"""
        )
        assert os.getpriority(os.PRIO_PROCESS, victim.pid) == before
        if not probe.full:
            assert done.output == "-1 -1\n"
    finally:
        victim.kill()
        await victim.wait()
