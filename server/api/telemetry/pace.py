"""Says in the log when the host is too slow for `--pace device`."""

from __future__ import annotations

import logging

from server.clock import NS
from server.engine.messages import Tokens

log = logging.getLogger("neuronserve.pace")
INTERVAL_S = 10.0
TOLERATED = 0.01  # share of late steps that is not worth a line


class PaceWatch:
    """`turn` is the client's observer. Tells of an interval at the first step after it."""

    def __init__(self) -> None:
        self._begin_s: float | None = None
        self._num_steps = self._num_late = self._lag_ns = 0

    def turn(self, tokens: Tokens) -> None:
        """Add one turn of the engine."""
        report = tokens.report
        if report.device is None or report.device.late_ns is None:
            return
        if self._begin_s is None:
            self._begin_s = report.time
        elif report.time - self._begin_s >= INTERVAL_S:
            self._tell()
            self._begin_s = report.time
            self._num_steps = self._num_late = self._lag_ns = 0
        self._num_steps += 1
        self._num_late += report.device.is_late
        self._lag_ns += report.device.lag_ns

    def _tell(self) -> None:
        share = self._num_late / self._num_steps
        if share > TOLERATED:
            log.warning(
                "the host is too slow for --pace device: %.1f %% of the last %d steps were late, %.1f ms were lost; "
                "latencies are longer than the part's",
                100 * share,
                self._num_steps,
                self._lag_ns / NS * 1e3,
            )
