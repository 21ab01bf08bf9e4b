"""Commands cannot read secrets or the user's own folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retinue.domain.scope import scope
from tests.sandbox.probe import SandboxProbe, try_all

OPEN = scope("open/**")


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
    script = try_all(READS, out=probe.outside, pid=os.getpid())
    done = await probe.run(script, write=OPEN, max_output_bytes=1_000_000)
    assert "a secret" not in done.output
    assert "root:" not in done.output
    assert f"tried {len(READS)}" in done.output


async def test_home_is_not_the_users(probe: SandboxProbe) -> None:
    done = await probe.run("cd && pwd && ls -A")
    assert os.environ["HOME"] not in done.output.split()
    assert done.output.count("\n") == 1


async def test_user_agents_and_runtime_folders_are_not_visible(
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
