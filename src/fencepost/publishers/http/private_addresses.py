"""Which addresses a public receiver cannot have, so that a URL from outside reaches nothing inside.

To be asked about the address that a connection is about to go to, not about a name: what a name means can change
between the question and the connection (DNS rebinding).
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from fencepost.errors import ConfigError
from fencepost.publishers.address import Address

OPTION = "allow_private"

# IANA's registries of special-purpose addresses. Written out, because what Python's is_global says about them
# differs between its versions.
_SPECIAL_4 = tuple(
    (IPv4Network(network), what)
    for network, what in (
        ("0.0.0.0/8", "an unspecified address"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "an address of a carrier's own network"),
        ("127.0.0.0/8", "a loopback address"),
        ("169.254.0.0/16", "a link-local address, where clouds keep their credentials"),
        ("172.16.0.0/12", "a private address"),
        ("192.0.0.0/24", "a reserved address"),
        ("192.0.2.0/24", "an address for documentation"),
        ("192.88.99.0/24", "a reserved address"),
        ("192.168.0.0/16", "a private address"),
        ("198.18.0.0/15", "an address for benchmarks"),
        ("198.51.100.0/24", "an address for documentation"),
        ("203.0.113.0/24", "an address for documentation"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "a reserved address"),
    )
)
_SPECIAL_6 = tuple(
    (IPv6Network(network), what)
    for network, what in (
        ("::/128", "an unspecified address"),
        ("::1/128", "a loopback address"),
        ("fe80::/10", "a link-local address"),
        ("fc00::/7", "a private address"),
        ("ff00::/8", "a multicast address"),
        ("2001::/23", "a reserved address"),  # Teredo among them, which wraps an IPv4 address
        ("2001:db8::/32", "an address for documentation"),
        ("3fff::/20", "an address for documentation"),
    )
)
_PUBLIC_6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


class Neighbourhood:
    """What the option ``allow_private`` of a destination allows: ``off``, ``on``, or networks of one's own.

    Raises:
        ConfigError: it is none of these.
    """

    def __init__(self, address: Address) -> None:
        text = address.options.get(OPTION, "off")
        self._everything = text == "on"
        self._networks: tuple[IPv4Network | IPv6Network, ...] = ()
        if text not in ("on", "off"):
            try:
                self._networks = tuple(ip_network(each) for each in text.split(","))
            except ValueError:
                raise ConfigError(
                    f"{address.display}: {OPTION} must be on, off, or networks like 10.1.0.0/16,fd00::/8"
                ) from None

    def refusal(self, address: str) -> str | None:
        """Return why this address is not to be connected to, None where it may be."""
        if self._everything:
            return None
        plain = _unwrapped(ip_address(address))
        if any(plain in network for network in self._networks):
            return None
        what = _special(plain)
        if what is None:
            return None
        inside = "" if str(plain) == address else f" (that is {plain})"
        return f"{address}{inside} is {what}; if the receiver is yours, say {OPTION}=on"


def literal(host: str) -> str | None:
    """Return the address that a host is by itself, in any of the old spellings; None where it needs a look-up."""
    host = host.rstrip(".").lower()
    if host.rpartition(".")[2] == "localhost":
        return "127.0.0.1"  # RFC 6761, section 6.3: all names below it as well
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))  # 2130706433, 0x7f.1, 0177.0.0.1
    except OSError:
        return None


def _unwrapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address stands for, if it does: mapped, 6to4 or NAT64."""
    if isinstance(address, IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour
    if inner is None and address in _NAT64:
        inner = IPv4Address(int(address) & 0xFFFF_FFFF)
    return inner or address


def _special(address: IPv4Address | IPv6Address) -> str | None:
    if isinstance(address, IPv4Address):
        return next((what for network, what in _SPECIAL_4 if address in network), None)
    found = next((what for network, what in _SPECIAL_6 if address in network), None)
    return found or (None if address in _PUBLIC_6 else "a reserved address")
