"""Which hosts clients may name as model servers: workers open what is named, from within their network, and send it prompts and keys.

Invariants
    - This machine, as each worker sees it, may always be named: loopback addresses, `localhost`, Unix sockets.
    - Any other host needs a pattern or a network in the settings. Names are compared as text and looked up nowhere: whom a name leads to is
      for those to say who run its domain, and for a network the address itself must stand there.
    - What two readers of an address could take for two hosts is none: a host is an IP address in its usual form, or letters, digits, `.`,
      `-` and `_`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?\Z")
PATTERN = re.compile(r"[a-z0-9_.*-]+\Z")
ANY = "*"
WITHIN_A_LABEL = "[a-z0-9_-]*"
"""What `*` stands for beside others, as in certificates: `node*` is not to take node7.evil.example."""
LOOKS_LIKE_A_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z")
"""The last part of a name that some resolvers read as an IPv4 address: 127.1, 0x7f.1, 2130706433."""
UNIX = "unix:"


class ModelHosts:
    """The hosts that may be named.

    Args:
        allowed: host names, where `*` stands for any characters but a dot; networks such as `10.1.0.0/16`, or single addresses; `*` alone
            for every host.

    Raises:
        ValueError: one of them is neither.
    """

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        self._names: list[re.Pattern[str]] = []
        self._any = False
        for entry in allowed:
            text = entry.strip().lower()
            if text == ANY:
                self._any = True
                continue
            try:
                self._networks.append(ip_network(text))
            except ValueError as wrong:
                if "/" in text or not PATTERN.match(text):
                    why = f" ({wrong})" if "host bits" in str(wrong) else ""
                    expected = "expected a host such as node7 or *.gpu.example, or a network such as 10.1.0.0/16"
                    raise ValueError(f"{expected}, got {entry!r}{why}") from None
                self._names.append(re.compile(WITHIN_A_LABEL.join(map(re.escape, text.split(ANY))) + r"\Z"))

    def may_be_named(self, address: str) -> bool:
        """Whether clients may name this address of a model server (`wrong_address` has nothing against it)."""
        if address.startswith(UNIX):
            return True
        host = urlsplit(address).hostname or ""
        try:
            ip = _unmapped(ip_address(host))
        except ValueError:
            return self._is_allowed_name(host)
        return self._any or ip.is_loopback or any(ip in network for network in self._networks)

    def _is_allowed_name(self, host: str) -> bool:
        if host == "localhost":
            return True
        if not NAME.match(host) or LOOKS_LIKE_A_NUMBER.match(host.rpartition(".")[2]):
            return False
        return self._any or any(name.match(host) for name in self._names)


def _unmapped(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An IPv4 address that is written as one of IPv6 is itself."""
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return ip if mapped is None else mapped


__all__ = ["ModelHosts"]
