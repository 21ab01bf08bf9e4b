"""What a contract forbids is impossible: attacks as a child's command, on every sandbox."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.domain.grant import Network
from retinue.domain.scope import ANYWHERE, scope

from sandbox_cell import Cell

OPEN = scope("open/**")


def untouched(cell: Cell) -> bool:
    return (
        (cell.outside / "writable").read_text() == "as it was\n"
        and sorted(os.listdir(cell.outside)) == ["secret", "writable"]
        and (cell.root / "src" / "a.py").read_text() == "as it was\n"
    )


# Writing


@pytest.mark.parametrize(
    "command",
    [
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
        "python3 -c \"import os; os.rename('open', '{out}/open')\"",
        "python3 -c \"import os; os.link('{out}/writable', 'open/l'); open('open/l','w')\"",
        "echo x >src/a.py",
        "sed -i s/was/is/ src/a.py",
    ],
)
async def test_nothing_is_written_outside_of_the_scope(cell: Cell, command: str) -> None:
    (cell.root / "open").mkdir()
    await cell.run(command.format(out=cell.outside), write=OPEN)
    assert untouched(cell)


async def test_the_scope_is_writable(cell: Cell) -> None:
    (cell.root / "open").mkdir()
    done = await cell.run("mkdir -p open/deep && echo x >open/deep/made", write=OPEN)
    assert done.exit_code == 0
    assert (cell.root / "open/deep/made").read_text() == "x\n"


async def test_a_reviewer_writes_nowhere_but_to_a_place_of_its_own(cell: Cell) -> None:
    done = await cell.run(
        'echo x >made; echo x >src/a.py; echo x >"$TMPDIR/ok" && cat "$TMPDIR/ok"'
    )
    assert done.output.endswith("x\n")
    assert untouched(cell)
    assert not (cell.root / "made").exists()


async def test_a_tester_writes_only_under_the_test_folders(cell: Cell) -> None:
    tests = scope("**/tests/**", "**/test_*")
    await cell.run(
        "echo x >tests/new; echo x >src/test_a.py; echo x >src/a.py; echo x >src/new", write=tests
    )
    assert (cell.root / "tests/new").read_text() == "x\n"
    assert (cell.root / "src/test_a.py").read_text() == "x\n"
    assert untouched(cell)
    assert not (cell.root / "src/new").exists()


@pytest.mark.parametrize(
    "command",
    ["echo x >.git/hooks/pre-commit", "mv .git .git2", "rm -rf .git", "chmod 777 .git/hooks"],
)
async def test_git_is_out_of_reach_wherever_else_may_be_written(cell: Cell, command: str) -> None:
    before = os.stat(cell.root / ".git/hooks").st_mode
    await cell.run(command, write=ANYWHERE)
    assert os.listdir(cell.root / ".git/hooks") == []
    if cell.sandbox.tier == "full":  # The reduced tier says that rights can be changed.
        assert os.stat(cell.root / ".git/hooks").st_mode == before


async def test_our_own_records_are_out_of_reach(cell: Cell) -> None:
    state = cell.root / ".retinue"
    state.mkdir()
    (state / "retinue.db").write_text("the journal")
    done = await cell.run(
        "cat .retinue/retinue.db; echo x >.retinue/retinue.db; rm -rf .retinue", write=ANYWHERE
    )
    assert (state / "retinue.db").read_text() == "the journal"
    if cell.sandbox.tier == "full":
        assert "the journal" not in done.output


# Reading


@pytest.mark.parametrize(
    "command",
    [
        "cat {out}/secret",
        "cat src/../../outside/secret",
        "cat /proc/self/root{out}/secret",
        "ln -s {out}/secret open/link && cat open/link",
        "cat /proc/{pid}/root{out}/secret",
        "cat /proc/{pid}/environ",
        "cat /proc/{pid}/fd/* </dev/null",
        "cat /etc/shadow /etc/sudoers",
        "cat ~root/.ssh/* ~root/.netrc ~root/.bash_history",
        "env",
    ],
)
async def test_no_secret_is_read(cell: Cell, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (cell.root / "open").mkdir()
    monkeypatch.setenv("SECRET_KEY", "a secret")
    done = await cell.run(command.format(out=cell.outside, pid=os.getpid()), write=OPEN)
    assert "a secret" not in done.output
    assert "root:" not in done.output


async def test_the_home_is_not_the_user_s(cell: Cell) -> None:
    done = await cell.run("cd && pwd && ls -A")
    assert os.environ["HOME"] not in done.output.split()
    assert done.output.count("\n") == 1


# Other processes


async def test_nobody_outside_is_signalled(cell: Cell) -> None:
    with subprocess.Popen(["sleep", "60"]) as victim:
        await cell.run(f"kill -9 {victim.pid}; kill -9 {os.getpid()}; kill -9 -1")
        assert victim.poll() is None
        victim.kill()


async def test_the_parent_s_memory_is_not_read(cell: Cell) -> None:
    done = await cell.python(
        f"""
import ctypes
print(open("/proc/{os.getpid()}/mem", "rb").fileno())
print("escaped")
"""
    )
    assert "escaped" not in done.output
    done = await cell.python(
        f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.ptrace(16, {os.getpid()}, 0, 0), libc.ptrace(0, 0, 0, 0))
"""
    )
    assert done.output == "-1 -1\n"


async def test_no_descriptor_of_ours_is_inherited(cell: Cell) -> None:
    read_fd, write_fd = os.pipe()
    try:
        os.set_inheritable(write_fd, True)
        done = await cell.run("ls -l /proc/self/fd")
    finally:
        os.close(read_fd)
        os.close(write_fd)
    kinds = [line.rpartition("-> ")[2] for line in done.output.splitlines() if "->" in line]
    assert len([kind for kind in kinds if kind.startswith("pipe:")]) == 2  # stdout and stderr
    assert not [kind for kind in kinds if "socket" in kind or "memfd" in kind]


async def test_after_a_time_limit_nothing_lives_on(cell: Cell, alive: tuple[str, int]) -> None:
    name, reader = alive
    (cell.root / "open").mkdir()
    daemon = (
        "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(100)"
    )
    done = await cell.run(
        f"exec 3>{name}; python3 -c '{daemon}'; setsid sleep 100 & nohup sleep 100 & sleep 100",
        write=scope("**"),
        timeout_s=3,
    )
    assert done.timed_out
    assert await asyncio.to_thread(_ended, reader)


async def test_what_a_command_leaves_behind_ends_with_it(
    cell: Cell, alive: tuple[str, int]
) -> None:
    name, reader = alive
    done = await cell.run(
        f"exec 3>{name}; setsid sleep 100 >/dev/null 2>&1 & echo done", write=scope("**")
    )
    assert done.output == "done\n"
    assert await asyncio.to_thread(_ended, reader)


def _ended(reader: int) -> bool:
    """Waits for the end of a pipe, and answers whether it came in a second."""
    os.set_blocking(reader, True)
    ready, _, _ = select.select([reader], [], [], 1.0)
    return bool(ready) and os.read(reader, 1) == b""


async def test_everything_dies_with_us(cell: Cell, alive: tuple[str, int], tmp_path: Path) -> None:
    name, reader = alive
    program = f"""
import asyncio
from retinue.domain.reach import Reach
from retinue.domain.scope import ANYWHERE
from {type(cell.sandbox).__module__} import {type(cell.sandbox).__name__}
from shutil import which
arguments = {{"bwrap": which("bwrap")}} if {type(cell.sandbox).__name__!r} == "Bubblewrap" else {{}}
sandbox = {type(cell.sandbox).__name__}({{"PATH": "/usr/bin:/bin", "HOME": "/"}}, **arguments)
reach = Reach(root={str(cell.root)!r}, write_scope=(("{name}", "started"),))
command = "exec 3>{name}; setsid sleep 100 & echo x >started; sleep 100"
asyncio.run(sandbox.run(command, reach=reach, timeout_s=100, max_output_bytes=100))
"""
    (cell.root / "started").write_text("")
    parent = subprocess.Popen([sys.executable, "-c", program])
    try:
        while (cell.root / "started").read_text() != "x\n":
            assert parent.poll() is None
            await asyncio.sleep(0.02)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert await asyncio.to_thread(_ended, reader)


# The network


async def test_the_host_cannot_be_reached(cell: Cell, tmp_path: Path) -> None:
    abstract = f"\0retinue-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as hidden,
    ):
        udp.bind(("127.0.0.1", 0))
        unix.bind(str(cell.outside / "socket"))
        unix.listen()
        hidden.bind(abstract)
        hidden.listen()
        udp.setblocking(False)
        done = await cell.python(
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
    socket.socket(socket.AF_UNIX).connect({str(cell.outside / "socket")!r})
def hidden():
    socket.socket(socket.AF_UNIX).connect({abstract!r})
def vsock():
    socket.socket(40, socket.SOCK_STREAM)
def packet():
    socket.socket(17, socket.SOCK_RAW)
for act in (tcp, unix, hidden, vsock, packet):
    attempt(act.__name__, act)
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", {udp.getsockname()!r})
except OSError:
    pass
"""
        )
        assert "escaped" not in done.output
        assert done.output.count("failed") == 5
        with pytest.raises(BlockingIOError):
            udp.recv(10)
    (cell.outside / "socket").unlink()


async def test_a_test_server_works_on_a_loopback_of_its_own(cell: Cell) -> None:
    if cell.sandbox.tier != "full":
        pytest.skip("the reduced tier has no sockets without network, and says so")
    done = await cell.python(
        """
import http.server, threading, urllib.request
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").status)
server.shutdown()
"""
    )
    assert done.output.splitlines()[-1] == "200"


async def test_with_network_the_host_s_abstract_sockets_stay_closed(cell: Cell) -> None:
    abstract = f"\0retinue-all-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as hidden,
    ):
        hidden.bind(abstract)
        hidden.listen()
        done = await cell.python(
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


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("io_uring", "print(libc.syscall(425, 4, ctypes.create_string_buffer(120)))"),
        ("unshare", "print(libc.unshare(0x10000000))"),
        ("clone with a namespace", "print(libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0))"),
        ("setns", "print(libc.setns(0, 0))"),
        ("mount", "print(libc.mount(b'x', b'/tmp', b'tmpfs', 0, 0))"),
        ("bpf", "print(libc.syscall(321, 0, 0, 0))"),
        ("keyctl", "print(libc.syscall(250, 0, -3, 0, 0, 0))"),
        ("open_by_handle_at", "print(libc.syscall(304, -100, 0, 0))"),
        ("perf_event_open", "print(libc.syscall(298, 0, 0, 0, 0, 0))"),
        ("userfaultfd", "print(libc.syscall(323, 0))"),
        ("process_vm_readv", f"print(libc.syscall(310, {os.getpid()}, 0, 0, 0, 0, 0))"),
        ("TIOCSTI", "print(libc.ioctl(0, ctypes.c_ulong(0x5412), b'x'))"),
        ("TIOCSTI in disguise", "print(libc.ioctl(0, ctypes.c_ulong(0x100005412), b'x'))"),
        ("chroot", "print(libc.chroot(b'/tmp'))"),
    ],
)
async def test_a_system_call_that_opens_a_way_out_is_refused(
    cell: Cell, name: str, code: str
) -> None:
    done = await cell.python(
        f"import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n{code}\n"
        "print(os.strerror(ctypes.get_errno()))"
    )
    assert done.output == "-1\nOperation not permitted\n", name


@pytest.mark.parametrize(
    "command",
    [
        "echo x >/proc/sys/kernel/core_pattern",
        "echo x >/proc/sys/vm/overcommit_memory",
        "echo h >/proc/sysrq-trigger",
        "echo 1 >/sys/kernel/uevent_helper",
        "cat /dev/mem",
        "cat /proc/kcore | head -c 10 | grep -q . && echo escaped >&2",
        "mknod /tmp/disk b 254 0 && cat /tmp/disk",
    ],
)
async def test_the_machine_is_not_changed(cell: Cell, command: str) -> None:
    done = await cell.run(f"({command}) && echo escaped")
    assert "escaped" not in done.output


# Using things up


async def test_output_without_end_is_cut(cell: Cell) -> None:
    done = await cell.run("yes | head -c 50000000", max_output_bytes=1000)
    assert len(done.output) < 1200
    assert done.truncated_bytes > 49_000_000


async def test_a_fork_bomb_stays_in_its_place(cell: Cell) -> None:
    if os.geteuid() == 0 and cell.sandbox.tier != "full":
        pytest.skip("root's processes are counted by a control group, in the full tier only")
    done = await cell.python(
        """
import os, time
made = 0
try:
    for _ in range(5000):
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        made += 1
except OSError as error:
    print("stopped")
print(made)
""",
        timeout_s=60,
    )
    assert done.output.startswith("stopped\n")
    assert int(done.output.split()[1]) < 1100


async def test_a_file_that_grows_without_end_is_stopped(cell: Cell) -> None:
    done = await cell.run(
        'head -c 3000000000 /dev/zero >"$TMPDIR/big"; ls -l "$TMPDIR/big" | cut -d" " -f5'
    )
    assert int(done.output.split()[-1]) <= 2**31


async def test_memory_has_an_end(cell: Cell) -> None:
    done = await cell.python("x = bytearray(100 * 2**30)\nprint('escaped')")
    assert "escaped" not in done.output


# Things in the way


async def test_links_and_devices_in_the_scope_open_nothing(cell: Cell) -> None:
    (cell.root / "open").symlink_to(cell.outside)
    (cell.root / "src" / "out").symlink_to(cell.outside)
    await cell.run(
        "echo x >open/made; echo x >src/out/made; echo x >src/out/writable",
        write=scope("open/**", "src/out/**"),
    )
    assert untouched(cell)
