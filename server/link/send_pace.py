"""When an engine's turns are sent to the API: at once, or several together while the API has little idle time.

A message wakes the API, which wakes every client: work that takes the same time for one token of each as for several.
"""

from __future__ import annotations

from .messages import Tokens

TOKEN_S = 25e-6  # the API's time for a token, by `python -m benchmarks.promises --pace host --only HTTP` on a Zen 5
SHARE = 1 / 6  # of the time that tokens may take before turns wait
MOST_TURNS = 4  # as short as that share allows; more of shorter ones
MAX_WAIT_S = 0.02


class SendPace:
    """Messages that are apart while tokens take much of the API's time. One sequence alone never waits."""

    def __init__(self) -> None:
        self._last_s = self._sent_s = 0.0  # times of the last turn, and of the last one that was sent at once

    def waits(self, turn: Tokens) -> bool:
        """Return whether a turn waits for the next one, which follows soon: all is decoded and no prompt waits.

        First and last tokens never wait.
        """
        report, busy_s = turn.report, (len(turn.events) - 1) * TOKEN_S / SHARE
        now, step_s, self._last_s = report.time, report.time - self._last_s, report.time
        waits = (
            step_s < busy_s
            and now - self._sent_s < min(MAX_WAIT_S, MOST_TURNS * busy_s)
            and not (report.num_waiting or report.num_prefill_tokens)
            and all(event.index and event.finish_reason is None for event in turn.events)
        )
        if not waits:
            self._sent_s = now
        return waits
