"""Program that starts the server of the embedded model in the background.

`python -m retinue.embedded.llama_server FOLDER WEIGHTS` exits with 0 as soon as a server answers.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from retinue.embedded.serving import RunningServer, serve

MODEL_ALIAS = "smollm2-135m-instruct"
CONTEXT_TOKENS = 8_192
# Reading prompts is most of the work, and two at once take as long as one after the other. With one
# slot, siblings reuse their common prefix.
SLOTS = 1
IDLE_S = 120.0
NICENESS = 10
MAX_THREADS = 4
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


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


def start_server(
    weights: Path,
    *,
    threads: int,
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
    if template:
        params.chat_template = template
    else:
        # Without penalties the model repeats one sentence. Penalties prevent tool calls, whose
        # arguments repeat earlier text; but the model's own template has no tools.
        params.sampling.penalty_repeat = 1.1
        params.sampling.dry_multiplier, params.sampling.dry_allowed_length = 0.8, 4
    if key:
        params.api_keys = [key]
    # A module global keeps the server alive: it stops when it is garbage collected.
    globals()["_server"] = server = xllamacpp.Server(params)
    return str(server.listening_address)


def main(folder: Path, weights: Path, idle_s: float = IDLE_S) -> int:
    read_fd, write_fd = os.pipe()
    if os.fork() != 0:
        os.close(write_fd)
        # The child writes a byte when there is an address; end of file means that it failed.
        return 0 if os.read(read_fd, 1) else 1
    os.close(read_fd)
    os.setsid()
    os.nice(NICENESS)

    def begin() -> RunningServer:
        key = secrets.token_urlsafe(24)
        url = start_server(weights, threads=spare_threads(), key=key)
        return RunningServer(url=f"{url}/v1", key=key, pid=os.getpid())

    def ready() -> None:
        os.write(write_fd, b".")
        os.close(write_fd)
        # The process that started this one may wait for its output to close.
        null_fd = os.open(os.devnull, os.O_RDWR)
        for file in (0, 1, 2):
            os.dup2(null_fd, file)

    serve(folder, begin, ready=ready, idle_s=idle_s)
    # Skips the slow shutdown of llama.cpp.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *map(float, sys.argv[3:])))
