"""Says in the log when the host is too slow for `--pace device`."""

from __future__ import annotations

import logging
import math

from server.clock import NS
from server.link.messages import Tokens

log = logging.getLogger("neuronserve.pace")
INTERVAL_S = 10.0  # between two lines
MIN_STEPS = 100  # that a line is about
TOLERATED = 0.01  # share of late steps that is not worth a line


class PaceWatch:
    """`turn` is the client's observer. Judges the first steps at once, and then those of every interval."""

    def __init__(self) -> None:
        self._judged_s = -math.inf
        self._num_steps = self._num_late = self._lag_ns = 0

    def turn(self, tokens: Tokens) -> None:
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
            log.warning(
                "the host is too slow for --pace device: %.1f %% of the last %d steps were late, %.1f ms were lost; "
                "latencies are longer than the part's",
                100 * share,
                self._num_steps,
                self._lag_ns / NS * 1e3,
            )
