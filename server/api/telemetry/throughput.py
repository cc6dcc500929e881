"""One log line per interval on what the engine does, while it does something."""

from __future__ import annotations

import asyncio
import logging

from server.clock import Clock
from server.engine.messages import Tokens
from server.types import StepReport

log = logging.getLogger("neuronserve.stats")


class ThroughputLog:
    """`turn` is the client's observer: it adds up; `line` tells the sums of an interval and begins the next."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin = clock.now()
        self._num_prefill = 0
        self._num_generated = 0
        self._last: StepReport | None = None
        self._prefix = (0, 0)  # queries and hits that earlier lines have told

    def turn(self, tokens: Tokens) -> None:
        """Add one turn of the engine."""
        self._last = tokens.report
        self._num_prefill += tokens.report.num_prefill_tokens
        self._num_generated += sum(event.token_id is not None for event in tokens.events)

    def line(self) -> str | None:
        """What happened since the last call; None when nothing did."""
        now = self._clock.now()
        seconds, self._begin = now - self._begin, now
        prefill, self._num_prefill = self._num_prefill, 0
        generated, self._num_generated = self._num_generated, 0
        report = self._last
        if report is None or not (prefill or generated) or seconds <= 0:
            return None
        used = 1 - report.num_free_blocks / (report.num_blocks - 1)
        return (
            f"prompts {prefill / seconds:,.1f} tokens/s, generation {generated / seconds:,.1f} tokens/s, "
            f"running {report.num_running}, waiting {report.num_waiting}, KV cache {used:.1%}{self._hits(report)}"
        )

    async def run(self, interval_s: float) -> None:
        """Log for ever."""
        while True:
            await asyncio.sleep(interval_s)
            if (line := self.line()) is not None:
                log.info("%s", line)

    def _hits(self, report: StepReport) -> str:
        queries, hits = report.prefix_queries - self._prefix[0], report.prefix_hits - self._prefix[1]
        self._prefix = (report.prefix_queries, report.prefix_hits)
        return f", prefix cache hits {hits / queries:.1%}" if queries else ""
