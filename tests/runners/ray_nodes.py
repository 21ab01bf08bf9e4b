"""A Ray cluster on this machine: a head that takes no work, and nodes that can be lost."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

import msgspec
import pytest

RAY = [pytest.mark.services, pytest.mark.xdist_group("ray")]
HOST = b"retinue.host_program"
GUARD = b"guard.py"
# Ray may not be imported by the tests themselves: it starts threads, and handles signals.
_PROGRAM = """
import json, sys
from ray.cluster_utils import Cluster

small = {"object_store_memory": 80 << 20}
head = {"num_cpus": 0, "include_dashboard": False, **small}
cluster = Cluster(initialize_head=True, head_node_args=head)
nodes = []

def pid(node, kind):
    return node.all_processes[kind][0].process.pid

def answer(*values):
    print(json.dumps(values), flush=True)

for command, *arguments in map(json.loads, iter(sys.stdin.readline, "")):
    if command == "add":
        nodes.append(cluster.add_node(num_cpus=1, **small, **arguments[0]))
        answer(pid(nodes[-1], "raylet"), cluster.address, pid(cluster.head_node, "gcs_server"))
    elif command == "remove":
        (node,) = (one for one in nodes if pid(one, "raylet") == arguments[0])
        nodes.remove(node)
        cluster.remove_node(node, allow_graceful=arguments[1])
        answer(0, cluster.address, 0)
cluster.shutdown()
"""
is_installed = find_spec("ray") is not None


class Answer(NamedTuple):
    raylet: int
    address: str
    gcs: int


class RayNodes:
    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, home: Path, errors: Path
    ) -> None:
        self._process = process
        self.folder = folder
        """A folder that the nodes see."""
        self.home = home
        self._errors = errors
        self.address = ""
        self.gcs_pid = 0
        self.raylets: list[int] = []
        """The pid of the raylet of each node."""

    def add(self, **options: object) -> int:
        """Start a node; returns the pid of its raylet."""
        started = self._call("add", options)
        self.address, self.gcs_pid = started.address, started.gcs
        self.raylets.append(started.raylet)
        return started.raylet

    def remove(self, raylet: int, *, graceful: bool = False) -> None:
        """Kill the processes of a node; `graceful` lets it say goodbye to the head."""
        self.raylets.remove(raylet)
        self._call("remove", raylet, graceful)

    def _call(self, *command: object) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(command) + b"\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"the Ray cluster has ended: {self._errors.read_text()}")
        return msgspec.json.decode(line, type=Answer)

    def host_pids(self, below: int | None = None) -> list[int]:
        """The host processes, of all nodes or those of one raylet."""
        pids = descendants(below or self._process.pid)
        return [pid for pid in pids if HOST in (line := _command(pid)) and GUARD not in line]

    def victims(self) -> list[int]:
        """Processes that end a host if they are killed: it, its guard, and its Ray worker."""
        found = []
        for pid in self.host_pids():
            guard = parent(pid)
            found += [pid, guard, parent(guard)]
        return [pid for pid in found if pid > 1]


def parent(of: int) -> int:
    """The parent of a process; 0 if it has ended."""
    try:
        with open(f"/proc/{of}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def descendants(of: int) -> list[int]:
    """All processes below one, itself first."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                fields = stat.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] != b"Z":
            children.setdefault(int(fields[1]), []).append(int(name))
    found = [of]
    for pid in found:
        found += children.get(pid, ())
    return found


def _command(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _apart(hidden: Sequence[Path], folder: Path) -> list[str]:
    """A command that runs another one where empty folders hide others, if that is possible."""
    unshare = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid():
        unshare.insert(1, "--map-root-user")
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        return []
    mounts = ""
    for number, path in enumerate(hidden):
        empty = folder / f"empty-{number}"
        empty.mkdir()
        mounts += f"mount --bind {shlex.quote(str(empty))} {shlex.quote(str(path))} && "
    return [*unshare, "sh", "-c", f'{mounts} exec "$@"', "sh"]


@contextmanager
def ray_nodes(count: int, hidden: Path | None = None, **variables: str) -> Iterator[RayNodes]:
    """Start a cluster with so many nodes, and end it.

    The nodes do not see the folder `hidden`, and have another home at the path of `RayNodes.home`.
    """
    folder = Path(mkdtemp(prefix="ray-"))  # Paths of sockets are short.
    errors, home = folder / "errors", folder / "home"
    home.mkdir()
    environment = {
        **os.environ,
        "HOME": str(home),
        "RAY_TMPDIR": str(folder),  # Else it writes to /tmp/ray, which need not be there.
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "120",
        **variables,
    }
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [*(_apart([hidden, home], folder) if hidden else []), sys.executable, "-c", _PROGRAM],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    try:
        nodes = RayNodes(process, folder, home, errors)
        for _ in range(count):
            nodes.add()
        yield nodes
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
