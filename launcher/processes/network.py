"""How this node is reached by others: addresses and interfaces."""

from __future__ import annotations

import ipaddress
import socket

import psutil


def address_towards(host: str, port: int) -> str:
    """The address of this node from which it reaches ``host``, as the routes say; nothing is sent.

    Raises:
        OSError: where the name does not resolve, or no route leads there.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The interface of this node that has ``address``; None: none has it."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(_plain(known.address) == _plain(address) for known in addresses):
            return name
    return None


def is_here(host: str) -> bool:
    """Whether ``host`` is this node.

    Raises:
        OSError: where the name does not resolve.
    """
    if host == socket.gethostname():
        return True
    addresses = {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    return any(is_loopback(address) or interface_of(address) for address in addresses)


def is_loopback(address: str) -> bool:
    """Whether ``address`` means this node on any node."""
    return ipaddress.ip_address(_plain(address)).is_loopback


def _plain(address: str) -> str:
    return address.partition("%")[0]
