"""Runs one of our functions in a process of its own, with limits on time and memory.

For work on hostile or very large input: a document, a web page, the code of a project. Such work
holds the interpreter lock, can take all memory, and cannot be stopped in a thread. The process is
killed when its time is over, and when the caller is cancelled.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from subprocess import DEVNULL

import msgspec

from retinue.processes.child import LINGER_S, OutputPipe, ProcessSpec, child_process

# A second of CPU time after SIGXCPU the kernel kills the process.
_PROGRAM = """
import importlib, json, resource, sys
path, module, name, memory, seconds = json.loads(sys.argv[1])
for limit, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds)):
    try:
        resource.setrlimit(limit, (most, most + 1))
    except (ValueError, OSError):
        pass
sys.path[:] = path
getattr(importlib.import_module(module), name)()
"""
MODULE_PROGRAM = """
import importlib, json, sys
path, module, argument = json.loads(sys.argv[1])
sys.path[:] = path
importlib.import_module(module).main(argument)
"""
"""For `python_command`: calls `main` of a module. Arguments: `sys.path`, module, argument."""
_TIME_SIGNALS = (-signal.SIGXCPU, -signal.SIGKILL)


class FunctionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the process. `wall_s` also ends a process that only waits."""

    cpu_s: int
    wall_s: float
    memory_bytes: int = 1 << 30
    output_bytes: int = 16 << 20


class FunctionOutput(msgspec.Struct, frozen=True):
    """The function's output. It is `complete` unless the process failed or was killed."""

    data: bytes
    complete: bool
    timed_out: bool


def python_command(program: str, arguments: object) -> list[str]:
    """Starts Python with `program`, which gets `arguments` as JSON and sets its own `sys.path`.

    Without `site`: in an environment with an editable install, a `.pth` file names a folder of the
    project, and Python would import a `sitecustomize` that an agent has written there.
    """
    return [sys.executable, "-I", "-S", "-c", program, msgspec.json.encode(arguments).decode()]


async def run_function(
    module: str, name: str, data: bytes, limits: FunctionLimits
) -> FunctionOutput:
    """Call a function that reads `data` from standard input and writes to standard output.

    Raises OSError if the process cannot be started.
    """
    arguments = (sys.path, module, name, limits.memory_bytes, limits.cpu_s)
    output = bytearray()
    written = 0

    def feed(part: bytes) -> None:
        nonlocal written
        written += len(part)
        output.extend(part[: limits.output_bytes - len(output)])

    timed_out = False
    # A file instead of a pipe: nobody has to feed a process that may never read.
    with tempfile.TemporaryFile() as given, OutputPipe(feed) as pipe:
        given.write(data)
        given.seek(0)
        spec = ProcessSpec(
            argv=python_command(_PROGRAM, arguments),
            environment={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1"},
            directory="/",
            stdin=given.fileno(),
        )
        async with child_process(spec, stdout=pipe.write_fd, stderr=DEVNULL) as child:
            pipe.close_write_end()
            try:
                async with asyncio.timeout(limits.wall_s):
                    await child.wait()
            except TimeoutError:
                timed_out = True
        await pipe.drained(LINGER_S)
    return FunctionOutput(
        bytes(output),
        complete=child.exit_code == 0 and written == len(output),
        timed_out=timed_out or child.exit_code in _TIME_SIGNALS,
    )
