"""Program that starts the server of the embedded model in the background.

`python -m retinue.embedded.llama_server FOLDER WEIGHTS [ADAPTER [IDLE_S]]` exits with 0 as soon as
a server answers. If there will be none, its output ends with a line that begins with `PROBLEM` and
says why.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from pathlib import Path

from retinue.embedded.serving import PROBLEM, RunningServer, serve

MODEL_ALIAS = "smollm2-135m-instruct"
CONTEXT_TOKENS = 8_192
# Reading prompts is most of the work, and two at once take as long as one after the other. With one
# slot, siblings reuse their common prefix.
SLOTS = 1
# Siblings take turns in the slot. This holds the prompts of three of them meanwhile, of about 900
# tokens each.
SIBLINGS_CACHE_MIB = 64
# Without penalties the model repeats one sentence. Penalties prevent tool calls, whose arguments
# repeat earlier text; but without its adapter the model calls no tools.
BASE_SAMPLING = {"repeat_penalty": 1.1, "dry_multiplier": 0.8, "dry_allowed_length": 4}
IDLE_S = 120.0
NICENESS = 10
MAX_THREADS = 4
# Weights, engine, context and work space, measured, without the cache that fills up later.
NEEDED_MB = 400
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MEMORY = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
# The prompt is made by `prompt.py`, and comes as the only message.
_PASS_THROUGH = "{{ messages[-1]['content'] }}"
_UPGRADE = "Install a newer one: pip install --upgrade xllamacpp."


class CannotServe(Exception):
    """The text says in one sentence why, and what to do."""


def spare_threads() -> int:
    """Number of threads that leave room for other work, above all for the runtime.

    Threads wait for each other after every layer, so a thread without a processor of its own delays
    all: on two busy processors, two threads made 2 tokens a second where one made 22.
    """
    cpus = float(os.cpu_count() or 1)
    if sys.platform == "linux":
        cpus = len(os.sched_getaffinity(0))
        try:
            quota, period = _CPU_QUOTA.read_text("utf-8").split()
            if quota != "max":
                cpus = min(cpus, int(quota) / int(period))
        except (OSError, ValueError):
            pass  # No control group, or version 1.
    idle = cpus - os.getloadavg()[0]
    return max(1, min(MAX_THREADS, int(idle) - 1))


def check_memory(meminfo: Path = _MEMORY, group: Path = _GROUP) -> None:
    """Raise CannotServe if less is free than the server needs."""
    free_mb = _free_memory_mb(meminfo, group)
    if free_mb is not None and free_mb < NEEDED_MB:
        raise CannotServe(
            f"The embedded model needs {NEEDED_MB} MB of memory, and {free_mb} MB are free. Close"
            " other programs, or use a model on another machine with -m."
        )


def _free_memory_mb(meminfo: Path, group: Path) -> int | None:
    """Memory that a new process may take; None if the system does not say."""
    free: list[int] = []
    try:
        fields = dict(line.split(":") for line in meminfo.read_text("utf-8").splitlines())
        free.append(int(fields["MemAvailable"].split()[0]) * 1024)
    except (OSError, ValueError, LookupError):
        pass
    try:
        used = int((group / "memory.current").read_text("utf-8"))
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        limit = int((group / "memory.max").read_text("utf-8"))
        # The kernel drops these pages when memory is short.
        free.append(limit - used + int(counts["inactive_file"]))
    except (OSError, ValueError, LookupError):
        pass  # No control group, or no limit.
    return min(free) // 1_000_000 if free else None


def start_server(
    weights: Path,
    *,
    threads: int,
    adapter: Path | None = None,
    slots: int = SLOTS,
    window: int = CONTEXT_TOKENS,
    template: str = "",
    key: str = "",
) -> str:
    """Serve `weights` from this process on a free local port. Return the address."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.port = str(weights), 0
    params.model_alias = {MODEL_ALIAS}
    params.n_parallel, params.n_ctx = slots, slots * window
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = threads
        cpu.poll = 0  # Sleep while idle instead of spinning.
    params.sampling.temp = 0.0  # Deterministic.
    params.use_jinja, params.warmup, params.verbosity = True, False, 0
    params.cache_ram_mib = 0  # The slot itself is the cache.
    params.endpoint_slots = params.ui = False
    if adapter is not None:
        load = getattr(xllamacpp, "CommonAdapterLoraInfo", None)
        if load is None or not hasattr(params, "lora_adapters"):
            raise CannotServe(f"The installed xllamacpp cannot load adapters. {_UPGRADE}")
        params.lora_adapters = [load(str(adapter), 1.0)]
        params.cache_ram_mib = SIBLINGS_CACHE_MIB
        params.chat_template, params.force_pure_content_parser = _PASS_THROUGH, True
    elif template:
        params.chat_template = template
    else:
        params.sampling.penalty_repeat = BASE_SAMPLING["repeat_penalty"]
        params.sampling.dry_multiplier = BASE_SAMPLING["dry_multiplier"]
        params.sampling.dry_allowed_length = int(BASE_SAMPLING["dry_allowed_length"])
    if key:
        params.api_keys = [key]
    try:
        # A module global keeps the server alive: it stops when it is garbage collected.
        globals()["_server"] = server = xllamacpp.Server(params)
    except RuntimeError as error:
        raise CannotServe(
            f"The installed xllamacpp cannot load the embedded model ({error}) {_UPGRADE}"
        ) from error
    return str(server.listening_address)


def main(folder: Path, weights: Path, adapter: Path | None, idle_s: float = IDLE_S) -> int:
    read_fd, write_fd = os.pipe()
    if (server_pid := os.fork()) != 0:
        os.close(write_fd)
        # The child writes a byte when there is an address; end of file means that it failed.
        if os.read(read_fd, 1):
            return 0
        problem = _death(os.waitpid(server_pid, 0)[1])
        if problem:
            print(f"{PROBLEM}{problem}", file=sys.stderr)
        return 1
    os.close(read_fd)
    os.setsid()
    os.nice(NICENESS)

    def begin() -> RunningServer:
        check_memory()
        key = secrets.token_urlsafe(24)
        url = start_server(weights, threads=spare_threads(), adapter=adapter, key=key)
        return RunningServer(url=f"{url}/v1", key=key, pid=os.getpid())

    def ready() -> None:
        os.write(write_fd, b".")
        os.close(write_fd)
        # The process that started this one may wait for its output to close.
        null_fd = os.open(os.devnull, os.O_RDWR)
        for file in (0, 1, 2):
            os.dup2(null_fd, file)

    try:
        serve(folder, begin, ready=ready, idle_s=idle_s)
    except CannotServe as error:
        print(f"{PROBLEM}{error}", file=sys.stderr, flush=True)
    # Skips the slow shutdown of llama.cpp.
    os._exit(0)


def _death(status: int) -> str:
    """Why a process ended that the system has killed, in one sentence; else ""."""
    match os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0:
        case signal.SIGILL:
            return (
                "The embedded model needs a processor with AVX2, which this one lacks. Use a model"
                " on another machine with -m."
            )
        case signal.SIGKILL | signal.SIGABRT:
            return (
                "The embedded model was ended while it started, probably for lack of memory. Close"
                " other programs, or use a model on another machine with -m."
            )
        case _:
            return ""


if __name__ == "__main__":
    _folder, _weights, *_more = sys.argv[1:]
    _adapter = Path(_more[0]) if _more and _more[0] else None
    sys.exit(main(Path(_folder), Path(_weights), _adapter, *map(float, _more[1:])))
