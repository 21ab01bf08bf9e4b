"""Hosts on the nodes of a Ray cluster."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.metadata import version

import msgspec

from retinue.config.environment import Environment
from retinue.config.settings import ClusterSettings
from retinue.errors import RunError, UsageError, WorkspaceError
from retinue.extras import require
from retinue.ports.clock import Clock
from retinue.process_hosts import (
    HOST_MODULE,
    START_S,
    ConnectedHost,
    HostOptions,
    Program,
    connection_over,
    read_info,
    running_program,
)
from retinue.processes.function_process import MODULE_PROGRAM
from retinue.ray_cluster.messages import (
    LOST,
    Node,
    Refused,
    StartHost,
    Starting,
    decode_first,
    decode_lost,
    decode_starting,
)
from retinue.runtime.placement.connection import Connection
from retinue.runtime.placement.host import HostLost
from retinue.runtime.placement.lease import LEASE_S, TAKEOVER_S
from retinue.runtime.placement.messages import HostInfo, Item, decode_items, encode
from retinue.version import VERSION

OLDEST_RAY, NEWEST_RAY = (2, 52), (3, 0)
"""The tests run with 2.60. Older ones than the oldest know no authentication by a token."""
DRIVER = "retinue.ray_cluster.driver"


def require_ray() -> None:
    """Raise MissingExtra or UsageError unless a version of Ray that works is installed."""
    require("ray", "Ray, which runs children on other machines,")
    installed = version("ray")
    if not OLDEST_RAY <= tuple(map(int, re.findall(r"\d+", installed)[:2])) < NEWEST_RAY:
        oldest, newest = ".".join(map(str, OLDEST_RAY)), NEWEST_RAY[0]
        raise UsageError(
            f"Ray {installed} is installed, and retinue needs {oldest} or newer, before {newest}:"
            " pip install 'retinue[ray]'."
        )


class RayHost(ConnectedHost):
    """A host on a node. Implements the port `Host`."""

    def __init__(self, name: str, info: HostInfo, starting: Starting, link: DriverLink) -> None:
        super().__init__(name, info, link.connection, resources=starting.resources)
        self._link = link

    async def poll(self, after: int) -> Sequence[Item]:
        try:
            items = decode_items(await self._link.receive())
        except msgspec.DecodeError as error:
            raise HostLost(f"{self.name} sends what cannot be read: {error}") from error
        self._link.heard()
        return items

    async def end(self) -> None:
        await self._link.end()


class DriverLink:
    """The connection to one host through the driver, which says when the host is lost."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        opened: socket.socket,
        driver: Program,
        clock: Clock,
    ) -> None:
        self.name = name
        self.connection = connection
        self._driver = driver
        self._socket = opened
        self._clock = clock
        self._ended = False
        self._heard_at = clock.monotonic()

    def heard(self) -> None:
        """The host has reported something, so its lease may have begun just before."""
        self._heard_at = self._clock.monotonic()

    async def receive(self) -> bytes:
        """The next message of the host. Raises HostLost."""
        try:
            data = await self.connection.receive()
        except (asyncio.IncompleteReadError, OSError):
            why = _why_lost(await self._driver.last_words())
            raise HostLost(f"{self.name} {why}") from None
        except WorkspaceError as error:
            raise HostLost(f"{self.name} sends what cannot be read: {error}") from error
        if not data.startswith(LOST):
            return data
        try:
            lost = decode_lost(data)
        except msgspec.DecodeError as error:  # It comes from the host, not from the driver.
            raise HostLost(f"{self.name} sends what cannot be read: {error}") from error
        self._ended = lost.ended
        raise HostLost(f"{self.name} {lost.why}")

    async def end(self) -> None:
        """Return when nothing of the host runs any more: it has ended, or its lease is over."""
        over_at = self._heard_at + TAKEOVER_S
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        with suppress(TimeoutError):
            async with asyncio.timeout(over_at - self._clock.monotonic()):
                while not self._ended and not self.connection.at_end:
                    with suppress(HostLost):  # A loss may be reported twice.
                        await self.receive()
        if not self._ended:
            await self._clock.sleep(max(0.0, over_at - self._clock.monotonic()))


def _why_lost(last_words: str) -> str:
    """Why hosts were lost with the Ray driver, from its last line."""
    if "Failed to connect to GCS" in last_words:
        return "was lost: the head of the Ray cluster does not answer, so Ray has ended its driver"
    return f"was lost with the Ray driver: {last_words}"


class RayCluster:
    """The nodes of a Ray cluster. Its driver is started again when it was lost."""

    def __init__(self, address: str, environment: Environment, clock: Clock) -> None:
        self._address = address
        self._environment = environment
        self._clock = clock
        self._driver: Program | None = None
        self._stack = AsyncExitStack()
        self._starting = asyncio.Lock()
        self.nodes: tuple[Node, ...] = ()
        """The nodes that were alive when the driver was started."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[RayCluster]:
        """Join the cluster. Raises RunError."""
        async with self._stack:
            try:
                await self._join()
            except HostLost as error:
                raise RunError(str(error)) from None
            yield self

    async def _join(self) -> Program:
        """The driver. Raises HostLost if there is no cluster."""
        async with self._starting:
            driver = self._driver
            if driver is None or driver.process.exited.is_set():
                self._driver = None
                await self._stack.aclose()
                driver = await self._stack.enter_async_context(
                    running_program("the Ray driver", DRIVER, self._address, self._environment)
                )
                first = decode_first(await driver.first_message())
                if isinstance(first, Refused):
                    raise HostLost(first.why)
                self._driver, self.nodes = driver, first.nodes
            return driver

    @asynccontextmanager
    async def host(
        self, number: int, options: HostOptions, order: StartHost
    ) -> AsyncIterator[RayHost]:
        """Start a host on a node that has none. Raises HostLost if it does not start."""
        driver = await self._join()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(driver.socket, [b"h"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise HostLost(f"the Ray driver has ended: {error}") from None
        async with connection_over(ours, self._environment) as connection:
            link = DriverLink(f"ray-{number}", connection, ours, driver, self._clock)
            name = link.name
            connection.send(encode(order))
            connection.send(encode(options))
            try:
                async with asyncio.timeout(START_S):
                    starting = decode_starting(await link.receive())
                    link.name = name = f"ray-{number}@{starting.node.name}"
                    info = read_info(name, await link.receive())
            except TimeoutError:
                await link.end()
                raise HostLost(f"{name} has not started within {START_S:g} s") from None
            link.heard()
            yield RayHost(name, info, starting, link)


def start_order(
    settings: ClusterSettings, *, resources: Mapping[str, float | None], node: str = ""
) -> StartHost:
    return StartHost(
        retinue_version=VERSION,
        module=HOST_MODULE,
        program=MODULE_PROGRAM,
        variables=settings.environment,
        labels=settings.labels,
        resources=resources,
        node=node,
        # A start may take both, and a little more until the first message.
        wait_s=START_S * 0.4,
        silent_s=LEASE_S,
    )
