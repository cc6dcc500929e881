"""Names that a server may be called by in the Host of a request."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

ANY = "*"


def is_loopback(host: str) -> bool:
    """Whether only this host's processes reach an address that a server listens on."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_of(host: str, allowed: Sequence[str] = ()) -> tuple[str, ...] | None:
    """Names that a server on `host` has beside localhost and IP addresses; None where it may have any.

    A server that other hosts reach may have names that it does not know.
    """
    if ANY in allowed or not (allowed or is_loopback(host)):
        return None
    return (host.lower(), *(name.lower() for name in allowed))


def is_own(name: str) -> bool:
    """Whether a name cannot be another's: localhost, or an address, which no name server has a say in."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
