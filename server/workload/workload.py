"""What arrives and when: a list of requests by arrival time, lengths in tokens, and seeded synthetic ones.

Knows nothing of devices. Times are whole nanoseconds from the first possible arrival, so that sums of them are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from server.clock import NS
from server.errors import SettingsError

ArrivalProcess = Literal["poisson", "gamma", "constant"]
ARRIVALS: tuple[ArrivalProcess, ...] = ("poisson", "gamma", "constant")
MAX_REQUESTS = 100_000_000
MAX_TOKENS = 2**31 - 1
MAX_SECONDS = 10**9  # so that nanoseconds stay exact in 64 bits

LengthArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival; request i is element i of each array.

    `prefixes[i]` names the leading blocks of prompt i, `prefix_block` tokens each: equal names mean equal tokens, so
    requests that start with the same names share a prefix. None: no two prompts have anything in common.
    """

    name: str
    arrival_ns: LengthArray  # [n], never falling
    input_len: LengthArray  # [n], at least 1
    output_len: LengthArray  # [n], at least 1
    prefixes: tuple[tuple[int, ...], ...] | None = None
    prefix_block: int = 512

    def __post_init__(self) -> None:
        """Raises ValueError for arrays that are no workload."""
        size = len(self.arrival_ns)
        if not size == len(self.input_len) == len(self.output_len):
            raise ValueError(f"{size} arrivals, {len(self.input_len)} inputs, {len(self.output_len)} outputs")
        if size and (np.any(np.diff(self.arrival_ns) < 0) or self.arrival_ns[0] < 0):
            raise ValueError("arrivals are not in order of time from 0")
        if size and min(int(self.input_len.min()), int(self.output_len.min())) < 1:
            raise ValueError("each request has at least 1 input and 1 output token")

    def __len__(self) -> int:
        return len(self.arrival_ns)


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Tokens, uniform over `low` to `high`, both included; one fixed length when they are equal."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str, name: str) -> LengthRange:
        """ "512" or "256:1024". Raises SettingsError that speaks of `name`."""
        low, _, high = text.partition(":")
        try:
            lengths = cls(int(low), int(high or low))
        except ValueError:
            raise SettingsError(f"{name} is {text!r}: give a number of tokens, or LOW:HIGH") from None
        lengths.check(name)
        return lengths

    def check(self, name: str) -> None:
        """Raises SettingsError when it is no range of lengths."""
        if not 1 <= self.low <= self.high <= MAX_TOKENS:
            raise SettingsError(
                f"{name} is {self.low}:{self.high}: lengths rise from at least 1 to at most {MAX_TOKENS}"
            )


@dataclass(frozen=True, slots=True)
class SyntheticWorkload:
    """`num_requests` independent requests at `rate` a second; the same fields give the same requests."""

    num_requests: int
    rate: float  # requests a second; infinity: all at once
    input_len: LengthRange
    output_len: LengthRange
    arrivals: ArrivalProcess = "poisson"
    burstiness: float = 1.0  # shape of the gamma gaps: 1 = Poisson, less = burstier, more = more even
    seed: int = 0

    def generate(self) -> Workload:
        """Raises SettingsError for numbers that describe no workload."""
        self._check()
        random = np.random.default_rng(self.seed)
        gaps = self._gaps(random)
        times = np.cumsum(gaps)
        if times[-1] >= MAX_SECONDS:
            raise SettingsError(
                f"{self.num_requests} requests at {self.rate:g} a second take over {MAX_SECONDS} seconds"
            )
        return Workload(
            name=f"{self.arrivals}, {self.rate:g} requests/s, seed {self.seed}",
            arrival_ns=np.rint(times * NS).astype(np.int64),
            input_len=_draw(random, self.input_len, self.num_requests),
            output_len=_draw(random, self.output_len, self.num_requests),
        )

    def _gaps(self, random: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Seconds before each request; the first comes at 0, as load tools send it."""
        mean, size = 1 / self.rate, self.num_requests
        if self.arrivals == "constant" or mean == 0:
            gaps = np.full(size, mean)
        elif self.arrivals == "poisson":
            gaps = random.exponential(mean, size)
        else:
            gaps = random.gamma(self.burstiness, mean / self.burstiness, size)
        gaps[0] = 0.0
        return gaps

    def _check(self) -> None:
        if not 1 <= self.num_requests <= MAX_REQUESTS:
            raise SettingsError(f"the number of requests is {self.num_requests}: it is 1 to {MAX_REQUESTS}")
        if not self.rate > 0:
            raise SettingsError(f"the request rate is {self.rate:g} a second: it must be above 0")
        if self.arrivals not in ARRIVALS:
            raise SettingsError(f"arrivals {self.arrivals!r} are none of {', '.join(ARRIVALS)}")
        if not 0 < self.burstiness < float("inf"):
            raise SettingsError(f"burstiness is {self.burstiness:g}: it must be above 0 and finite")
        if self.seed < 0:
            raise SettingsError(f"the seed is {self.seed}: it must be at least 0")
        self.input_len.check("the input length")
        self.output_len.check("the output length")


def _draw(random: np.random.Generator, lengths: LengthRange, size: int) -> LengthArray:
    return random.integers(lengths.low, lengths.high, size, dtype=np.int64, endpoint=True)
