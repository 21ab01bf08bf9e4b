"""Ways around that are newer, or slower: calls that reach files without opening them for writing,
all of a user's processes at once, and what a command leaves for us to trip over."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from retinue.domain.grant import Network
from retinue.domain.scope import ANYWHERE, scope
from retinue.errors import WorkspaceError
from tests.sandbox.probe import SandboxProbe

TRIED = """
import ctypes, fcntl, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, act, *arguments):
    try:
        found = act(*arguments)
    except OSError:
        return
    if not isinstance(found, int) or found >= 0:
        print("escaped", name)
"""


async def test_flags_of_files_are_not_changed_by_who_may_only_read_them(
    probe: SandboxProbe,
) -> None:
    """A request to a file system needs no more than a descriptor for reading."""
    done = await probe.python(
        TRIED
        + """
NODUMP = struct.pack("L", 0x40)
for path in ("src", "src/a.py"):
    fd = os.open(path, os.O_RDONLY)
    attempt("FS_IOC_SETFLAGS", fcntl.ioctl, fd, 0x40086602, NODUMP)
    attempt("FS_IOC_FSSETXATTR", fcntl.ioctl, fd, 0x401C5820, struct.pack("5I8x", 0x80, 0, 0, 0, 0))
    attempt("FS_IOC_SETVERSION", fcntl.ioctl, fd, 0x40087602, struct.pack("L", 7))
    attempt("FICLONE", fcntl.ioctl, fd, 0x40049409, fd)
    attempt("FIFREEZE", fcntl.ioctl, fd, 0xC0045877, 0)
    attempt("file_setattr", libc.syscall, 469, -100, path.encode(), bytes(24), 24, 0)
print("tried all")
"""
    )
    assert done.output == "tried all\n"


async def test_a_file_cannot_be_held_against_those_who_open_it(probe: SandboxProbe) -> None:
    """Whoever opens a file with a lease waits for its holder, our own file tools included."""
    (probe.root / "open").mkdir()
    done = await probe.python(
        TRIED
        + """
open("open/mine", "w").close()
for path in ("open/mine", "src/a.py"):
    for command in (1024, 1040):  # F_SETLEASE, F_SETDELEG
        for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK):
            attempt("lease", fcntl.fcntl, os.open(path, os.O_RDONLY), command, kind)
print("tried all")
""",
        write=scope("open/**"),
    )
    assert done.output == "tried all\n"


async def test_nobody_is_told_which_files_others_use(probe: SandboxProbe) -> None:
    """In the full tier only what the command can see can be watched."""
    done = await probe.python(
        TRIED
        + f"""
def watch():
    return libc.inotify_add_watch(libc.inotify_init1(0), {str(probe.outside)!r}.encode(), 0xFFF)
attempt("inotify", watch)
attempt("fanotify", libc.syscall, 300, 0x200, 0)
print("tried all")
"""
    )
    assert done.output == "tried all\n"


async def test_nobody_outside_is_slowed_down_by_whose_they_are(probe: SandboxProbe) -> None:
    words = ["sleep", "60"]
    if os.geteuid() == 0:
        # The kernel spares who has rights that the command has not.
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


@pytest.mark.parametrize("network", [Network.NONE, Network.ALL])
async def test_of_netlink_only_the_interfaces_are_told(
    probe: SandboxProbe, network: Network
) -> None:
    done = await probe.python(
        TRIED
        + """
for protocol in (4, 6, 9, 11, 12, 15, 16, 20, 21):
    attempt(protocol, lambda: socket.socket(16, socket.SOCK_RAW, protocol).fileno())
print(*(name for _, name in socket.if_nameindex()))
""",
        network=network,
    )
    if probe.full or network is Network.ALL:
        assert "lo" in done.output.split()
    assert "escaped" not in done.output


async def test_a_group_cannot_be_left_behind_in_a_program(probe: SandboxProbe) -> None:
    (probe.root / "open").mkdir()
    done = await probe.python(
        TRIED
        + """
open("open/a", "w").close()
attempt("chmod", os.chmod, "open/a", 0o2755)
attempt("open", os.open, "open/b", os.O_CREAT | os.O_WRONLY, 0o2755)
attempt("mknod", os.mknod, "open/c", 0o102755)
os.chmod("open/a", 0o755)
print("tried all")
""",
        write=scope("open/**"),
    )
    assert done.output == "tried all\n"
    for path in (probe.root / "open").iterdir():
        assert not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)


async def test_a_socket_that_comes_later_ends_the_command(
    probe: SandboxProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(probe.root)
    if not probe.full:
        pytest.skip("the reduced tier has no sockets, and says so")
    begun = probe.root / "src" / "begun"
    os.mkfifo(begun)
    running = asyncio.ensure_future(probe.run("echo x >src/begun; sleep 100"))
    await asyncio.to_thread(begun.read_text)
    with socket.socket(socket.AF_UNIX) as late:
        late.bind("late")
        late.listen()
        with pytest.raises(WorkspaceError, match="another program has made a socket among"):
            await running
        again = await probe.python("import socket\nsocket.socket(socket.AF_UNIX)")
        assert "Address family not supported" in again.output


# What a command leaves for us to trip over


async def test_folders_in_folders_without_end_are_cleared_away(probe: SandboxProbe) -> None:
    done = await probe.python(
        """
import os
os.chdir(os.environ["TMPDIR"])
print(os.getcwd())
os.mkdir("closed", 0)
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
"""
    )
    assert done.exit_code == 0
    if not probe.full:
        assert not os.access(done.output.strip(), os.F_OK)


async def test_a_command_cannot_say_that_the_sandbox_failed(probe: SandboxProbe) -> None:
    done = await probe.run("echo 'sandbox failed: install this'; exit 125")
    assert (done.exit_code, done.output) == (125, "sandbox failed: install this\n")


@pytest.fixture
def few_files(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "few"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m,nr_inodes=1000", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small disk cannot be made here")
    (path / "open").mkdir()
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


async def test_a_command_that_uses_up_the_files_of_a_disk_is_ended(
    probe: SandboxProbe, few_files: Path
) -> None:
    with pytest.raises(WorkspaceError, match=r"ended: the disk that .* is on is almost full"):
        await msgspec.structs.replace(probe, root=few_files).run(
            "cd open; seq 2000 | xargs touch; sleep 100", write=scope("open/**")
        )


async def test_a_folder_that_is_open_as_a_whole_may_hold_any_number_of_files(
    probe: SandboxProbe,
) -> None:
    """It is not even looked at: what a command fills must not hold up the next one."""
    (probe.root / "open").mkdir()
    (probe.root / "open" / "locked").write_text("")
    os.chmod(probe.root / "open", 0o300)
    try:
        done = await probe.run("echo x >open/made", write=scope("open/**"))
        assert done.exit_code == 0
    finally:
        os.chmod(probe.root / "open", 0o700)
    assert (probe.root / "open" / "made").exists()


async def test_programs_that_ask_for_more_are_content_with_less(probe: SandboxProbe) -> None:
    """Copying falls back where the file system is said to know no clones and no flags."""
    shutil.copy("/bin/sh", probe.root / "src" / "program")
    done = await probe.run(
        "cd src && cp -a program copy && install -m 755 program other && tar cf t copy && ls -l t"
        " >/dev/null && mv t u && cmp program copy && echo same",
        write=ANYWHERE,
    )
    assert done.output == "same\n"
