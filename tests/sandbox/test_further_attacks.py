"""More ways out, tried as a child's command on every sandbox: what lies in the workspace already,
what could be left behind in it, and calls that go around paths."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from retinue.domain.grant import Network
from retinue.domain.scope import ANYWHERE, scope
from retinue.errors import WorkspaceError
from tests.sandbox.probe import SandboxProbe

# Repositories inside of the workspace


def repository(probe: SandboxProbe, where: str) -> Path:
    """One with a hook folder, and with settings that a command would like to change."""
    made = probe.root / where / ".git"
    (made / "hooks").mkdir(parents=True)
    (made / "config").write_text("[core]\n")
    (probe.root / where / "code").write_text("as it was\n")
    return made


def intact(made: Path) -> bool:
    return (
        made.is_dir()
        and not made.is_symlink()
        and not made.parent.is_symlink()
        and os.listdir(made / "hooks") == []
        and (made / "config").read_text() == "[core]\n"
    )


PLANT = """
echo x >{git}/hooks/pre-commit
printf '[core]\\n fsmonitor = x\\n' >{git}/config
rm -rf {git} && mkdir -p {git}/hooks && echo x >{git}/hooks/pre-commit
mv {git} {git}2 && mkdir -p {git}/hooks && echo x >{git}/hooks/pre-commit
mv {top} {top}2 && mkdir -p {git}/hooks && echo x >{git}/hooks/pre-commit
ln -sfn /tmp {git}
mkdir -p evil/.git/hooks; echo x >evil/.git/hooks/pre-commit; mv -T evil {top}
python3 -c 'import os; os.rename("evil", "{top}")'
python3 -c 'import ctypes; ctypes.CDLL(None).renameat2(-100, b"evil", -100, b"{top}", 2)'
echo done
"""


@pytest.mark.parametrize(("where", "write"), [("lib", ("**",)), ("a/b/lib", ("a/**",))])
async def test_a_repository_inside_of_the_workspace_stays_as_it_is(
    probe: SandboxProbe, where: str, write: tuple[str, ...]
) -> None:
    made = repository(probe, where)
    groups = ANYWHERE if write == ("**",) else scope(*write)
    top = where.split("/", maxsplit=1)[0]
    done = await probe.run(
        PLANT.format(git=f"{where}/.git", top=top) + f"echo changed >{where}/code", write=groups
    )
    assert "done" in done.output.splitlines()
    assert intact(made)
    assert (made.parent / "code").read_text() == "changed\n"


async def test_a_repository_at_the_top_of_a_scope_stays_as_it_is(probe: SandboxProbe) -> None:
    made = repository(probe, "lib")
    await probe.run(PLANT.format(git="lib/.git", top="lib"), write=scope("lib/**"))
    assert intact(made)


async def test_the_pointer_of_a_submodule_stays_as_it_is(probe: SandboxProbe) -> None:
    (probe.root / "sub").mkdir()
    pointer = probe.root / "sub" / ".git"
    pointer.write_text("gitdir: ../.git/modules/sub\n")
    await probe.run(
        "echo 'gitdir: evil' >sub/.git; rm -f sub/.git; mkdir sub/.git; mv sub sub2;"
        " mkdir -p sub/.git",
        write=ANYWHERE,
    )
    assert pointer.read_text() == "gitdir: ../.git/modules/sub\n"


async def test_what_a_command_has_cloned_it_may_go_on_with(probe: SandboxProbe) -> None:
    (probe.root / "src" / "deps").mkdir()
    for command in ("git init -q src/deps/x", "git -C src/deps/x config core.bare false"):
        assert (await probe.run(command, write=scope("src/**"))).exit_code == 0


# Things that others have put into the workspace


async def test_a_socket_in_the_workspace_is_not_spoken_to(
    probe: SandboxProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(probe.root)
    with (
        socket.socket(socket.AF_UNIX) as stream,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        stream.bind("stream")  # The whole path may be too long for a socket.
        stream.listen()
        datagrams.bind("datagrams")
        datagrams.setblocking(False)
        done = await probe.python(
            """
import socket
def stream():
    socket.socket(socket.AF_UNIX).connect("stream")
def datagram():
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", "datagrams")
def turned():
    socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", "datagrams")
def passed():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    left.connect("stream")
for act in (stream, datagram, turned, passed):
    try:
        act()
        print("escaped", act.__name__)
    except OSError:
        print("failed")
""",
            write=ANYWHERE,
        )
        with pytest.raises(BlockingIOError):
            datagrams.recv(10)
    assert done.output == "failed\n" * 4


async def test_sockets_of_its_own_work_in_the_full_tier(probe: SandboxProbe) -> None:
    if not probe.full:
        pytest.skip("the reduced tier has no sockets, and says so")
    done = await probe.python(
        """
import os, socket
server = socket.socket(socket.AF_UNIX)
server.bind("/tmp/own")
server.listen()
socket.socket(socket.AF_UNIX).connect("/tmp/own")
print("connected")
"""
    )
    assert "connected" in done.output


async def test_a_pipe_that_somebody_reads_is_written_where_doctor_says_so(
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


async def test_devices_in_the_workspace_open_nothing(probe: SandboxProbe) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make one")
    os.mknod(probe.root / "src" / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    done = await probe.run(
        "head -c 4 src/zero | wc -c; mknod src/null c 1 3; echo $?", write=ANYWHERE
    )
    assert done.output.split()[-1] == "1"
    if probe.full:
        assert "Permission denied" in done.output


# What could be left behind


async def test_nothing_that_is_left_behind_makes_anybody_somebody_else(probe: SandboxProbe) -> None:
    (probe.root / "open").mkdir()
    done = await probe.python(
        """
import ctypes, os, shutil, struct
libc = ctypes.CDLL(None, use_errno=True)
shutil.copy("/bin/sh", "open/sh")
def attempt(name, act):
    try:
        act()
        print("made by", name)
    except OSError:
        pass
attempt("chmod", lambda: os.chmod("open/sh", 0o4755))
fd = os.open("open/sh", os.O_RDONLY)
attempt("fchmod", lambda: os.fchmod(fd, 0o4755))
attempt("open", lambda: os.open("open/a", os.O_CREAT | os.O_WRONLY, 0o4755))
attempt("mknod", lambda: os.mknod("open/b", 0o104755))
def tmpfile():
    fd = os.open("open", os.O_TMPFILE | os.O_WRONLY, 0o4755)
    os.link(f"/proc/self/fd/{fd}", "open/c")
attempt("tmpfile", tmpfile)
libc.syscall(452, -100, b"open/sh", 0o4755, 0)
libc.syscall(437, -100, b"open/d", struct.pack("=3Q", 0o101, 0o4755, 0), 24)
os.chmod("open/sh", 0o755)
open("open/plain", "w").close()
""",
        write=scope("open/**"),
    )
    assert "made by" not in done.output
    assert (probe.root / "open" / "plain").exists(), done.output
    for path in (probe.root / "open").iterdir():
        assert not path.stat().st_mode & stat.S_ISUID


async def test_a_core_is_dumped_nowhere(probe: SandboxProbe) -> None:
    (probe.root / "open").mkdir()
    done = await probe.run(
        "cd open; ulimit -c unlimited; sh -c 'kill -SEGV $$'; ls",
        write=scope("open/**"),
    )
    assert "core" not in done.output.split()
    assert os.listdir(probe.root / "open") == []


async def test_attributes_of_files_outside_stay(probe: SandboxProbe) -> None:
    done = await probe.python(
        f"""
import os
for path in ({str(probe.outside / "writable")!r}, "src/a.py"):
    for name in ("user.x", "security.capability", "system.posix_acl_access"):
        try:
            os.setxattr(path, name, b"x")
            print("escaped", path, name)
        except OSError:
            pass
"""
    )
    assert done.output == ""
    assert os.listxattr(probe.outside / "writable") == os.listxattr(probe.root / "src/a.py") == []


# Calls that go around paths


AROUND = r"""
import ctypes, errno, mmap, os, signal, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
out, pid = sys.argv[1], int(sys.argv[2])

def attempt(name, act):
    try:
        found = act()
    except (OSError, ValueError) as error:
        return
    if found is None or found is True or (isinstance(found, int) and found >= 0):
        print("escaped", name)

def call(number, *arguments):
    return libc.syscall(number, *arguments)

def o_path():
    fd = os.open(out, os.O_PATH)
    return os.open("writable", os.O_WRONLY, dir_fd=fd)
def o_path_again():
    fd = os.open(f"{out}/writable", os.O_PATH)
    return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
def o_path_linked():
    fd = os.open(f"{out}/writable", os.O_PATH)
    return libc.linkat(fd, b"", -100, b"open/linked", 0x1000)
def exchanged():
    return libc.renameat2(-100, b"open/mine", -100, f"{out}/writable".encode(), 2)
def truncated():
    return libc.truncate(f"{out}/writable".encode(), 0)
def mapped():
    with open("src/a.py", "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    memory[0] = 0
def reopened():
    fd = os.open("src/a.py", os.O_RDONLY)
    return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
def copied():
    theirs = os.open("src/a.py", os.O_RDONLY)
    return libc.copy_file_range(os.open("open/mine", os.O_RDONLY), None, theirs, None, 1, 0)
def chrooted():
    return libc.chroot(b"open")
def rooted():
    return os.open("/proc/self/root/../../../.." + out + "/writable", os.O_WRONLY)
def of_task():
    return os.open(f"/proc/{pid}/root{out}/secret", os.O_RDONLY)
def of_thread():
    return os.open(f"/proc/{pid}/task/{pid}/root{out}/secret", os.O_RDONLY)
def in_memory():
    fd = os.memfd_create("x")
    os.write(fd, open("/bin/sh", "rb").read())
    program = ["sh", "-c", f"(echo x >{out}/made) 2>/dev/null"]
    return -1 if os.spawnv(os.P_WAIT, f"/proc/self/fd/{fd}", program) else None
def signalled():
    fd = os.pidfd_open(pid)
    return signal.pidfd_send_signal(fd, signal.SIGCONT)
def stolen():
    return call(438, os.pidfd_open(pid), 0, 0)
def read_memory():
    return call(310, pid, 0, 0, 0, 0, 0)
def advised():
    return call(440, os.pidfd_open(pid), 0, 0, 20, 0)
def compared():
    return call(312, pid, os.getpid(), 0, 0, 0)
def traced():
    return libc.ptrace(0x4206, pid, 0, 0)
def keys():
    return max(call(248, b"user", b"retinue", b"x", 1, -5), call(249, b"user", b"x", 0, 0))
def urings():
    return max(call(425, 8, ctypes.create_string_buffer(120)), call(427, 0, 0, 0, 0))
def filters():
    return call(321, 5, ctypes.create_string_buffer(120), 120)
def limited():
    return call(298, ctypes.create_string_buffer(120), 0, -1, -1, 0)
def faulted():
    return call(323, 0x80001)
def namespaces():
    return max(libc.unshare(1 << bit) for bit in (7, 17, 25, 26, 27, 28, 29, 30))
def swapped():
    return max(libc.swapon(b"open/mine", 0), libc.swapoff(b"/swap"))
def accounted():
    return libc.acct(b"open/mine")
def rebooted():
    return call(169, 0xfee1dead, 672274793, 0x89abcdef, 0)
def told_time():
    return call(227, 0, struct.pack("qq", 0, 0))
def loaded():
    return call(313, os.open("src/a.py", os.O_RDONLY), b"", 0)
def handled():
    handle = ctypes.create_string_buffer(b"\x80" + bytes(200))
    return call(303, -100, out.encode(), handle, bytes(4), 0)
def privileged():
    return max(os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)) or 0, 0)
def nicer():
    return os.nice(-5)
def unlimited():
    import resource
    return resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
def families():
    made = []
    for family in (40, 17, 38, 31, 44, 29, 21, 5, 30, 45):
        try:
            socket.socket(family, socket.SOCK_RAW if family == 17 else socket.SOCK_DGRAM)
            made.append(family)
        except OSError:
            pass
    return 1 if made else -1
def raw():
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).fileno()
def terminal():
    fd = os.open("/dev/tty", os.O_RDWR)
    return libc.ioctl(fd, 0x5412, b"x")
def console():
    return os.open("/dev/console", os.O_RDWR)
def disk():
    return os.open("/dev/vda", os.O_RDONLY)
def kernel():
    return os.open("/proc/kcore", os.O_RDONLY)
def log():
    return max(os.open("/dev/kmsg", os.O_RDONLY), 0)
def groups():
    os.mkdir("/sys/fs/cgroup/pids/retinue-escaped")
def become():
    return max(libc.setuid(1), libc.setgroups(0, 0) if os.getuid() == 0 else -1)

open("open/mine", "w").write("mine")
for act in [value for name, value in list(globals().items())
            if callable(value) and getattr(value, "__module__", "") == "__main__"
            and name not in ("attempt", "call")]:
    attempt(act.__name__, act)
print("tried all")
"""


async def test_no_call_goes_around_a_path(probe: SandboxProbe) -> None:
    (probe.root / "open").mkdir()
    (probe.root / "around.py").write_text(AROUND)
    done = await probe.run(
        f"python3 around.py {probe.outside} {os.getpid()}", write=scope("open/**"), timeout_s=60
    )
    assert done.output.splitlines() == ["tried all"]
    assert sorted(os.listdir(probe.outside)) == ["secret", "writable"]
    assert (probe.outside / "writable").read_text() == "as it was\n"
    assert (probe.root / "src" / "a.py").read_text() == "as it was\n"


# What is the user's and not the command's


async def test_the_user_s_agents_and_folders_are_not_there(
    probe: SandboxProbe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    here = tmp_path / "in-the-host-s-tmp"
    here.write_text("a secret\n")
    done = await probe.run(
        f"env; cat {here} 2>/dev/null; ls -R /run /var/run /home /mnt /media /tmp 2>/dev/null"
    )
    assert "SSH_AUTH" not in done.output
    assert "DBUS" not in done.output
    assert "DOCKER" not in done.output
    assert "a secret" not in done.output
    assert here.name not in done.output


async def test_with_network_no_socket_of_the_machine_s_is_in_reach(probe: SandboxProbe) -> None:
    done = await probe.python(
        """
import socket
try:
    socket.socket(socket.AF_UNIX)
    print("escaped")
except OSError as error:
    print(error.strerror)
""",
        network=Network.ALL,
    )
    assert done.output == "Address family not supported by protocol\n"


# A program by another name


async def test_a_program_of_the_project_s_is_not_taken_for_ours(tmp_path: Path) -> None:
    """With a virtual environment active, its folder comes first on the PATH."""
    project = tmp_path / "project"
    folder = project / ".venv" / "bin"
    folder.mkdir(parents=True)
    (project / ".venv" / "pyvenv.cfg").write_text("")
    for name in ("git", "rg", "bwrap"):
        planted = folder / name
        planted.write_text(f'#!/bin/sh\ntouch {tmp_path}/escaped\nexec /usr/bin/{name} "$@"\n')
        planted.chmod(0o755)
    asked = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import asyncio, retinue\n"
        "from retinue import ScriptedModel\n"
        "from retinue.models.scripted.model import call, say\n"
        "async def main():\n"
        "    model = ScriptedModel([call('search', pattern='x'), call('run_command', command='ls'),"
        " say('ok')])\n"
        "    async with retinue.open('.', model=model, mode='auto') as rt:\n"
        "        print((await rt.run('Look.')).status)\n"
        "asyncio.run(main())\n",
        cwd=project,
        env={
            "PATH": f"{folder}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        stdout=subprocess.PIPE,
    )
    told, _ = await asked.communicate()
    assert told == b"completed\n"
    assert not (tmp_path / "escaped").exists()


# Using up memory, and the disk


async def test_there_is_no_place_without_a_limit(probe: SandboxProbe) -> None:
    """Files in memory count for nobody where no control group does."""
    done = await probe.run(
        "for place in / /dev"
        " /dev/pts /proc /etc /usr /run /var /opt /sys /root /home; do"
        ' (: >"$place/made") 2>/dev/null && echo "escaped $place"; done'
    )
    assert "escaped" not in done.output


async def test_a_terminal_of_its_own_can_be_made_in_the_full_tier(probe: SandboxProbe) -> None:
    if not probe.full:
        pytest.skip("the reduced tier shows no terminals")
    done = await probe.python(
        """
import os, pty
parent, child = pty.openpty()
os.write(child, b"hi")
print(os.read(parent, 10), open("/dev/null", "w").write("x"), os.path.exists("/dev/shm"))
"""
    )
    assert done.output == "b'hi' 1 True\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small disk cannot be made here")
    (path / "open").mkdir()
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


async def test_a_command_that_all_but_fills_the_disk_is_ended(
    probe: SandboxProbe, small_disk: Path
) -> None:
    with pytest.raises(WorkspaceError, match=r"ended: the disk that .* is on is almost full"):
        await msgspec.structs.replace(probe, root=small_disk).run(
            "for n in 1 2 3; do head -c 11000000 /dev/zero >open/$n; done; sleep 100",
            write=scope("open/**"),
        )
