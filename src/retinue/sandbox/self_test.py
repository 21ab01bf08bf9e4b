"""The self-test of a sandbox: attacks that must fail, carried out in the real sandbox.

Available is not the same as enforcing: a kernel may be built without a mechanism, a container may
fake it, and we may have called it wrongly.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from retinue.domain.grant import Access
from retinue.domain.scope import scope
from retinue.errors import RetinueError
from retinue.ports.sandbox import Sandbox, ShellCommand

_TIMEOUT_S = 20.0
_SECRET = "this must not be read"


class SelfTestResult(msgspec.Struct, frozen=True):
    """`escaped` names the attacks that succeeded; `broken` says why a plain command failed."""

    escaped: tuple[str, ...] = ()
    broken: str = ""

    @property
    def passed(self) -> bool:
        return not self.escaped and not self.broken


async def run_self_test(sandbox: Sandbox) -> SelfTestResult:
    """Run the attacks, and one plain command that must work."""
    with (
        tempfile.TemporaryDirectory(prefix="retinue-trial-") as folder,
        _listener() as port,
        _process_outside(folder) as victim,
    ):
        root, outside = Path(folder, "workspace"), Path(folder, "outside")
        for place in (root / "open", outside):
            place.mkdir(parents=True)
        (outside / "secret").write_text(_SECRET)
        (root / "kept").write_text("as it was")
        access = Access(root=str(root), write_scope=scope("open/**"))
        try:
            script = _script(outside, port, victim.pid)
            done = await sandbox.run(ShellCommand(script, access, _TIMEOUT_S, 4096))
        except RetinueError as error:
            return SelfTestResult(broken=str(error))
        lines = done.output.split("\n")
        escaped = [line.removeprefix("escaped ") for line in lines if line.startswith("escaped ")]
        # Checked from the outside, whatever the command printed.
        if (outside / "made").exists() or (root / "kept").read_text() != "as it was":
            escaped.append("write outside")
        if _SECRET in done.output:
            escaped.append("read a secret")
        if victim.poll() is not None:
            escaped.append("kill a process outside")
        works = "works" in lines and (root / "open" / "made").exists()
        return SelfTestResult(
            tuple(dict.fromkeys(escaped)),
            "" if works else f"a plain command failed: {done.output.strip()[-300:]}",
        )


def _script(outside: Path, port: int, victim: int) -> str:
    out = shlex.quote(str(outside))
    connect = (
        "import socket,sys; s = socket.socket(); s.settimeout(2);"
        f" s.connect(('127.0.0.1', {port})); print('escaped connect to the host')"
    )
    return f"""
        PATH=$PATH:/usr/bin:/bin
        (echo x >{out}/made) 2>/dev/null && echo 'escaped write outside'
        (echo x >kept) 2>/dev/null && echo 'escaped write outside the scope'
        cat {out}/secret 2>/dev/null
        (echo x >/proc/{os.getpid()}/oom_score_adj) 2>/dev/null && echo 'escaped touch the parent'
        unshare -Ur true 2>/dev/null && echo 'escaped make a namespace'
        (python3 -c {shlex.quote(connect)}) 2>/dev/null
        bash -c '</dev/tcp/127.0.0.1/{port}' 2>/dev/null && echo 'escaped connect to the host'
        echo x >open/made && echo works
        kill -9 {victim} 2>/dev/null
    """


@contextmanager
def _process_outside(folder: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host that the sandbox must protect. It waits for input that never comes.

    Its input ends if this process is killed; then it removes `folder`.
    """
    command = ["/bin/sh", "-c", 'read x; rm -rf "$0"', folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _listener() -> Iterator[int]:
    """A port of the host that must not be reachable."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]
