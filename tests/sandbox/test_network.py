"""Commands without network reach nothing outside of the sandbox."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from retinue.domain.grant import Network
from tests.sandbox.probe import ATTEMPT, SandboxProbe


async def test_host_sockets_cannot_be_reached(probe: SandboxProbe, tmp_path: Path) -> None:
    abstract = f"\0retinue-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as hidden,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(str(probe.outside / "datagrams"))
        udp.bind(("127.0.0.1", 0))
        unix.bind(str(probe.outside / "socket"))
        unix.listen()
        hidden.bind(abstract)
        hidden.listen()
        udp.setblocking(False)
        done = await probe.python(
            f"""
import socket
def attempt(name, act):
    try:
        act()
        print("escaped", name)
    except OSError as error:
        print(name, "failed")
def tcp():
    socket.create_connection(("127.0.0.1", {tcp.getsockname()[1]}), 2)
def unix():
    socket.socket(socket.AF_UNIX).connect({str(probe.outside / "socket")!r})
def hidden():
    socket.socket(socket.AF_UNIX).connect({abstract!r})
def turned():
    end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]
    end.sendto(b"x", {str(probe.outside / "datagrams")!r})
def vsock():
    socket.socket(40, socket.SOCK_STREAM)
def packet():
    socket.socket(17, socket.SOCK_RAW)
for act in (tcp, unix, hidden, turned, vsock, packet):
    attempt(act.__name__, act)
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", {udp.getsockname()!r})
except OSError:
    pass
"""
        )
        assert "escaped" not in done.output
        assert done.output.count("failed") == 6
        with pytest.raises(BlockingIOError):
            udp.recv(10)
    (probe.outside / "socket").unlink()


async def test_server_works_on_the_private_loopback(probe: SandboxProbe) -> None:
    if not probe.full:
        pytest.skip("the reduced tier has no sockets without network, and says so")
    done = await probe.python(
        """
import http.server, threading, urllib.request
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").status)
server.shutdown()
"""
    )
    assert done.output.splitlines()[-1] == "200"


async def test_abstract_sockets_of_the_host_are_denied_with_network(
    probe: SandboxProbe,
) -> None:
    abstract = f"\0retinue-all-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as hidden,
    ):
        hidden.bind(abstract)
        hidden.listen()
        done = await probe.python(
            f"""
import socket
socket.create_connection(("127.0.0.1", {tcp.getsockname()[1]}), 2)
print("connected")
socket.socket(socket.AF_UNIX).connect({abstract!r})
print("escaped")
""",
            network=Network.ALL,
        )
    assert "connected" in done.output
    assert "escaped" not in done.output


async def test_unix_sockets_are_denied_with_network(probe: SandboxProbe) -> None:
    done = await probe.python(
        """
import socket
try:
    socket.socket(socket.AF_UNIX)
    print("escaped")
except OSError as error:
    print(error.strerror)
""",
        network=Network.ALL,
    )
    assert done.output == "Address family not supported by protocol\n"


@pytest.mark.parametrize("network", [Network.NONE, Network.ALL])
async def test_netlink_lists_interfaces_only(probe: SandboxProbe, network: Network) -> None:
    done = await probe.python(
        ATTEMPT
        + """
for protocol in (4, 6, 9, 11, 12, 15, 16, 20, 21):
    attempt(protocol, lambda: socket.socket(16, socket.SOCK_RAW, protocol).fileno())
print(*(name for _, name in socket.if_nameindex()))
""",
        network=network,
    )
    if probe.full or network is Network.ALL:
        assert "lo" in done.output.split()
    assert "escaped" not in done.output
