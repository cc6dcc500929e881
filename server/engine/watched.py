"""A runner that writes to the heartbeat, before each step, the time by which the step should be over.

The parent kills an engine that misses that time (server/link/heartbeat.py). The engine loop knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable

from ..clock import Clock
from ..link.heartbeat import Heartbeat, StepLimit
from ..types import StepPlan, StepResult
from .loop import Pending, Runner

SLOW_HOST_FLOPS = 2e9  # assumed of a host before it has computed a token; a token takes two operations a parameter


def first_token_s(num_params: int) -> float:
    """Seconds that a token of a model may take before the first was computed."""
    return 2 * num_params / SLOW_HOST_FLOPS


class WatchedRunner:
    """Implements neuronserve.server.engine.loop.Runner."""

    def __init__(
        self,
        runner: Runner,
        heartbeat: Heartbeat,
        limit: StepLimit,
        clock: Clock,
        saw: Callable[[int, float], None] | None = None,
    ) -> None:
        """`saw` receives the prompt tokens and the seconds of each step."""
        self._saw = saw
        self._runner, self._heartbeat, self._limit, self._clock = runner, heartbeat, limit, clock

    def submit(self, plan: StepPlan) -> Pending:
        begin = self._clock.now()
        num_prompt_tokens = plan.num_encoder_tokens + sum(len(seq.token_ids) for seq in plan.prefill)
        self._heartbeat.expect(begin + self._limit.seconds(num_prompt_tokens))
        pending = self._runner.submit(plan)

        def collect() -> StepResult:
            result = pending()
            now = self._clock.now()
            self._limit.saw(num_prompt_tokens, now - begin)
            self._heartbeat.expect(now + self._limit.FLOOR_S)
            if self._saw is not None:
                self._saw(num_prompt_tokens, now - begin)
            return result

        return collect
