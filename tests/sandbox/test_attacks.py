"""What a contract forbids is impossible: attacks as a child's command, on every sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from retinue.domain.grant import Network
from retinue.domain.scope import ANYWHERE, scope
from retinue.errors import WorkspaceError
from retinue.ports.sandbox import Sandbox
from retinue.sandbox.bubblewrap import Bubblewrap
from retinue.sandbox.cgroups import cgroups
from retinue.sandbox.landlock import Landlock
from retinue.sandbox.limits import MIB, ProcessLimits
from retinue.sandbox.selection import REDUCED_TIER_LEAKS
from tests.sandbox.probe import SandboxProbe

OPEN = scope("open/**")


def untouched(probe: SandboxProbe) -> bool:
    return (
        (probe.outside / "writable").read_text() == "as it was\n"
        and sorted(os.listdir(probe.outside)) == ["secret", "writable"]
        and (probe.root / "src" / "a.py").read_text() == "as it was\n"
    )


# Writing


WRITES = [
    "echo x >{out}/made",
    "echo x >>{out}/writable",
    "cp src/a.py {out}/made",
    "ln src/a.py {out}/made",
    "mv src/a.py {out}/made",
    "mv {out}/writable .",
    "rm -f {out}/writable",
    "truncate -s 0 {out}/writable",
    "ln {out}/writable open/linked && echo x >open/linked",
    "ln -s {out}/writable open/link && echo x >open/link",
    "ln -s {out} open/folder && echo x >open/folder/made",
    "echo x >open/../src/a.py",
    "echo x >/proc/self/root{out}/made",
    "echo x >/proc/self/cwd/../outside/made",
    "mkdir {out}/folder",
    "mknod {out}/node p",
    "echo x >/proc/1/root{out}/made",
    "cd open && mkdir -p a/b && mv a ../src/moved && echo x >../src/a.py",
    "mv open {out}/open",
    "ln src/a.py open/hard && echo x >open/hard",
    "exec 9<src && echo x >/proc/self/fd/9/a.py",
    "install -m 4755 /bin/sh {out}/made",
    "python3 -c \"import os; os.rename('open', '{out}/open')\"",
    "python3 -c \"import os; os.link('{out}/writable', 'open/l'); open('open/l','w')\"",
    "python3 -c \"import os; os.rename('src/a.py', 'open/a.py')\"",
    "python3 -c \"import os; os.open('{out}', os.O_TMPFILE | os.O_WRONLY)\" && mkdir {out}/d",
    "python3 -c \"import os; os.truncate('{out}/writable', 0)\"",
    "python3 -c \"import os; os.removexattr('{out}/writable', 'user.x')\"",
    "echo x >src/a.py",
    "sed -i s/was/is/ src/a.py",
    "printf x >'{out}/new\nline'",
    "echo x >/dev/shm/retinue-made; cp /dev/shm/retinue-made {out}/made",
]


async def test_nothing_is_written_outside_of_the_scope(probe: SandboxProbe) -> None:
    (probe.root / "open").mkdir()
    done = await probe.run(tried(WRITES, out=probe.outside), write=OPEN, max_output_bytes=100_000)
    assert untouched(probe), done.output
    assert f"tried {len(WRITES)}" in done.output


def tried(commands: Sequence[str], **places: object) -> str:
    """One command that tries all of them, and says so."""
    lines = (
        f"({command.format(**places)}) </dev/null\necho tried {number}"
        for number, command in enumerate(commands, 1)
    )
    return "\n".join(lines)


async def test_the_scope_is_writable(probe: SandboxProbe) -> None:
    (probe.root / "open").mkdir()
    done = await probe.run("mkdir -p open/deep && echo x >open/deep/made", write=OPEN)
    assert done.exit_code == 0
    assert (probe.root / "open/deep/made").read_text() == "x\n"


async def test_a_reviewer_writes_nowhere_but_to_a_place_of_its_own(probe: SandboxProbe) -> None:
    done = await probe.run(
        'echo x >made; echo x >src/a.py; echo x >"$TMPDIR/ok" && cat "$TMPDIR/ok"'
    )
    assert done.output.endswith("x\n")
    assert untouched(probe)
    assert not (probe.root / "made").exists()


async def test_a_tester_writes_only_under_the_test_folders(probe: SandboxProbe) -> None:
    tests = scope("**/tests/**", "**/test_*")
    await probe.run(
        "echo x >tests/new; echo x >src/test_a.py; echo x >src/a.py; echo x >src/new", write=tests
    )
    assert (probe.root / "tests/new").read_text() == "x\n"
    assert (probe.root / "src/test_a.py").read_text() == "x\n"
    assert untouched(probe)
    assert not (probe.root / "src/new").exists()


@pytest.mark.parametrize(
    "command",
    [
        "echo x >.git/hooks/pre-commit",
        "mv .git .git2; mkdir -p .git/hooks; echo x >.git/hooks/pre-commit",
        "rm -rf .git; echo 'gitdir: open' >.git",
        "chmod 777 .git/hooks",
        "echo x >.GIT/hooks/pre-commit",
        "ln -sfn /tmp .git; ln -sfn /tmp .git/hooks",
        "ln -s .git open; echo x >open/hooks/pre-commit",
        "mkdir -p new/hooks; mv -T new .git",
    ],
)
async def test_git_is_out_of_reach_wherever_else_may_be_written(
    probe: SandboxProbe, command: str
) -> None:
    before = os.stat(probe.root / ".git/hooks").st_mode
    await probe.run(command, write=ANYWHERE)
    assert (probe.root / ".git").is_dir()
    assert not (probe.root / ".git").is_symlink()
    assert os.listdir(probe.root / ".git/hooks") == []
    if probe.full:  # See LEAKS.
        assert os.stat(probe.root / ".git/hooks").st_mode == before


async def test_a_git_of_its_own_cannot_be_planted(probe: SandboxProbe) -> None:
    (probe.root / ".git" / "hooks").rmdir()
    (probe.root / ".git").rmdir()
    (probe.root / ".retinue").mkdir()  # There is always one where retinue works.
    done = await probe.run(
        "mkdir -p .git/hooks && echo x >.git/config; echo 'gitdir: src' >.git;"
        " ln -s src .git; echo x >src/b.py && echo written",
        write=ANYWHERE,
    )
    assert done.output.endswith("written\n")
    assert ".git" not in os.listdir(probe.root)


async def test_a_git_that_is_a_link_or_a_file_stays_so(probe: SandboxProbe) -> None:
    (probe.root / ".git" / "hooks").rmdir()
    (probe.root / ".git").rmdir()
    command = "rm -f .git; echo x >.git; mv .git gone; ln -s src .git"
    (probe.root / ".git").symlink_to(probe.outside)
    await probe.run(command, write=ANYWHERE)
    assert os.readlink(probe.root / ".git") == str(probe.outside)
    (probe.root / ".git").unlink()
    (probe.root / ".git").write_text("gitdir: ../elsewhere\n")
    await probe.run(command, write=ANYWHERE)
    assert (probe.root / ".git").read_text() == "gitdir: ../elsewhere\n"
    assert untouched(probe)


async def test_a_folder_that_is_swapped_for_a_link_leads_nowhere(probe: SandboxProbe) -> None:
    (probe.root / "open").mkdir()

    async def swap() -> None:
        for _ in range(300):
            os.rename(probe.root / "open", probe.root / "aside")
            os.symlink(probe.outside, probe.root / "open")
            await asyncio.sleep(0)
            os.unlink(probe.root / "open")
            os.rename(probe.root / "aside", probe.root / "open")
            await asyncio.sleep(0)

    async def attack() -> None:
        for _ in range(4):
            # Where what it found is not there any more, nothing is run at all.
            with contextlib.suppress(WorkspaceError):
                await probe.run("echo x >open/made; echo x >open/writable", write=OPEN)

    await asyncio.gather(swap(), attack())
    assert untouched(probe)


async def test_our_own_records_are_out_of_reach(probe: SandboxProbe) -> None:
    state = probe.root / ".retinue"
    state.mkdir()
    (state / "retinue.db").write_text("the journal")
    done = await probe.run(
        "cat .retinue/retinue.db; echo x >.retinue/retinue.db; rm -rf .retinue", write=ANYWHERE
    )
    assert (state / "retinue.db").read_text() == "the journal"
    assert "the journal" not in done.output


# Reading


READS = [
    "cat {out}/secret",
    "cat src/../../outside/secret",
    "cat /proc/self/root{out}/secret",
    "ln -s {out}/secret open/link && cat open/link",
    "cat /proc/{pid}/root{out}/secret",
    "cat /proc/{pid}/environ",
    "cat /proc/{pid}/fd/* </dev/null",
    "cat /etc/shadow /etc/sudoers",
    "cat ~root/.ssh/* ~root/.netrc ~root/.bash_history",
    "cat /proc/*/environ",
    "cat /proc/1/root{out}/secret /proc/*/root{out}/secret",
    "cat /proc/*/cwd/../outside/secret ../outside/secret",
    "cp {out}/secret open/ && cat open/secret",
    "LD_PRELOAD={out}/secret ls; . {out}/secret; sh {out}/secret",
    "tar cf - {out} | tar xOf -",
    "python3 -c \"import mmap,os; print(os.listdir('{out}'))\" && cat /proc/self/map_files/*",
    "git -C {out} hash-object --stdin <{out}/secret; git grep --no-index secret {out}",
    "env",
]


async def test_no_secret_is_read(probe: SandboxProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    (probe.root / "open").mkdir()
    monkeypatch.setenv("SECRET_KEY", "a secret")
    script = tried(READS, out=probe.outside, pid=os.getpid())
    done = await probe.run(script, write=OPEN, max_output_bytes=1_000_000)
    assert "a secret" not in done.output
    assert "root:" not in done.output
    assert f"tried {len(READS)}" in done.output


async def test_the_home_is_not_the_user_s(probe: SandboxProbe) -> None:
    done = await probe.run("cd && pwd && ls -A")
    assert os.environ["HOME"] not in done.output.split()
    assert done.output.count("\n") == 1


# Other processes


async def test_nobody_outside_is_signalled(probe: SandboxProbe) -> None:
    victim = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        done = await probe.run(
            f"kill -9 {victim.pid}; kill -STOP {os.getpid()}; kill -9 -{os.getpgrp()};"
            f" kill -9 -1; echo still here",
        )
        # Who signals everybody signals no more than itself.
        assert done.exit_code != 0 or "still here" in done.output
        assert victim.returncode is None
        assert _state(victim.pid) == "S"
    finally:
        victim.kill()
        await victim.wait()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.parametrize("number", ["KILL", "STOP", "TERM", "INT", "HUP"])
async def test_who_watches_the_command_cannot_be_signalled_by_it(
    probe: SandboxProbe, alive: tuple[str, int], number: str
) -> None:
    name, reader = alive
    done = await probe.run(
        f"exec 3<>{name}; setsid sleep 100 >/dev/null 2>&1 &"
        f" kill -{number} $PPID 2>/dev/null; kill -{number} 1 2>/dev/null; echo done",
        write=scope("**"),
    )
    assert done.output == "done\n"
    assert done.exit_code == 0
    assert await asyncio.to_thread(_ended, reader)


async def test_nobody_outside_is_slowed_down_or_limited(probe: SandboxProbe) -> None:
    victim = await asyncio.create_subprocess_exec("sleep", "60")
    _has_begun(victim.pid, "sleep")
    before = _standing(victim.pid)
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
        assert _standing(victim.pid) == before
        if not probe.full:  # In a process namespace these numbers may mean oneself.
            assert "escaped" not in done.output
    finally:
        victim.kill()
        await victim.wait()


def _has_begun(pid: int, name: str) -> None:
    """A program has its name a moment after its parent has gone on; Python 3.13 is that fast."""
    while Path(f"/proc/{pid}/comm").read_text() != f"{name}\n":
        time.sleep(0.001)


def _standing(pid: int) -> tuple[object, ...]:
    return (
        os.sched_getscheduler(pid),
        os.sched_getaffinity(pid),
        os.getpriority(os.PRIO_PROCESS, pid),
        Path(f"/proc/{pid}/limits").read_text(),
        Path(f"/proc/{pid}/oom_score_adj").read_text(),
        Path(f"/proc/{pid}/comm").read_text(),
    )


async def test_memory_that_others_share_is_out_of_reach(probe: SandboxProbe) -> None:
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


async def test_nobody_becomes_more_than_they_are(probe: SandboxProbe) -> None:
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


async def test_no_terminal_and_no_input_of_ours_is_there(probe: SandboxProbe) -> None:
    done = await probe.run("cat; (echo x >/dev/tty) 2>&1 | grep -c . ; tty; echo x >&0; echo end")
    assert "not a tty" in done.output
    assert done.output.endswith("end\n")


async def test_the_command_line_tells_nothing(probe: SandboxProbe) -> None:
    """Everybody on a machine can read everybody's, with the environment if it were there."""
    done = await probe.run("cat /proc/1/cmdline /proc/$PPID/cmdline | tr '\\0' ' '")
    assert "C.UTF-8" not in done.output


async def test_the_parent_s_memory_is_not_read(probe: SandboxProbe) -> None:
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


async def test_no_descriptor_of_ours_is_inherited(probe: SandboxProbe) -> None:
    read_fd, write_fd = os.pipe()
    try:
        os.set_inheritable(write_fd, True)
        (probe.root / "open").mkdir()
        done = await probe.run("ls -l /proc/self/fd", write=OPEN)
    finally:
        os.close(read_fd)
        os.close(write_fd)
    found = dict(line.split()[-3::2] for line in done.output.splitlines() if "->" in line)
    # Input and output, and the folder that `ls` reads.
    assert sorted(found) == ["0", "1", "2", "3"]
    assert found["0"] == "/dev/null"
    assert found["1"].startswith("pipe:")
    assert found["2"] == found["1"]
    assert found["3"].startswith("/proc/")


async def test_after_a_time_limit_nothing_lives_on(
    probe: SandboxProbe, alive: tuple[str, int]
) -> None:
    name, reader = alive
    daemon = (
        "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(100)"
    )
    done = await probe.run(
        f"exec 3>{name}; python3 -c '{daemon}'; setsid sleep 100 & nohup sleep 100 & sleep 100",
        write=scope("**"),
        timeout_s=3,
    )
    assert done.timed_out
    assert await asyncio.to_thread(_ended, reader)


async def test_what_a_command_leaves_behind_ends_with_it(
    probe: SandboxProbe, alive: tuple[str, int]
) -> None:
    name, reader = alive
    done = await probe.run(
        f"exec 3>{name}; setsid sleep 100 >/dev/null 2>&1 & echo done", write=scope("**")
    )
    assert done.output == "done\n"
    assert await asyncio.to_thread(_ended, reader)


def _ended(reader: int) -> bool:
    """Waits for the end of a pipe, and answers whether it came in a second."""
    os.set_blocking(reader, True)
    ready, _, _ = select.select([reader], [], [], 1.0)
    return bool(ready) and os.read(reader, 1) == b""


async def test_everything_dies_with_us(
    probe: SandboxProbe, alive: tuple[str, int], tmp_path: Path
) -> None:
    name, reader = alive
    kind = type(probe.sandbox)
    program = f"""
import asyncio
from retinue.domain.reach import Reach
from retinue.domain.scope import ANYWHERE
from {kind.__module__} import {kind.__name__}
from shutil import which
arguments = {{"bwrap": which("bwrap")}} if {kind.__name__!r} == "Bubblewrap" else {{}}
sandbox = {kind.__name__}({{"PATH": "/usr/bin:/bin", "HOME": "/"}}, **arguments)
reach = Reach(root={str(probe.root)!r}, write_scope=ANYWHERE)
command = "exec 3>{name}; setsid sleep 100 & echo x >started; sleep 100"
asyncio.run(sandbox.run(command, reach=reach, timeout_s=100, max_output_bytes=100))
"""
    (probe.root / "started").write_text("")
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    try:
        while (probe.root / "started").read_text() != "x\n":
            assert parent.returncode is None
            await asyncio.sleep(0.02)
    finally:
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
    assert await asyncio.to_thread(_ended, reader)


# The network


async def test_the_host_cannot_be_reached(probe: SandboxProbe, tmp_path: Path) -> None:
    abstract = f"\0retinue-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as hidden,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(str(probe.outside / "datagrams"))
        udp.bind(("127.0.0.1", 0))
        unix.bind(str(probe.outside / "socket"))
        unix.listen()
        hidden.bind(abstract)
        hidden.listen()
        udp.setblocking(False)
        done = await probe.python(
            f"""
import socket
def attempt(name, act):
    try:
        act()
        print("escaped", name)
    except OSError as error:
        print(name, "failed")
def tcp():
    socket.create_connection(("127.0.0.1", {tcp.getsockname()[1]}), 2)
def unix():
    socket.socket(socket.AF_UNIX).connect({str(probe.outside / "socket")!r})
def hidden():
    socket.socket(socket.AF_UNIX).connect({abstract!r})
def turned():
    end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]
    end.sendto(b"x", {str(probe.outside / "datagrams")!r})
def vsock():
    socket.socket(40, socket.SOCK_STREAM)
def packet():
    socket.socket(17, socket.SOCK_RAW)
for act in (tcp, unix, hidden, turned, vsock, packet):
    attempt(act.__name__, act)
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", {udp.getsockname()!r})
except OSError:
    pass
"""
        )
        assert "escaped" not in done.output
        assert done.output.count("failed") == 6
        with pytest.raises(BlockingIOError):
            udp.recv(10)
    (probe.outside / "socket").unlink()


async def test_a_test_server_works_on_a_loopback_of_its_own(probe: SandboxProbe) -> None:
    if not probe.full:
        pytest.skip("the reduced tier has no sockets without network, and says so")
    done = await probe.python(
        """
import http.server, threading, urllib.request
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").status)
server.shutdown()
"""
    )
    assert done.output.splitlines()[-1] == "200"


async def test_with_network_the_host_s_abstract_sockets_stay_closed(probe: SandboxProbe) -> None:
    abstract = f"\0retinue-all-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as hidden,
    ):
        hidden.bind(abstract)
        hidden.listen()
        done = await probe.python(
            f"""
import socket
socket.create_connection(("127.0.0.1", {tcp.getsockname()[1]}), 2)
print("connected")
socket.socket(socket.AF_UNIX).connect({abstract!r})
print("escaped")
""",
            network=Network.ALL,
        )
    assert "connected" in done.output
    assert "escaped" not in done.output


# The kernel


CALLS = {
    "io_uring": "libc.syscall(425, 4, ctypes.create_string_buffer(120))",
    "unshare": "libc.unshare(0x10000000)",
    "clone with a namespace": "libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "setns": "libc.setns(0, 0)",
    "mount": "libc.mount(b'x', b'/tmp', b'tmpfs', 0, 0)",
    "bpf": "libc.syscall(321, 0, 0, 0)",
    "keyctl": "libc.syscall(250, 0, -3, 0, 0, 0)",
    "open_by_handle_at": "libc.syscall(304, -100, 0, 0)",
    "perf_event_open": "libc.syscall(298, 0, 0, 0, 0, 0)",
    "userfaultfd": "libc.syscall(323, 0)",
    "clone3": "libc.syscall(435, bytes(88), 88)",
    "open_tree": "libc.syscall(428, -100, b'/', 1)",
    "move_mount": "libc.syscall(429, -100, b'/', -100, b'/tmp', 0)",
    "fsopen": "libc.syscall(430, b'tmpfs', 0)",
    "pidfd_getfd": "libc.syscall(438, 0, 0, 0)",
    "umount": "libc.umount2(b'/tmp', 2)",
    "pivot_root": "libc.syscall(155, b'.', b'.')",
    "sethostname": "libc.sethostname(b'x', 1)",
    "syslog": "libc.klogctl(3, ctypes.create_string_buffer(9), 9)",
    "settimeofday": "libc.syscall(164, bytes(16), 0)",
    "init_module": "libc.syscall(175, 0, 0, b'')",
    "reboot": "libc.reboot(0)",
    "process_vm_readv": "libc.syscall(310, os.getppid(), 0, 0, 0, 0, 0)",
    "TIOCSTI": "libc.ioctl(0, ctypes.c_ulong(0x5412), b'x')",
    "TIOCSTI in disguise": "libc.ioctl(0, ctypes.c_ulong(0x100005412), b'x')",
    "chroot": "libc.chroot(b'/tmp')",
}


async def test_a_system_call_that_opens_a_way_out_is_refused(probe: SandboxProbe) -> None:
    program = ["import ctypes, os", "libc = ctypes.CDLL(None, use_errno=True)"]
    for name, call in CALLS.items():
        program.append(f"print({name!r}, {call}, os.strerror(ctypes.get_errno()))")
    done = await probe.python("\n".join(program))
    # Of clone3, libc must think that it does not exist.
    why = {"clone3": "Function not implemented"}
    assert done.output.splitlines() == [
        f"{name} -1 {why.get(name, 'Operation not permitted')}" for name in CALLS
    ]


async def test_calls_of_another_machine_kill(probe: SandboxProbe) -> None:
    """x32 and the 32-bit calls have other numbers for the same things."""
    done = await probe.python(
        "import ctypes\nctypes.CDLL(None).syscall(0x40000000 | 39)\nprint('escaped')"
    )
    assert "escaped" not in done.output
    assert done.exit_code == 128 + signal.SIGSYS


async def test_nothing_of_the_kernel_s_can_be_written(probe: SandboxProbe) -> None:
    done = await probe.run(
        "find /proc /sys -xdev -type f -not -path '/proc/[0-9]*' -not -path /proc/self"
        " -not -path '/proc/thread-self*' 2>/dev/null"
        ' | while read -r name; do (: >>"$name") 2>/dev/null && echo "$name"; done'
    )
    assert done.output == ""


CHANGES = [
    "echo x >/proc/sys/kernel/core_pattern",
    "echo x >/proc/sys/vm/overcommit_memory",
    "echo h >/proc/sysrq-trigger",
    "echo 1 >/sys/kernel/uevent_helper",
    "cat /dev/mem",
    "cat /proc/kcore | head -c 10 | grep -q .",
    "mknod /tmp/disk b 254 0 && cat /tmp/disk",
    "mkdir -p /tmp/c && mount -t cgroup -o memory x /tmp/c",
    "echo /tmp/x >/sys/fs/cgroup/memory/release_agent",
    "mkdir /sys/fs/cgroup/pids/retinue-made",
    "unshare -Urm mount -t tmpfs x /mnt",
    "nsenter -t 1 -m ls /",
    "mount --make-rshared /",
    "mount -o remount,rw /usr",
    "touch /usr/made",
    "touch /etc/made",
    "insmod x.ko",
]


async def test_the_machine_is_not_changed(probe: SandboxProbe) -> None:
    script = tried([f"({command}) && echo escaped" for command in CHANGES])
    done = await probe.run(script)
    lines = done.output.splitlines()
    assert "escaped" not in lines
    assert f"tried {len(CHANGES)}" in lines


# Using things up


async def test_output_without_end_is_cut(probe: SandboxProbe) -> None:
    done = await probe.run("yes | head -c 50000000", max_output_bytes=1000)
    assert len(done.output) < 1200
    assert done.truncated_bytes > 49_000_000


async def test_a_fork_bomb_stays_in_its_place(probe: SandboxProbe) -> None:
    by_cgroup = "processes" in cgroups(ProcessLimits()).limited
    if os.geteuid() == 0 and not by_cgroup:
        pytest.skip("root's processes are limited by a control group, and there is none")
    done = await limited(probe, ProcessLimits(processes=100)).python(
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


async def test_a_file_that_grows_without_end_is_stopped(probe: SandboxProbe) -> None:
    done = await limited(probe, ProcessLimits(file_bytes=MIB)).run(
        'head -c 9000000 /dev/zero >"$TMPDIR/big"; stat -c %s "$TMPDIR/big"'
    )
    assert int(done.output.split()[-1]) == MIB


async def test_a_place_of_its_own_is_not_large(probe: SandboxProbe) -> None:
    if not probe.full:
        pytest.skip("the reduced tier limits each file alone, and says so")
    done = await limited(probe, ProcessLimits(tmp_bytes=MIB)).run(
        "for n in /tmp/1 /tmp/2 /dev/shm/1 /dev/shm/2; do head -c 900000 /dev/zero >$n; done;"
        " du -skx /tmp /dev/shm"
    )
    sizes = [int(line.split()[0]) for line in done.output.splitlines() if line[0].isdigit()]
    assert max(sizes) <= 1024


@pytest.mark.parametrize("memory", ["bytearray(size)", "mmap.mmap(-1, size)"])
async def test_memory_has_an_end(probe: SandboxProbe, memory: str) -> None:
    try:
        done = await limited(probe, ProcessLimits(memory_bytes=64 * MIB)).python(
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
        return  # The kernel took the sandbox along.
    assert "escaped" not in done.output


def limited(probe: SandboxProbe, limits: ProcessLimits) -> SandboxProbe:
    """The same, with other limits."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    sandbox: Sandbox
    if probe.full:
        sandbox = Bubblewrap(environment, bwrap=shutil.which("bwrap") or "", limits=limits)
    else:
        sandbox = Landlock(environment, limits=limits)
    return msgspec.structs.replace(probe, sandbox=sandbox)


# Things in the way


async def test_links_and_devices_in_the_scope_open_nothing(probe: SandboxProbe) -> None:
    (probe.root / "open").symlink_to(probe.outside)
    (probe.root / "src" / "out").symlink_to(probe.outside)
    await probe.run(
        "echo x >open/made; echo x >src/out/made; echo x >src/out/writable",
        write=scope("open/**", "src/out/**"),
    )
    assert untouched(probe)


# What gets through


async def test_what_gets_through_is_what_doctor_says(probe: SandboxProbe) -> None:
    """In the full tier nothing of it does."""
    proofs = {
        "arguments": f"tr '\\0' ' ' </proc/{os.getpid()}/cmdline | grep -q .",
        "rights": f"chmod 0640 {probe.outside}/writable",
        "existence": f"stat {probe.outside}/secret",
        "space": "for n in 1 2 3; do head -c 900000 /dev/zero >$TMPDIR/$n || exit; done",
    }
    assert proofs.keys() == REDUCED_TIER_LEAKS.keys()
    script = "\n".join(f"({proof}) && echo leaked {name}" for name, proof in proofs.items())
    done = await limited(probe, ProcessLimits(tmp_bytes=MIB)).run(script)
    leaked = {line.split()[1] for line in done.output.splitlines() if line.startswith("leaked ")}
    assert leaked == (set() if probe.full else REDUCED_TIER_LEAKS.keys())
