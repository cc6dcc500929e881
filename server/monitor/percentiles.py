"""Percentiles of what a histogram has taken in between two scrapes, as Prometheus's histogram_quantile finds them."""

from __future__ import annotations

from server.monitor.scrape import Window

PERCENTILES = (0, 1, 25, 50, 75, 99, 100)


def histogram_percentiles(window: Window, family: str) -> dict[str, float] | None:
    """Seconds by name such as p50, linear inside a bucket; None when nothing was observed.

    p0 and p100 are bounds of buckets. What lies above the last finite bound counts as that bound.
    """
    buckets = sorted((float(le), window.increase(f"{family}_bucket", le=le)) for (le,) in _bounds(window, family))
    if not buckets or buckets[-1][1] <= 0:
        return None
    return {f"p{p}": _percentile(buckets, p / 100) for p in PERCENTILES}


def _bounds(window: Window, family: str) -> list[tuple[str, ...]]:
    return list(window.after.by(f"{family}_bucket", "le"))


def _percentile(buckets: list[tuple[float, float]], share: float) -> float:
    """`buckets` are (upper bound, cumulative count), the last bound being infinite."""
    rank, low, below = share * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count > below and count >= rank:
            return low if bound == float("inf") else low + (bound - low) * (rank - below) / (count - below)
        if bound != float("inf"):
            low, below = bound, count
    return low
