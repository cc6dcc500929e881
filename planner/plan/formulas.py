"""Published approximations of waits for several servers, as shares of exactly known waits."""

from __future__ import annotations

from math import log, sqrt

ROUTED = 0.2  # growth of the exponent for each e-fold of the replicas, where one queue for all has 0


def service_factor(servers: int, load: float, cv2: float) -> float:
    """Return the wait of M/G/c over M/M/c: constant and exponential service mixed; (1 + cv2) / 2 from cv2 = 1."""
    if cv2 >= 1:
        return 0.5 * (1 + cv2)
    return (1 - cv2) * constant_service(servers, load) + cv2


def waiting_exponent(servers: int) -> float:
    """Return e of `load ** e`, the share of the requests that wait in M/M/c (Sakasegawa 1977)."""
    return sqrt(2 * (servers + 1)) - 1


def pooling(slots: int, peers: int, load: float) -> float:
    """Return the share of requests that wait for a slot of `peers` replicas over that of a single replica.

    A request goes to the least loaded replica and stays there, so it waits only if the slots of all are busy. The
    growth of the exponent with `peers` is fitted to simulations of that queue (tests/planner/test_plan_router.py).
    """
    exponent = waiting_exponent(slots * peers) * (1 + ROUTED * log(peers))
    return float(load ** (exponent - waiting_exponent(slots)))


def constant_service(servers: int, load: float) -> float:
    """Return the wait of M/D/c over that of M/M/c (Cosmetatos 1975); exactly one half for one server."""
    more = (1 - load) * (servers - 1) * (sqrt(4 + 5 * servers) - 2) / (16 * load * servers)
    return 0.5 * (1 + min(1.0, more))


def constant_wait_s(servers: int, load: float, service_s: float) -> float:
    """Return the wait of M/D/c: that of M/M/c (Sakasegawa 1977) times the factor for constant service."""
    if load <= 0:
        return 0.0
    waits = load ** waiting_exponent(servers) / (servers * (1 - load))
    return float(waits * service_s * constant_service(servers, load))
