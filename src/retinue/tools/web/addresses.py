"""Which addresses may be connected to: public ones, and those of hosts that the user allows.

A name is resolved once for each connection, and the connection goes to the address that was
checked. So a name whose answer changes between a check and a connection gains nothing.
"""

from __future__ import annotations

import ipaddress
import socket

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from retinue.domain.web_hosts import allows_host
from retinue.errors import ToolFailure

# IPv6 addresses that stand for an IPv4 address: NAT64 and 6to4. Teredo is not public for Python.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_6TO4 = ipaddress.ip_network("2002::/16")
# All public IPv6 addresses are in here. Python's own list of the others depends on its version.
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_DOCUMENTATION = ipaddress.ip_network("3fff::/20")
# Azure's service for the virtual machine that asks; its address is one of the public internet.
_AZURE_WIRE_SERVER = ipaddress.ip_address("168.63.129.16")


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False  # A short form, such as 127.1.
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        elif ip in _6TO4:
            inner = ipaddress.IPv4Address(int(ip) >> 80 & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if ip not in _GLOBAL_UNICAST or ip in _DOCUMENTATION:
            return False
    return ip.is_global and not ip.is_multicast and ip != _AZURE_WIRE_SERVER


class PublicResolver(AbstractResolver):
    """Resolves names to public addresses only, except for `private_hosts`."""

    def __init__(
        self, private_hosts: tuple[str, ...], resolver: AbstractResolver | None = None
    ) -> None:
        self._private_hosts = private_hosts
        self._resolver = resolver or ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        if not allows_host(self._private_hosts, host, port):
            for one in found:
                check_public(one["host"], host)
        return found

    async def close(self) -> None:
        await self._resolver.close()


def check_public(address: str, host: str) -> None:
    """Raise ToolFailure for an address that is not public; `host` is the name in the URL."""
    if not is_public(address):
        by = address if host == address else f"{host} leads to {address}, which"
        raise ToolFailure(
            f"{by} is no public address, so it is not fetched; the user can add the host to"
            " web_private_hosts in their settings"
        )
