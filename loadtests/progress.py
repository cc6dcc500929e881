"""The live line: counts, latency percentiles and $/1M during a run.

It shares the generator's thread, so it must be cheap: it uses no rich, and percentiles of the latest requests only.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TextIO

import numpy as np

from .cost import TokenCounts, per_million, wall_usd
from .rate import HourRate, rate_of
from .records import RequestRecord
from .specs import PriceSpec

RECENT = 2000  # requests of the percentiles
TTY_PERIOD_S = 0.5
PLAIN_PERIOD_S = 5.0


class Progress:
    """Counts of records; `text` is the line."""

    def __init__(self, name: str, num_requests: int, price: PriceSpec) -> None:
        self._name, self._num_requests, self._price = name, num_requests, price
        self._rate = rate_of(price, None)
        self._start: float | None = None
        self._done = self._failed = 0
        self._prompt = self._cached = self._output = 0
        self._ttft: deque[float] = deque(maxlen=RECENT)
        self._tpot: deque[float] = deque(maxlen=RECENT)

    def use_rate(self, rate: HourRate | str) -> None:
        """Set the price of the server's instance, or the reason why there is none."""
        self._rate = rate

    def note(self, record: RequestRecord) -> None:
        """Count one record; warm-up requests do not count."""
        if record.phase == "warmup":
            return
        if self._start is None:
            self._start = time.monotonic() - record.end_s
        if not record.is_ok:
            self._failed += 1
            return
        self._done += 1
        self._prompt += record.prompt_tokens
        self._cached += record.cached_tokens
        self._output += record.output_tokens
        if record.ttft_s is not None:
            self._ttft.append(record.ttft_s)
        if (tpot := record.tpot_s) is not None:
            self._tpot.append(tpot)

    def text(self) -> str:
        if self._start is None:
            return f"{self._name}: waiting for the first answer"
        elapsed = max(time.monotonic() - self._start, 1e-3)
        failed = f", {self._failed} failed" if self._failed else ""
        return (
            f"{self._name}: {self._done + self._failed}/{self._num_requests}{failed}, {elapsed:.0f} s"
            f", {self._done / elapsed:.1f} req/s, {self._output / elapsed:.0f} tok/s"
            f"{_latency('TTFT', self._ttft)}{_latency('TPOT', self._tpot)}{self._cost(elapsed)}"
        )

    def _cost(self, elapsed_s: float) -> str:
        """Return $/1M output tokens so far, of wall time."""
        found = wall_usd(elapsed_s, self._price, self._rate)
        if found is None:
            return ""
        tokens = TokenCounts(self._prompt - self._cached, self._cached, self._output, None)
        price = per_million(found[0], tokens, self._price)["cost_per_million_output_tokens_usd"]
        return "" if price is None else f", ${price:.3g}/1M out"


async def show(progress: Progress, stream: TextIO) -> None:
    """Write the line until cancelled: redrawn on a terminal, as new lines elsewhere."""
    is_tty = stream.isatty()
    width = 0
    try:
        while True:
            await asyncio.sleep(TTY_PERIOD_S if is_tty else PLAIN_PERIOD_S)
            text = progress.text()
            width = max(width, len(text))
            stream.write(f"\r{text:<{width}}" if is_tty else f"{text}\n")
            stream.flush()
    finally:
        if is_tty and width:
            stream.write(f"\r{progress.text():<{width}}\n")
            stream.flush()


def _latency(name: str, seconds: deque[float]) -> str:
    if not seconds:
        return ""
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    return f", {name} p50 {p50:.1f} p99 {p99:.1f} ms"
