"""Times of requests at one load, and limits on them: means, and quantiles by the shape of each wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp
from statistics import NormalDist
from typing import Literal

BISECTIONS = 24
LONGEST = 50.0  # longest wait of the search, in multiples of the mean


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait of a share of the requests: `least_s` plus an exponential or even time of mean `mean_s`."""

    share: float
    mean_s: float
    least_s: float = 0.0
    is_even: bool = False  # between 0 and twice the mean

    def beyond(self, seconds: float) -> float:
        """Return the share of all requests that wait longer than `seconds`."""
        more = seconds - self.least_s
        if more <= 0:
            return self.share
        if self.mean_s <= 0:
            return 0.0
        return self.share * (max(0.0, 1 - more / (2 * self.mean_s)) if self.is_even else exp(-more / self.mean_s))


@dataclass(frozen=True, slots=True)
class MeanTimes:
    """Mean times of requests at one load."""

    ttft_s: float
    tpot_s: float  # 0 when requests have one output token
    wait_s: float = 0.0  # wait for other requests, part of the TTFT
    waits: tuple[Wait, ...] = ()  # a request has one of them or none; their means add up to `wait_s`
    tpot_sd_s: float = 0.0  # of the requests' own means

    def ttft_quantile_s(self, share: float) -> float:
        """Return the TTFT that `share` of the requests do not exceed."""
        low, high = 0.0, LONGEST * max((wait.least_s + wait.mean_s for wait in self.waits), default=0.0)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._waits_beyond(middle) > 1 - share else (low, middle)
        return self.ttft_s - self.wait_s + high

    def ttft_beyond(self, seconds: float) -> float:
        """Return the share of the requests whose TTFT is longer than `seconds`."""
        wait_s = seconds - (self.ttft_s - self.wait_s)
        return 1.0 if wait_s < 0 else self._waits_beyond(wait_s)

    def _waits_beyond(self, seconds: float) -> float:
        return sum([wait.beyond(seconds) for wait in self.waits])

    def tpot_quantile_s(self, share: float) -> float:
        """Return the time per token that `share` of the requests do not exceed, by the normal distribution."""
        return self.tpot_s + self.tpot_sd_s * NormalDist().inv_cdf(share)

    def within(self, limits: Iterable[Limit]) -> bool:
        return all(limit.is_kept(self) for limit in limits)


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of the mean, or of a quantile, of a time."""

    figure: Literal["TTFT", "TPOT"]
    seconds: float
    share: float | None = None  # of the requests that keep it; None: their mean does

    @property
    def name(self) -> str:
        """Name such as `TTFT` or `TTFT p95`."""
        return self.figure if self.share is None else f"{self.figure} p{self.share * 100:g}"

    def of(self, times: MeanTimes) -> float:
        """Return the limited figure, in seconds."""
        if self.share is None:
            return times.ttft_s if self.figure == "TTFT" else times.tpot_s
        quantile = times.ttft_quantile_s if self.figure == "TTFT" else times.tpot_quantile_s
        return quantile(self.share)

    def is_kept(self, times: MeanTimes) -> bool:
        """Return whether the figure is within the limit."""
        if self.figure == "TTFT" and self.share is not None:
            return times.ttft_beyond(self.seconds) <= 1 - self.share
        return self.of(times) <= self.seconds
