"""Published approximations of waits for several servers, as shares of exactly known waits."""

from __future__ import annotations

from math import sqrt


def service_factor(servers: int, load: float, cv2: float) -> float:
    """Return the wait of M/G/c over M/M/c: constant and exponential service mixed; (1 + cv2) / 2 from cv2 = 1."""
    if cv2 >= 1:
        return 0.5 * (1 + cv2)
    return (1 - cv2) * constant_service(servers, load) + cv2


def pooling(slots: int, peers: int, load: float) -> float:
    """Return the wait for a slot over that of a single replica, if the slots of all `peers` are nearly one pool.

    M/M/c waits load ** (sqrt(2 (c + 1)) - 1) / (c (1 - load)) services (Sakasegawa 1977).
    """
    return float(load ** (sqrt(2 * (slots * peers + 1)) - sqrt(2 * (slots + 1)))) / peers


def constant_service(servers: int, load: float) -> float:
    """Return the wait of M/D/c over that of M/M/c (Cosmetatos 1975); exactly one half for one server."""
    more = (1 - load) * (servers - 1) * (sqrt(4 + 5 * servers) - 2) / (16 * load * servers)
    return 0.5 * (1 + min(1.0, more))


def constant_wait_s(servers: int, load: float, service_s: float) -> float:
    """Return the wait of M/D/c: that of M/M/c (Sakasegawa 1977) times the factor for constant service."""
    if load <= 0:
        return 0.0
    waits = load ** (sqrt(2 * (servers + 1)) - 1) / (servers * (1 - load))
    return float(waits * service_s * constant_service(servers, load))
