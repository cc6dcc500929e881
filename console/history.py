"""History for the pages: the steps of the last minute, the last requests, and the totals of an hour.

Pure records in rings of fixed size; adding a step costs about a microsecond, whether a page is open or not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from ..server.api.telemetry.lifecycle import RequestLife
from ..server.clock import NS
from ..server.cost.charge_rate import ChargeRate
from ..server.device.prices import usd_per_million
from ..server.types import StepReport
from .cost_window import CostWindow

BIN_S = 0.1
NUM_BINS = 600  # a minute, for each engine
NUM_REQUESTS = 200
NUM_LENGTHS = 10_000  # requests whose lengths are the traffic to plan for
SAMPLE_S = 1.0
HOUR_S = 3600.0


@dataclass(slots=True)
class StepBin:
    """Steps that ended in one tenth of a second."""

    number: int  # tenths of a second of the host's monotonic clock
    num_steps: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_prefill_padding: int = 0
    num_decode_padding: int = 0
    prefill_ns: int = 0  # of the modelled accelerator
    decode_ns: int = 0

    def add(self, report: StepReport) -> None:
        """Add one step."""
        self.num_steps += 1
        self.num_prefill_tokens += report.num_prefill_tokens
        self.num_decode_tokens += report.num_decode_tokens
        if (device := report.device) is not None:
            self.num_prefill_padding += device.num_prefill_padding
            self.num_decode_padding += device.num_decode_padding
            self.prefill_ns += device.prefill_ns
            self.decode_ns += device.decode_ns

    def row(self, engine: int) -> list[int]:
        """Return the values in the format of a page."""
        return [
            engine,
            self.number,
            self.num_steps,
            self.num_prefill_tokens,
            self.num_decode_tokens,
            self.num_prefill_padding,
            self.num_decode_padding,
            self.prefill_ns,
            self.decode_ns,
        ]


class StepHistory:
    """Steps of one engine in the last minute."""

    def __init__(self) -> None:
        self._bins: deque[StepBin] = deque(maxlen=NUM_BINS)

    def add(self, report: StepReport) -> None:
        """Add one turn of the engine."""
        if not report.num_tokens:
            return
        number = int(report.time / BIN_S)
        if not self._bins or self._bins[-1].number != number:
            self._bins.append(StepBin(number))
        self._bins[-1].add(report)

    def since(self, number: int) -> Iterable[StepBin]:
        """Return the bins from `number` on, oldest first."""
        found: list[StepBin] = []
        for each in reversed(self._bins):
            if each.number < number:
                break
            found.append(each)
        return reversed(found)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of all engines since the start."""

    time_s: float
    wall_ns: int  # since the engines were ready
    busy_ns: int
    idle_ns: int
    num_prompt_tokens: int  # computed
    num_cached_tokens: int  # tokens of prompts found in the cache
    num_output_tokens: int

    def since(self, before: Totals) -> Totals:
        """Return the difference; `time_s` is the time between."""
        return Totals(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))

    def towards(self, later: Totals, time_s: float) -> Totals:
        """Return the sums at a time between these and `later`, as if they had grown evenly."""
        share = (time_s - self.time_s) / (later.time_s - self.time_s)
        grown = (
            then + round(share * (now - then)) for now, then in zip(astuple(later)[1:], astuple(self)[1:], strict=True)
        )
        return Totals(time_s, *grown)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_cached_tokens + self.num_output_tokens

    def cost(self, rate: ChargeRate) -> dict[str, Any]:
        """Return the tokens of a window, and its dollars as in `CostWindow`."""
        window = CostWindow(rate, self.wall_ns, self.busy_ns, self.idle_ns, self.num_tokens)
        return {
            "seconds": self.time_s,
            "prompt_tokens": self.num_prompt_tokens,
            "cached_tokens": self.num_cached_tokens,
            "output_tokens": self.num_output_tokens,
            **window.as_json(),
            "usd_per_million_output_tokens": usd_per_million(window.usd, self.num_output_tokens),
        }


class TotalsHistory:
    """Totals of the last hour, at most two a second.

    Samples are needed while tokens come, when the last open request has ended, and at a look; between them the totals
    grow evenly, or nothing but wall clock and idle time does.
    """

    def __init__(self, first: Totals) -> None:
        self._samples: deque[Totals] = deque([first])

    def is_due(self, now: float) -> bool:
        """Return whether the last sample is old enough for another."""
        return now - self._samples[-1].time_s >= SAMPLE_S

    def add(self, totals: Totals) -> None:
        """Add a sample. It replaces one that is less than a period behind its predecessor."""
        samples = self._samples
        if len(samples) > 1 and samples[-1].time_s - samples[-2].time_s < SAMPLE_S:
            samples.pop()
        samples.append(totals)
        while len(samples) > 1 and samples[1].time_s <= totals.time_s - HOUR_S:
            samples.popleft()

    def at(self, time_s: float) -> Totals:
        """Return the totals at `time_s`; the first or the last sample if it is before or after all."""
        later = bisect_right(self._samples, time_s, key=lambda sample: sample.time_s)
        if later in (0, len(self._samples)):
            return self._samples[max(0, later - 1)]
        return self._samples[later - 1].towards(self._samples[later], time_s)


@dataclass(slots=True)
class RequestHistory:
    """The last requests that ended, and the lengths of many more."""

    ended: deque[tuple[int, dict[str, Any]]] = field(default_factory=lambda: deque(maxlen=NUM_REQUESTS))
    lengths: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=NUM_LENGTHS))
    num_ended: int = 0

    def add(self, life: RequestLife, rate: ChargeRate) -> None:
        """Record the end of a request."""
        self.num_ended += 1
        self.ended.append((self.num_ended, request_row(life, rate)))
        for group in life.groups:
            if num_tokens := sum(each.num_tokens for each in group):
                self.lengths.append((life.origin.arrival_time, group[0].num_prompt_tokens, num_tokens))

    def since(self, number: int) -> list[dict[str, Any]]:
        """Return the requests that ended after the first `number` ones, oldest first."""
        return [row for each, row in self.ended if each > number]

    def traffic(self) -> Sequence[tuple[float, int, int]]:
        """Return arrival, prompt tokens and output tokens of the last answered prompts, by arrival."""
        return sorted(self.lengths)


def request_row(life: RequestLife, rate: ChargeRate) -> dict[str, Any]:
    """Return one request in the format of a page: times in seconds, absolute ones of the host's monotonic clock."""
    whole, lives = life.whole, list(life.sequences.values())
    device_ns = sum(each.charge.device_ns for each in lives)
    return {
        "id": life.origin.request_id,
        "sequences": list(life.sequences),
        "key": life.origin.caller.name,
        "engine": lives[0].engine,
        "arrival": life.origin.arrival_time,
        "end": life.end_time,
        "queue_s": whole.queue_s,
        "prefill_s": whole.prefill_s,
        "decode_s": whole.decode_s,
        "ttft_s": life.ttft_s,
        "e2e_s": life.e2e_s,
        "prompt_tokens": life.num_prompt_tokens,
        "cached_tokens": sum(group[0].num_cached_tokens for group in life.groups),
        "output_tokens": life.num_tokens,
        "max_tokens": life.sampling.max_tokens,
        "preemptions": sum(each.num_preemptions for each in lives),
        "finish": sorted({each.finish_reason for each in lives if each.finish_reason is not None}),
        "device_s": device_ns / NS,
        "usd": rate.usd(device_ns),
        "is_extrapolated": any(each.charge.is_extrapolated for each in lives),
    }
