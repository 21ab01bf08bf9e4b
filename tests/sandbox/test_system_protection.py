"""Commands cannot change the machine or the kernel."""

from __future__ import annotations

from tests.sandbox.probe import SandboxProbe, try_all


async def test_kernel_files_cannot_be_written(probe: SandboxProbe) -> None:
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


async def test_machine_settings_cannot_be_changed(probe: SandboxProbe) -> None:
    script = try_all([f"({command}) && echo escaped" for command in CHANGES])
    done = await probe.run(script)
    lines = done.output.splitlines()
    assert "escaped" not in lines
    assert f"tried {len(CHANGES)}" in lines
