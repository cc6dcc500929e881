"""A workload: a list of requests by arrival time, with their lengths in tokens.

It has no devices, servers or texts. Times are whole nanoseconds since the first possible arrival, so sums are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal, get_args

import numpy as np

from ..server.clock import NS
from ..server.errors import SettingsError

MAX_REQUESTS = 100_000_000
MAX_TOKENS = 2**31 - 1
MAX_SECONDS = 10**9  # so that nanoseconds stay exact in 64 bits

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival; request i is element i of each array.

    `prefixes[i]` names the leading blocks of prompt i, `prefix_block` tokens each. Equal names mean equal tokens, so
    requests that begin with the same names share a prefix. None: no two prompts share tokens.
    """

    name: str
    arrival_ns: IntArray  # [n], ascending
    input_len: IntArray  # [n], at least 1
    output_len: IntArray  # [n], at least 1
    prefixes: tuple[tuple[int, ...], ...] | None = None
    prefix_block: int = 512
    num_cut: int = 0  # requests that `fit_context` has cut
    num_dropped: int = 0  # requests that `fit_context` has left out

    def __post_init__(self) -> None:
        """Raise ValueError for arrays that are no workload."""
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
        """Arrival times `[n]` in seconds."""
        return self.arrival_ns / NS

    @property
    def rate(self) -> float:
        """Requests a second from the first arrival to the last; infinity when all arrive at once."""
        seconds = float(self.arrival_ns[-1] - self.arrival_ns[0]) / NS
        return (len(self) - 1) / seconds if seconds else float("inf")

    def at_rate(self, rate: float) -> Workload:
        """Return the workload with its gaps scaled to `rate` requests a second; unchanged if it has no finite rate."""
        own = self.rate
        return self.at_speed(rate / own) if isfinite(own) and own else self

    def at_speed(self, speed: float) -> Workload:
        """Return the workload with arrivals `speed` times as fast."""
        return replace(self, arrival_ns=np.rint(self.arrival_ns / speed).astype(np.int64))

    def at_scale(self, scale: float) -> Workload:
        """Return the workload with all lengths `scale` times as long, at least 1."""
        return replace(
            self,
            input_len=scaled(self.input_len, scale),
            output_len=scaled(self.output_len, scale),
            prefix_block=max(1, round(self.prefix_block * scale)),
        )

    def only(self, is_kept: BoolArray) -> Workload:
        """Return the requests flagged in `is_kept`, `[n]`, at least one. The first one arrives at 0."""
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
    """Return lengths `scale` times as long, at least 1."""
    rounded: IntArray = np.rint(lengths * scale).astype(np.int64)
    return np.maximum(1, rounded)


TooLong = Literal["cut", "drop", "refuse"]
TOO_LONG: tuple[TooLong, ...] = get_args(TooLong)


def fit_context(workload: Workload, max_model_len: int, too_long: TooLong) -> Workload:
    """Return the workload with at most `max_model_len` tokens a request, prompt and answer together.

    "cut" shortens prompts at their ends, so they still share their prefixes, and answers only if they alone are too
    long. "drop" leaves out long requests. "refuse" changes nothing. Raises SettingsError for a context below 2 tokens,
    and when no request is left.
    """
    if too_long not in TOO_LONG:
        raise SettingsError(f"too_long is {too_long!r}: one of {', '.join(TOO_LONG)}")
    if max_model_len < 2:
        raise SettingsError(f"max_model_len is {max_model_len}: it must be at least 2")
    is_long: BoolArray = workload.input_len + workload.output_len > max_model_len
    count = int(is_long.sum())
    if too_long == "refuse" or not count:
        return workload
    if too_long == "cut":
        return replace(_cut(workload, max_model_len), num_cut=count)
    if count == len(workload):
        raise SettingsError(f"{workload.name}: each request is longer than max_model_len {max_model_len}")
    return replace(workload.only(~is_long), num_dropped=count)


def _cut(workload: Workload, most: int) -> Workload:
    outputs = np.minimum(workload.output_len, most - 1)
    inputs = np.minimum(workload.input_len, most - outputs)
    prefixes = workload.prefixes
    if prefixes is not None:
        num_blocks = (-(-inputs // workload.prefix_block)).tolist()
        prefixes = tuple(names[:count] for names, count in zip(prefixes, num_blocks, strict=True))
    return replace(workload, input_len=inputs, output_len=outputs, prefixes=prefixes)
