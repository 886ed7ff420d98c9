"""Where a sandbox with a network may go: a list of hosts and addresses, and nothing else.

    pypi.org                  that host, ports 80 and 443
    *.pythonhosted.org:443    every host below that name, not the name itself
    10.1.2.3:8080  10.0.0.0/8  [fd00::1]:443    addresses

1. A host is allowed by its name, and then by where the name leads: an address that is not of the public internet (loopback, private,
   link-local, multicast) or that is this node's own is refused unless the list has that very address or its network. So a name cannot be
   turned on our own Redis, nor on what a cloud tells its machines (169.254.169.254).
2. An address that carries another (IPv4 in IPv6, NAT64, 6to4) is judged as the one it carries.
3. Names are resolved here, once; the connection goes to the address that was judged.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DEFAULT_PORTS = frozenset({80, 443})
LABELS = re.compile(r"(?:\*\.)?(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
LONGEST_NAME = 253
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
NOT_PUBLIC = (ipaddress.IPv6Network("fec0::/10"), ipaddress.IPv6Network("64:ff9b:1::/48"))
"""Site-local addresses, and a site's own NAT64: some versions of Python count them among the public ones."""


@dataclass(frozen=True, slots=True)
class HostRule:
    """A name, or all names below one."""

    name: str
    below: bool
    ports: frozenset[int]

    def allows(self, host: str, port: int) -> bool:
        return port in self.ports and (host.endswith(f".{self.name}") if self.below else host == self.name)


@dataclass(frozen=True, slots=True)
class AddressRule:
    """An address or a network."""

    network: Network
    ports: frozenset[int]

    def allows(self, address: Address, port: int) -> bool:
        return port in self.ports and address in self.network


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """The list."""

    hosts: tuple[HostRule, ...] = ()
    addresses: tuple[AddressRule, ...] = ()

    @classmethod
    def parse(cls, patterns: Sequence[str]) -> Self:
        """Reads the list as people write it.

        Raises:
            ValueError: says which entry, and what was expected.
        """
        hosts: list[HostRule] = []
        addresses: list[AddressRule] = []
        for pattern in patterns:
            name, ports = _split(pattern.strip())
            network = _network(name)
            if network is not None:
                addresses.append(AddressRule(network, ports))
                continue
            name = name.lower().rstrip(".")
            if not LABELS.fullmatch(name) or len(name) > LONGEST_NAME:
                raise ValueError(f"{pattern!r}: expected a host (`pypi.org`, `*.pypi.org:443`), an address or a network (`10.0.0.0/8`)")
            below = name.startswith("*.")
            hosts.append(HostRule(name.removeprefix("*."), below, ports))
        return cls(tuple(hosts), tuple(addresses))

    def refuse_name(self, host: str, port: int) -> str:
        """Why this host may not be asked for; empty when it may. What it leads to is judged by `refuse_address`."""
        address = read_address(host)
        if address is not None:
            return self.refuse_address(address, port, by_name=False)
        if any(rule.allows(host.lower().rstrip("."), port) for rule in self.hosts):
            return ""
        return f"{host}:{port} is not on the list of hosts this sandbox may reach"

    def refuse_address(self, address: Address, port: int, *, by_name: bool) -> str:
        """Why this address may not be connected to; empty when it may.

        Args:
            by_name: an allowed name led to it; public addresses need no rule of their own then.
        """
        address = carried(address)
        if any(rule.allows(address, port) for rule in self.addresses):
            return ""
        if not by_name:
            return f"{address}:{port} is not on the list of addresses this sandbox may reach"
        if not address.is_global or address.is_multicast or any(address in network for network in NOT_PUBLIC):
            return f"it leads to {address}, which is not of the public internet and not on the list"
        if is_own(address):
            return f"it leads to {address}, which is this node itself and not on the list"
        return ""


def read_address(host: str) -> Address | None:
    """An address literal, in brackets or not; None for a name."""
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def is_own(address: Address) -> bool:
    """Whether an address is one of this node's: only those can be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((str(address), 0))
        return True
    return False


def carried(address: Address) -> Address:
    """The address that this one stands for."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in NAT64 or (int(address) >> 32 == 0 and int(address) > 1):
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _split(pattern: str) -> tuple[str, frozenset[int]]:
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::([0-9]+))?", pattern)
    if bracketed:
        name, port = bracketed[1], bracketed[2]
    elif pattern.count(":") == 1:
        name, _, port = pattern.partition(":")
    else:
        name, port = pattern, None
    if port is None:
        return name, DEFAULT_PORTS
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{pattern!r}: expected a port between 1 and 65535 after the colon")
    return name, frozenset({int(port)})


def _network(name: str) -> Network | None:
    try:
        return ipaddress.ip_network(name, strict=False)
    except ValueError:
        return None
