"""The Ray driver: a process of its own, because Ray ends a driver that has lost the cluster's head.

It starts one actor per host, and passes on the frames between a host and its run.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from retinue.ray_cluster import node_actor
from retinue.ray_cluster.messages import (
    Connected,
    Lost,
    Node,
    Refused,
    StartHost,
    Starting,
    decode_order,
)
from retinue.runtime.placement.connection import Connection, message_frame, read_message
from retinue.runtime.placement.messages import encode

REACH_S = 5.0
"""How long a connection to the cluster's head may take."""
JOIN_S = 45.0
"""How long joining the cluster may take: the run waits a little longer for the driver."""
UNAVAILABLE_S = 2.0
"""An actor that cannot be reached for so long is lost."""
END_S = 5.0
"""How long to wait until a host is known to have ended."""
LOOK_EVERY_S = 1.0
_PART_BYTES = 4 << 20


def main(fd: int) -> None:
    control = socket.socket(fileno=fd)
    address = msgspec.json.decode(read_message(control), type=str)

    def give_up() -> None:
        where = "this machine's Ray address" if address == "auto" else address
        why = f"What listens at {where} has not answered like Ray for {JOIN_S:g} s."
        control.sendall(message_frame(encode(Refused(why))))
        os._exit(0)  # Nothing ends Ray while it tries to connect.

    patience = threading.Timer(JOIN_S, give_up)
    patience.daemon = True
    patience.start()
    try:
        _join(address)
    except Exception as error:
        control.sendall(message_frame(encode(Refused(_why_refused(address, error)))))
        return
    finally:
        patience.cancel()
    found = Connected(tuple(_nodes()))
    control.sendall(message_frame(encode(found)))
    asyncio.run(_Driver().serve(control))
    ray.shutdown()


def _join(address: str) -> None:
    if address != "auto":
        host, _, port = address.rpartition(":")
        # Ray itself would try for a minute.
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    # By value, so that a node without retinue can say so.
    ray.cloudpickle.register_pickle_by_value(node_actor)
    ray.init(address=address, log_to_driver=False, logging_level="error", configure_logging=False)


def _why_refused(address: str, error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return f"Nothing answers at {address}: {error.strerror or error}."
    if isinstance(error, ConnectionRefusedError):
        return f"No Ray cluster runs at {address}: the connection was refused."
    if isinstance(error, ConnectionError) and address == "auto":
        return (
            "No Ray cluster runs on this machine: start one with `ray start --head`, or name the"
            " head of one that this machine has joined, as in --cluster 10.0.0.1:6379."
        )
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        return f"The Ray cluster at {address} has other versions. {text}"
    return f"The Ray cluster at {address} cannot be joined: {type(error).__name__}: {text}"


def _nodes() -> list[Node]:
    """The living nodes."""
    alive = [one for one in ray.nodes() if one["Alive"]]
    names = Counter(one["NodeManagerHostname"] for one in alive)
    found = []
    for one in alive:
        id, name, has = one["NodeID"], one["NodeManagerHostname"], one["Resources"]
        found.append(
            Node(
                id=id,
                name=name if names[name] == 1 else f"{name}-{id[:4]}",
                address=one["NodeManagerAddress"],
                resources={k: v for k, v in has.items() if not k.startswith("node:")},
                labels=one["Labels"],
            )
        )
    return found


class _Driver:
    def __init__(self) -> None:
        self._taken: set[str] = set()
        """Nodes that have a host of this run."""
        self._handling: set[asyncio.Task[None]] = set()

    async def serve(self, control: socket.socket) -> None:
        """Serve the connections that arrive, until the run closes `control`."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def accept() -> None:
            data, fds, _, _ = socket.recv_fds(control, 1, 1)
            if not data:
                loop.remove_reader(control)
                over.set()
            for fd in fds:
                task = loop.create_task(self._handle(socket.socket(fileno=fd)))
                self._handling.add(task)
                task.add_done_callback(self._handling.discard)

        loop.add_reader(control, accept)
        await over.wait()

    async def _handle(self, opened: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=opened)
        connection = Connection(reader, writer, folder="")
        with suppress(OSError, asyncio.IncompleteReadError):
            order = decode_order(await connection.receive())
            connection.send(encode(await self._run_host(order, connection, reader, writer)))
            await connection.drain()
        writer.close()

    async def _run_host(
        self,
        order: StartHost,
        connection: Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> Lost:
        node: Node | None = None
        # The time that no wait for a node has used is left to a node that is busy.
        until = asyncio.get_running_loop().time() + 2 * order.wait_s
        try:
            node = await self._free_node(order)
            if node is None:
                waited = f"{order.wait_s:g} s"
                return Lost(f"found no free node in the cluster within {waited}", ended=True)
            host = _NodeHost(node, order)
            connection.send(encode(Starting(node, host.resources)))
            return await host.serve(connection, reader, writer, until)
        except Exception as error:
            return Lost(_described(error), ended=False)
        finally:
            if node is not None:
                self._taken.discard(node.id)

    async def _free_node(self, order: StartHost) -> Node | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(order.wait_s):
                while True:
                    for node in await asyncio.to_thread(_nodes):
                        is_wanted = order.node in ("", node.id) and node.takes_work(order.labels)
                        if is_wanted and node.id not in self._taken:
                            self._taken.add(node.id)
                            return node
                    await asyncio.sleep(LOOK_EVERY_S)
        return None


class _NodeHost:
    """The host on one node."""

    def __init__(self, node: Node, order: StartHost) -> None:
        self._order = order
        has = node.resources
        self.resources = {
            name: has[name] if amount is None else min(amount, has[name])
            for name, amount in order.resources.items()
            if has.get(name)
        }
        resources = dict(self.resources)
        self._placed: dict[str, Any] = {
            "num_cpus": resources.pop("CPU", 0),
            "num_gpus": resources.pop("GPU", 0),
            "resources": resources,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
        }
        self._actor: Any = None
        self._processes: list[node_actor.ProcessKey] = []

    async def serve(
        self,
        connection: Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        until: float,
    ) -> Lost:
        """Start the host, and pass frames on until it has ended, or its run does not need it.

        It has to be started before the time `until`.
        Reports a loss at once, and again when it is known whether the host has ended.
        """
        order = self._order
        why, ended = "", False
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(until):
                # In threads: without the cluster's head, Ray blocks.
                actor = ray.remote(node_actor.HostActor).options(**self._placed)
                self._actor = await asyncio.to_thread(actor.remote)
                why, self._processes = await self._actor.start.remote(
                    order.retinue_version,
                    order.module,
                    order.program,
                    dict(order.variables),
                    order.silent_s,
                )
            if not why:
                why, ended = await self._pass_on(reader, writer)
        except TimeoutError:
            needed = [f"{amount:g} {name}" for name, amount in self.resources.items()]
            free = f"not have {' and '.join(needed)} free" if needed else "have no room"
            why = f"has not started within {until - began:.0f} s; its node may {free}, or be busy"
        except RayError as error:
            why = _described(error)
        finally:
            if not ended:
                connection.send(encode(Lost(why, ended=False)))
                ended = await self._end()
        return Lost(why, ended)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[str, bool]:
        """Why it is over, and whether the host has ended."""
        sending = asyncio.ensure_future(self._send(reader))
        receiving = asyncio.ensure_future(self._receive(writer))
        try:
            done, _ = await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
            if receiving in done:
                return f"has ended: {receiving.result()}", True
            sending.result()
            return "is not needed any more", False
        finally:
            sending.cancel()
            receiving.cancel()
            await asyncio.wait((sending, receiving))

    async def _send(self, reader: asyncio.StreamReader) -> None:
        """Pass on what the run sends, until it closes the connection."""
        number = 0
        while data := await reader.read(_PART_BYTES):
            number += 1
            await self._call(lambda: self._actor.write.remote(number, data))  # noqa: B023

    async def _receive(self, writer: asyncio.StreamWriter) -> str:
        """Pass on what the host sends, until it has ended. Returns its last words."""
        after = 0
        while True:
            first, frames, last_words = await self._call(
                lambda: self._actor.read.remote(after)  # noqa: B023
            )
            new = frames[after + 1 - first :]
            after += len(new)
            writer.write(b"".join(new))
            if last_words:
                return str(last_words)
            await writer.drain()

    async def _call(self, call: Callable[[], Any]) -> Any:
        """Call the actor, again if it cannot be reached for a moment. Raises RayError."""
        loop = asyncio.get_running_loop()
        give_up: float | None = None
        while True:
            try:
                return await call()
            except ActorUnavailableError:
                give_up = give_up or loop.time() + UNAVAILABLE_S
                if loop.time() > give_up:
                    raise
                await asyncio.sleep(UNAVAILABLE_S / 10)

    async def _end(self) -> bool:
        """End the host. Whether it is certain that nothing of it runs any more."""
        if self._actor is None:
            return True
        ended = False
        with suppress(RayError, TimeoutError):
            async with asyncio.timeout(END_S):
                ended = await self._actor.end.remote()
        with suppress(RayError, TimeoutError):
            async with asyncio.timeout(END_S):
                await asyncio.to_thread(ray.kill, self._actor)
        if ended:
            return True
        with suppress(RayError, TimeoutError):
            async with asyncio.timeout(END_S):
                if not self._processes:
                    return False
                end = ray.remote(num_cpus=0, max_retries=0)(node_actor.end_processes)
                strategy = self._placed["scheduling_strategy"]
                ended = end.options(scheduling_strategy=strategy).remote(*self._processes)
                return bool(await ended)
        return False


def _described(error: Exception) -> str:
    """One line that says what has happened, without what Ray adds for its developers."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"was lost: {type(error).__name__}: {lines[0] if lines else 'no reason given'}"[:500]
