"""Batching policies as data, read by scheduler and planner: which sequences may share a step.

Tokens are the same under each policy, because a sequence's tokens do not depend on the rest of its step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ..config.formats import Batching

# While sequences of an engine that has died are computed again, one step in CATCH_UP_STEPS + 1 has decodes: the clients
# of those sequences have waited longest, and decodes in each step would make the last of them wait half as long again.
CATCH_UP_STEPS = 8


@dataclass(frozen=True, slots=True)
class BatchingPolicy:
    """Rules of one policy. Prompts are new, continued after a chunk, or computed again after a preemption."""

    mixes_phases: bool  # prompts and decodes share a step; otherwise prompts go first, in steps of their own
    max_prompts: int | None  # in one step; None = as many as the token budget takes
    # While sequences decode, prompts wait until there are `waiting_ratio` times as many of them, or until
    # `max_waiting_steps` have passed since the last prompt.
    waiting_ratio: float = 0.0
    max_waiting_steps: float = 0


POLICIES: dict[Batching, BatchingPolicy] = {
    # Decode first, then prompts with what is left of the budget: no prompt delays a token by more than its chunk.
    "continuous": BatchingPolicy(mixes_phases=True, max_prompts=None),
    # NxD Inference (and vLLM on it): context encoding is a graph of batch 1, token generation one of all slots, and a
    # free slot is filled before the others go on.
    "neuron": BatchingPolicy(mixes_phases=False, max_prompts=1),
    # text-generation-inference since 2.0.1: --waiting-served-ratio 0.3, --max-waiting-tokens 20.
    "tgi": BatchingPolicy(mixes_phases=False, max_prompts=None, waiting_ratio=0.3, max_waiting_steps=20),
    # A batch ends before the next begins.
    "static": BatchingPolicy(mixes_phases=False, max_prompts=None, waiting_ratio=inf, max_waiting_steps=inf),
}


class PromptGate:
    """Decides when prompts and decodes share a step, and when a policy that separates them lets prompts in."""

    def __init__(self, policy: BatchingPolicy) -> None:
        self._policy = policy
        self._steps_waited = 0  # decode steps since the last one with prompts
        self._steps_without = 0  # steps since the last one with decodes

    def mixes_phases(self, is_catching_up: bool) -> bool:
        """Return whether prompts and decodes share the next step; rarely while the engine catches up."""
        return self._policy.mixes_phases and (not is_catching_up or self._steps_without >= CATCH_UP_STEPS)

    def is_open(self, num_busy: int, num_waiting: int) -> bool:
        """Return whether enough prompts wait for `num_busy` sequences, or have waited long enough."""
        policy = self._policy
        has_waited = self._steps_waited >= policy.max_waiting_steps
        return has_waited or num_busy == 0 or num_waiting + 1 > num_busy * policy.waiting_ratio

    def heeds_arrivals(self, num_waiting: int) -> bool:
        """Return whether one more arrival may be let in before the decoding sequences end; `num_waiting` wait already.

        Without a ratio, the waiting ones wait for blocks, and none overtakes them; with one, an arrival may open the
        gate.
        """
        policy = self._policy
        return policy.max_waiting_steps < inf and (num_waiting == 0 or policy.waiting_ratio > 0)

    @property
    def steps_left(self) -> float:
        """Decode steps until the gate opens by itself."""
        return self._policy.max_waiting_steps - self._steps_waited

    def passed(self, has_prompts: bool, has_decodes: bool, num_steps: int = 1) -> None:
        """Count the last steps."""
        self._steps_waited = 0 if has_prompts else self._steps_waited + num_steps
        self._steps_without = 0 if has_decodes else self._steps_without + num_steps
