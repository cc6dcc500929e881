"""Names that the Host header of a request may have."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

ANY = "*"


def is_loopback(host: str) -> bool:
    """Return whether only this host's processes can reach an address that a server listens on."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_of(host: str, allowed: Sequence[str] = ()) -> tuple[str, ...] | None:
    """Return the names of a server on `host` beside localhost and IP addresses; None if any name is possible.

    A server that other hosts reach may have names that it does not know.
    """
    if ANY in allowed or not (allowed or is_loopback(host)):
        return None
    return (host.lower(), *(name.lower() for name in allowed))


def is_own(name: str) -> bool:
    """Return whether a name always means this host: localhost, or an address, which no name server resolves."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
