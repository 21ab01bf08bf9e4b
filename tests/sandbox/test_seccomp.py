"""The seccomp filter denies system calls that would open a way out."""

from __future__ import annotations

import os
import signal
import stat

from retinue.domain.scope import scope
from tests.sandbox.probe import ATTEMPT, SandboxProbe

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


async def test_dangerous_system_calls_are_denied(probe: SandboxProbe) -> None:
    program = ["import ctypes, os", "libc = ctypes.CDLL(None, use_errno=True)"]
    for name, call in CALLS.items():
        program.append(f"print({name!r}, {call}, os.strerror(ctypes.get_errno()))")
    done = await probe.python("\n".join(program))
    # For clone3, libc must see ENOSYS, to fall back to clone.
    why = {"clone3": "Function not implemented"}
    assert done.output.splitlines() == [
        f"{name} -1 {why.get(name, 'Operation not permitted')}" for name in CALLS
    ]


async def test_calls_of_a_foreign_architecture_kill(probe: SandboxProbe) -> None:
    """x32 and 32-bit calls have other numbers for the same calls."""
    done = await probe.python(
        "import ctypes\nctypes.CDLL(None).syscall(0x40000000 | 39)\nprint('escaped')"
    )
    assert "escaped" not in done.output
    assert done.exit_code == 128 + signal.SIGSYS


async def test_set_uid_files_cannot_be_left_behind(probe: SandboxProbe) -> None:
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


BYPASSES = r"""
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


async def test_no_system_call_bypasses_path_rules(probe: SandboxProbe) -> None:
    (probe.root / "open").mkdir()
    (probe.root / "around.py").write_text(BYPASSES)
    done = await probe.run(
        f"python3 around.py {probe.outside} {os.getpid()}", write=scope("open/**"), timeout_s=60
    )
    assert done.output.splitlines() == ["tried all"]
    assert sorted(os.listdir(probe.outside)) == ["secret", "writable"]
    assert (probe.outside / "writable").read_text() == "as it was\n"
    assert (probe.root / "src" / "a.py").read_text() == "as it was\n"


async def test_file_leases_are_denied(probe: SandboxProbe) -> None:
    """A program that opens a leased file waits for the holder; our file tools would too."""
    (probe.root / "open").mkdir()
    done = await probe.python(
        ATTEMPT
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


async def test_files_outside_cannot_be_watched(probe: SandboxProbe) -> None:
    """In the full tier, a command can watch only files that it sees."""
    done = await probe.python(
        ATTEMPT
        + f"""
def watch():
    return libc.inotify_add_watch(libc.inotify_init1(0), {str(probe.outside)!r}.encode(), 0xFFF)
attempt("inotify", watch)
attempt("fanotify", libc.syscall, 300, 0x200, 0)
print("tried all")
"""
    )
    assert done.output == "tried all\n"


async def test_set_gid_files_cannot_be_left_behind(probe: SandboxProbe) -> None:
    (probe.root / "open").mkdir()
    done = await probe.python(
        ATTEMPT
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
