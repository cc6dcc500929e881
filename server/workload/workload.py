"""A workload: a list of requests by arrival time, with their lengths in tokens.

Without devices, servers or texts. Times are whole nanoseconds from the first possible arrival, so that sums of
them are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np

from neuronserve.server.clock import NS

MAX_REQUESTS = 100_000_000
MAX_TOKENS = 2**31 - 1
MAX_SECONDS = 10**9  # so that nanoseconds stay exact in 64 bits

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival; request i is element i of each array.

    `prefixes[i]` names the leading blocks of prompt i, `prefix_block` tokens each: equal names mean equal tokens, so
    requests that start with the same names share a prefix. None: no two prompts have anything in common.
    """

    name: str
    arrival_ns: IntArray  # [n], never falling
    input_len: IntArray  # [n], at least 1
    output_len: IntArray  # [n], at least 1
    prefixes: tuple[tuple[int, ...], ...] | None = None
    prefix_block: int = 512
    num_cut: int = 0  # of these, that were longer (context.py)
    num_dropped: int = 0  # that were left out, being too long

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

    @property
    def arrival_s(self) -> FloatArray:
        """[n] seconds."""
        return self.arrival_ns / NS

    @property
    def rate(self) -> float:
        """Requests a second from the first arrival to the last; infinity when all come at once."""
        seconds = float(self.arrival_ns[-1] - self.arrival_ns[0]) / NS
        return (len(self) - 1) / seconds if seconds else float("inf")

    def at_rate(self, rate: float) -> Workload:
        """The same requests with their gaps stretched or shrunk to `rate` a second; as it is when it has no rate."""
        own = self.rate
        return self.at_speed(rate / own) if isfinite(own) and own else self

    def at_speed(self, speed: float) -> Workload:
        """The same requests, `speed` times as fast one after another."""
        return replace(self, arrival_ns=np.rint(self.arrival_ns / speed).astype(np.int64))

    def at_scale(self, scale: float) -> Workload:
        """The same arrivals with all lengths `scale` times as long, at least 1."""
        return replace(
            self,
            input_len=scaled(self.input_len, scale),
            output_len=scaled(self.output_len, scale),
            prefix_block=max(1, round(self.prefix_block * scale)),
        )

    def only(self, is_kept: BoolArray) -> Workload:
        """The requests that `is_kept`, `[n]`, at least one; the first of them is time 0."""
        prefixes = self.prefixes and tuple(name for name, fit in zip(self.prefixes, is_kept, strict=True) if fit)
        kept_ns = self.arrival_ns[is_kept]
        return replace(
            self,
            arrival_ns=kept_ns - kept_ns[0],
            input_len=self.input_len[is_kept],
            output_len=self.output_len[is_kept],
            prefixes=prefixes,
        )


def scaled(lengths: IntArray, scale: float) -> IntArray:
    """Lengths made `scale` times as long, at least 1."""
    rounded: IntArray = np.rint(lengths * scale).astype(np.int64)
    return np.maximum(1, rounded)
