"""Commands write inside their write scope and nowhere else, on every sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat

import pytest

from retinue.domain.scope import ANYWHERE, scope
from retinue.errors import WorkspaceError
from tests.sandbox.probe import ATTEMPT, SandboxProbe, try_all

OPEN = scope("open/**")


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


async def test_nothing_outside_the_scope_is_written(probe: SandboxProbe) -> None:
    (probe.root / "open").mkdir()
    done = await probe.run(try_all(WRITES, out=probe.outside), write=OPEN, max_output_bytes=100_000)
    assert probe.unchanged, done.output
    assert f"tried {len(WRITES)}" in done.output


async def test_the_scope_is_writable(probe: SandboxProbe) -> None:
    (probe.root / "open").mkdir()
    done = await probe.run("mkdir -p open/deep && echo x >open/deep/made", write=OPEN)
    assert done.exit_code == 0
    assert (probe.root / "open/deep/made").read_text() == "x\n"


async def test_command_without_scope_writes_only_to_its_own_tmp(probe: SandboxProbe) -> None:
    done = await probe.run(
        'echo x >made; echo x >src/a.py; echo x >"$TMPDIR/ok" && cat "$TMPDIR/ok"'
    )
    assert done.output.endswith("x\n")
    assert probe.unchanged
    assert not (probe.root / "made").exists()


async def test_globs_by_name_open_existing_files_and_test_folders(probe: SandboxProbe) -> None:
    tests = scope("**/tests/**", "**/test_*")
    await probe.run(
        "echo x >tests/new; echo x >src/test_a.py; echo x >src/a.py; echo x >src/new", write=tests
    )
    assert (probe.root / "tests/new").read_text() == "x\n"
    assert (probe.root / "src/test_a.py").read_text() == "x\n"
    assert probe.unchanged
    assert not (probe.root / "src/new").exists()


async def test_folder_swapped_for_a_link_does_not_lead_outside(probe: SandboxProbe) -> None:
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
            # If a writable path has disappeared meanwhile, the command is not run.
            with contextlib.suppress(WorkspaceError):
                await probe.run("echo x >open/made; echo x >open/writable", write=OPEN)

    await asyncio.gather(swap(), attack())
    assert probe.unchanged


async def test_links_and_devices_in_the_scope_lead_nowhere(probe: SandboxProbe) -> None:
    (probe.root / "open").symlink_to(probe.outside)
    (probe.root / "src" / "out").symlink_to(probe.outside)
    await probe.run(
        "echo x >open/made; echo x >src/out/made; echo x >src/out/writable",
        write=scope("open/**", "src/out/**"),
    )
    assert probe.unchanged


async def test_devices_in_the_workspace_lead_nowhere(probe: SandboxProbe) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make one")
    os.mknod(probe.root / "src" / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    done = await probe.run(
        "head -c 4 src/zero | wc -c; mknod src/null c 1 3; echo $?", write=ANYWHERE
    )
    assert done.output.split()[-1] == "1"
    if probe.full:
        assert "Permission denied" in done.output


async def test_attributes_of_files_outside_the_scope_stay(probe: SandboxProbe) -> None:
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


async def test_flags_of_read_only_files_stay(
    probe: SandboxProbe,
) -> None:
    """Such ioctl requests need only a descriptor for reading."""
    done = await probe.python(
        ATTEMPT
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


async def test_wholly_writable_folder_is_not_listed(
    probe: SandboxProbe,
) -> None:
    """A command that fills a folder must not slow down the next one."""
    (probe.root / "open").mkdir()
    (probe.root / "open" / "locked").write_text("")
    os.chmod(probe.root / "open", 0o300)
    try:
        done = await probe.run("echo x >open/made", write=scope("open/**"))
        assert done.exit_code == 0
    finally:
        os.chmod(probe.root / "open", 0o700)
    assert (probe.root / "open" / "made").exists()
