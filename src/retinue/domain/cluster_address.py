"""Where children run, as `--cluster` and the settings name it."""

from __future__ import annotations

import re

from retinue.errors import UsageError

NO_CLUSTER = "off"
MAX_LOCAL_HOSTS = 256
_RAY_ADDRESS = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}")


def local_hosts(cluster: str) -> int:
    """How many processes of this machine `cluster` asks for; 0 for a Ray cluster, or none.

    Raises UsageError.
    """
    kind, _, number = cluster.partition(":")
    if kind == "local" and number.isdecimal() and 1 <= int(number) <= MAX_LOCAL_HOSTS:
        return int(number)
    if cluster.startswith("ray://"):
        raise UsageError(
            f"{cluster!r} is an address of Ray Client, which retinue does not use: name the head as"
            " HOST:PORT, on a machine that has joined the cluster."
        )
    known = cluster in ("auto", NO_CLUSTER) or _RAY_ADDRESS.fullmatch(cluster)
    if kind == "local" or not known:
        raise UsageError(
            f"Unknown cluster {cluster!r}; local:N runs children in N processes of this machine,"
            f" with N from 1 to {MAX_LOCAL_HOSTS}, auto on the Ray cluster that this machine has"
            f" joined, HOST:PORT on that with this head, and {NO_CLUSTER} in the run's own process."
        )
    return 0
