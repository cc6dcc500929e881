"""A runner and an inbox around those of the engine loop that say before each turn by when it should be over.

The parent kills an engine that is not heard of in time (server/link/heartbeat.py). The engine loop knows nothing of it.
"""

from __future__ import annotations

from neuronserve.server.clock import Clock
from neuronserve.server.engine.loop import Inbox, Runner
from neuronserve.server.link.heartbeat import Heartbeat, StepLimit
from neuronserve.server.link.messages import Command
from neuronserve.server.types import StepPlan, StepResult

# What a token of a model is thought to take on a slow host before any was computed: two operations for each parameter.
SLOW_HOST_FLOPS = 2e9


def first_token_s(num_params: int) -> float:
    """Seconds that a token of a model may take before any was seen."""
    return 2 * num_params / SLOW_HOST_FLOPS


class WatchedRunner:
    """Implements neuronserve.server.engine.loop.Runner."""

    def __init__(self, runner: Runner, heartbeat: Heartbeat, limit: StepLimit, clock: Clock) -> None:
        self._runner, self._heartbeat, self._limit, self._clock = runner, heartbeat, limit, clock

    def execute(self, plan: StepPlan) -> StepResult:
        begin = self._clock.now()
        num_prompt_tokens = sum(len(seq.token_ids) for seq in plan.prefill)
        self._heartbeat.expect(begin + self._limit.seconds(num_prompt_tokens))
        result = self._runner.execute(plan)
        now = self._clock.now()
        self._limit.saw(num_prompt_tokens, now - begin)
        self._heartbeat.expect(now + self._limit.FLOOR_S)
        return result


class WatchedInbox:
    """Implements neuronserve.server.engine.loop.Inbox."""

    def __init__(self, inbox: Inbox, heartbeat: Heartbeat, limit: StepLimit, clock: Clock) -> None:
        self._inbox, self._heartbeat, self._limit, self._clock = inbox, heartbeat, limit, clock

    def drain(self, timeout_s: float) -> list[Command]:
        self._heartbeat.expect(self._clock.now() + timeout_s + self._limit.FLOOR_S)
        commands = self._inbox.drain(timeout_s)
        self._heartbeat.expect(self._clock.now() + self._limit.FLOOR_S)
        return commands
