"""Finding all processes that a guard has to kill. `test_child.py` starts whole guards."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.processes.guard import descendants

EXIT_OF_A_THREAD = {"x86_64": 60, "aarch64": 93}
ENDS_ITS_FIRST_THREAD = """
import ctypes, subprocess, sys, threading

child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True)
print(child.pid, flush=True)
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).syscall({number}, 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_children_of_a_process_whose_first_thread_has_ended() -> None:
    """While many threads of a killed process end, it looks so too."""
    number = EXIT_OF_A_THREAD.get(platform.machine())
    if number is None:
        pytest.skip("the number of the system call is not known here")
    program = [sys.executable, "-c", ENDS_ITS_FIRST_THREAD.format(number=number)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        child = int(process.stdout.readline())
        stat = Path(f"/proc/{process.pid}/stat")
        while stat.read_bytes().rpartition(b")")[2].split()[0] != b"Z":
            os.sched_yield()
        found = descendants(os.getpid())
        process.stdin.close()
    assert child in found
    assert process.pid not in found
