"""Messages between a runtime and its Ray driver, which is another process.

The runtime opens one connection per host, whose first message is a `StartHost`. The driver answers
with `Starting`, then it passes on the frames of the host, and `Lost` ends them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of the cluster."""

    id: str
    name: str
    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]

    def takes_work(self, labels: Mapping[str, str]) -> bool:
        """Whether it can have a host of a run that uses the nodes with these labels."""
        has_labels = all(self.labels.get(name) == value for name, value in labels.items())
        return has_labels and bool(self.resources.get("CPU"))


class Connected(msgspec.Struct, frozen=True, tag="connected"):
    """The driver has joined the cluster. These nodes are alive."""

    nodes: tuple[Node, ...]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The driver cannot join the cluster."""

    why: str


class StartHost(msgspec.Struct, frozen=True, kw_only=True):
    """Start a host on a node that has none."""

    retinue_version: str
    module: str
    program: str
    variables: Mapping[str, str]
    labels: Mapping[str, str]
    """What the node must have."""
    resources: Mapping[str, float | None]
    """What the host reserves of its node: at most as much as the node has; None is all of it."""
    node: str
    """Id of the node; "" for any."""
    wait_s: float
    """How long to wait for a node; twice as long for that and the start of the host's process."""
    silent_s: float
    """A host that has reported nothing for so long is ended on its node."""


class Starting(msgspec.Struct, frozen=True, tag="starting"):
    node: Node
    resources: Mapping[str, float]
    """What the host reserves."""


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The host is over. It has `ended` if it is certain that nothing of it runs any more.

    Comes twice if that is found out later.
    """

    why: str
    ended: bool


decode_first = msgspec.json.Decoder(Connected | Refused).decode
decode_order = msgspec.json.Decoder(StartHost).decode
decode_starting = msgspec.json.Decoder(Starting).decode
decode_lost = msgspec.json.Decoder(Lost).decode
LOST = b'{"type":"lost"'
"""How the message `Lost` begins, and no other."""
