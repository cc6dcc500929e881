"""Log lines about engines: throughput at intervals, a warning when the host is too slow for `--pace device`, and with
--log-level debug the durations of each request's phases.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from ...clock import NS, Clock
from ...link.messages import Tokens
from ...types import StepReport
from .lifecycle import RequestLife

log = logging.getLogger("neuronserve.stats")
requests_log = logging.getLogger("neuronserve.requests")
pace_log = logging.getLogger("neuronserve.pace")
INTERVAL_S = 10.0  # between two lines
MIN_STEPS = 100  # that a line needs
TOLERATED = 0.01  # share of late steps that is not reported


class ThroughputLog:
    """Sums of an interval over all engines. `record` observes their clients; `line` begins the next interval.

    Running and waiting sequences and used blocks are those of living engines that have had work.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.is_alive: Callable[[int], bool] = lambda _: True  # whether an engine's last report still holds
        self._begin = clock.now()
        self._num_prefill = 0
        self._num_generated = 0
        self._last: dict[int, StepReport] = {}  # of each engine
        self._prefix = (0, 0)  # queries and hits in earlier lines

    def record(self, tokens: Tokens, engine: int = 0) -> None:
        """Add one turn of an engine."""
        self._last[engine] = tokens.report
        self._num_prefill += tokens.report.num_prefill_tokens
        self._num_generated += tokens.num_generated

    def line(self) -> str | None:
        """Return the line for the time since the last call; None when nothing was computed."""
        now = self._clock.now()
        seconds, self._begin = now - self._begin, now
        prefill, self._num_prefill = self._num_prefill, 0
        generated, self._num_generated = self._num_generated, 0
        reports = [report for engine, report in self._last.items() if self.is_alive(engine)]
        if not (prefill or generated) or seconds <= 0 or not reports:
            return None
        used = 1 - sum(report.num_free_blocks for report in reports) / sum(report.num_blocks - 1 for report in reports)
        return (
            f"prompts {prefill / seconds:,.1f} tokens/s, generation {generated / seconds:,.1f} tokens/s, "
            f"running {sum(report.num_running for report in reports)}, "
            f"waiting {sum(report.num_waiting for report in reports)}, KV cache {used:.1%}{self._hits()}"
        )

    async def run(self, interval_s: float) -> None:
        """Log a line every `interval_s` seconds; never return."""
        while True:
            await asyncio.sleep(interval_s)
            if (line := self.line()) is not None:
                log.info("%s", line)

    def _hits(self) -> str:
        reports = self._last.values()
        reported, self._prefix = (
            self._prefix,
            (sum(r.prefix_queries for r in reports), sum(r.prefix_hits for r in reports)),
        )
        queries, hits = self._prefix[0] - reported[0], self._prefix[1] - reported[1]
        return f", prefix cache hits {hits / queries:.1%}" if queries else ""


class PaceLog:
    """Warns about late steps of one engine; `record` observes its client.

    The first warning may come after `MIN_STEPS`, later ones once an interval.
    """

    def __init__(self) -> None:
        self._judged_s = -math.inf
        self._num_steps = self._num_late = self._lag_ns = 0

    def record(self, tokens: Tokens) -> None:
        """Add one turn of the engine."""
        report = tokens.report
        if report.device is None or report.device.late_ns is None:
            return
        self._num_steps += 1
        self._num_late += report.device.is_late
        self._lag_ns += report.device.lag_ns
        if self._num_steps >= MIN_STEPS and report.time - self._judged_s >= INTERVAL_S:
            self._judge()
            self._judged_s, self._num_steps, self._num_late, self._lag_ns = report.time, 0, 0, 0

    def _judge(self) -> None:
        share = self._num_late / self._num_steps
        if share > TOLERATED:
            pace_log.warning(
                "the host is too slow for --pace device: %.1f %% of the last %d steps were late, %.1f ms were lost; "
                "latencies are longer than the accelerator's",
                100 * share,
                self._num_steps,
                self._lag_ns / NS * 1e3,
            )


def log_phases(life: RequestLife) -> None:
    """Log one line for each sequence: its engine, milliseconds of its phases, and its finish reason."""
    for request_id, each in life.sequences.items():
        phases = {"queue": each.queue_s, "prefill": each.prefill_s, "decode": each.decode_s}
        times = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in phases.items() if seconds is not None)
        tokens = f"{each.num_prompt_tokens} ({each.num_cached_tokens} cached) + {each.num_tokens} tokens"
        modelled = f"{each.num_preemptions} preemptions, {each.charge.device_ns / 1e6:.2f} ms of the accelerator"
        words = (life.origin.request_id, request_id, each.engine, times or "never scheduled", tokens, modelled)
        requests_log.debug("request %s, sequence %s on engine %d: %s; %s; %s; ended: %s", *words, each.finish_reason)
