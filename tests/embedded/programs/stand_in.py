"""Serves nothing, but keeps to the rules of one who does: FOLDER, IDLE_S, and how it goes wrong.

It ends as soon as there is an address, and leaves the one that "serves" behind.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from retinue.embedded.serving import RunningServer, serve

folder, idle_s, trouble = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]


def begin() -> RunningServer:
    if trouble:
        print("no such instruction set", file=sys.stderr, flush=True)
        os._exit(3)
    with (folder / "starts").open("a") as file:
        file.write(f"{os.getpid()}\n")
    return RunningServer(url=f"http://127.0.0.1:1/{os.getpid()}", key="k", pid=os.getpid())


heard, said = os.pipe()
if os.fork() != 0:
    os.close(said)
    sys.exit(0 if os.read(heard, 1) else 1)
os.close(heard)
serve(folder, begin, ready=lambda: print(os.write(said, b".")), idle_s=idle_s)
os._exit(0)
