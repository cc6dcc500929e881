"""Waits for servers as shares of those that are known: published approximations, nothing of this project's."""

from __future__ import annotations

from math import sqrt


def service_factor(servers: int, load: float, cv2: float) -> float:
    """Wait of M/G/c as a share of that of M/M/c: constant and exponential service mixed; beyond these (1 + cv2) / 2."""
    if cv2 >= 1:
        return 0.5 * (1 + cv2)
    return (1 - cv2) * constant_service(servers, load) + cv2


def pooling(slots: int, peers: int, load: float) -> float:
    """Wait for a slot as a share of that at one replica alone, the slots of all being nearly one pool.

    M/M/c waits load ** (sqrt(2 (c + 1)) - 1) / (c (1 - load)) services (Sakasegawa 1977).
    """
    return float(load ** (sqrt(2 * (slots * peers + 1)) - sqrt(2 * (slots + 1)))) / peers


def constant_service(servers: int, load: float) -> float:
    """Wait of M/D/c as a share of that of M/M/c (Cosmetatos 1975); exactly one half for one server."""
    more = (1 - load) * (servers - 1) * (sqrt(4 + 5 * servers) - 2) / (16 * load * servers)
    return 0.5 * (1 + min(1.0, more))


def constant_wait_s(servers: int, load: float, service_s: float) -> float:
    """Wait of M/D/c: that of M/M/c (Sakasegawa 1977) times what constant service leaves of it."""
    if load <= 0:
        return 0.0
    waits = load ** (sqrt(2 * (servers + 1)) - 1) / (servers * (1 - load))
    return float(waits * service_s * constant_service(servers, load))
