"""When an engine's turns are sent to the API: at once, or several together while steps are short and sequences many.

A message wakes the API, which wakes every client: work that takes the same time for one token of each as for several.
"""

from __future__ import annotations

from .messages import Tokens

WRITE_S = 10e-6  # processor time of one write to a local client
SHARE = 1 / 32  # of the time that writes may take, one write of each message aside
MAX_WAIT_S = 0.02


class SendPace:
    """Messages so far apart that writes to clients take a small share of the time. One sequence alone never waits."""

    def __init__(self) -> None:
        self._next_s = 0.0  # until then turns may wait

    def waits(self, turn: Tokens) -> bool:
        """Return whether a turn waits for the next one, which follows soon: all is decoded and no prompt waits.

        First and last tokens never wait.
        """
        report = turn.report
        if (
            report.time < self._next_s
            and not (report.num_waiting or report.num_prefill_tokens)
            and all(event.index and event.finish_reason is None for event in turn.events)
        ):
            return True
        self._next_s = report.time + min(MAX_WAIT_S, (len(turn.events) - 1) * WRITE_S / SHARE)
        return False
