"""What a step may hold together: policies as data, read by scheduler and planner. Decides nothing of sequences.

Tokens are the same under each of them, because a sequence's tokens do not depend on what it shares a step with.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from neuronserve.server.config.formats import Batching

# While sequences of an engine that has died are computed again, so many steps hold no decodes, and then one does: their
# clients have waited since, and a decode that shares each of those steps would make the last wait half as long again.
CATCH_UP_STEPS = 8


@dataclass(frozen=True, slots=True)
class BatchingPolicy:
    """Prompts are those that begin, go on after a chunk, or are computed again."""

    mixes_phases: bool  # prompts and decodes share a step; otherwise prompts go first, in steps of their own
    max_prompts: int | None  # of one step; None = as many as the token budget takes
    # While sequences decode, prompts wait until they are so many times as many, or so many steps have passed since the
    # last prompt.
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
    # A batch that is given out before the next begins.
    "static": BatchingPolicy(mixes_phases=False, max_prompts=None, waiting_ratio=inf, max_waiting_steps=inf),
}


class PromptGate:
    """When prompts and decodes share a step, and when a policy that keeps them apart lets prompts in before decodes."""

    def __init__(self, policy: BatchingPolicy) -> None:
        self._policy = policy
        self._steps_waited = 0  # decode steps since the last one with prompts
        self._steps_without = 0  # steps since the last one with decodes

    def mixes_phases(self, is_catching_up: bool) -> bool:
        """Whether prompts and decodes share the next step; of an engine that catches up on one before it, few do."""
        return self._policy.mixes_phases and (not is_catching_up or self._steps_without >= CATCH_UP_STEPS)

    def is_open(self, num_busy: int, num_waiting: int) -> bool:
        """Whether those that wait are enough for so many busy sequences, or have waited long enough."""
        policy = self._policy
        has_waited = self._steps_waited >= policy.max_waiting_steps
        return has_waited or num_busy == 0 or num_waiting + 1 > num_busy * policy.waiting_ratio

    def heeds_arrivals(self, num_waiting: int) -> bool:
        """Whether one more may be let in before the sequences that decode have ended; so many wait already.

        They do for blocks where only those can hold them, and nobody overtakes them; else one more may open the gate.
        """
        policy = self._policy
        return policy.max_waiting_steps < inf and (num_waiting == 0 or policy.waiting_ratio > 0)

    @property
    def steps_left(self) -> float:
        """Decode steps until it opens by itself."""
        return self._policy.max_waiting_steps - self._steps_waited

    def passed(self, has_prompts: bool, has_decodes: bool, num_steps: int = 1) -> None:
        """Note what the last steps were."""
        self._steps_waited = 0 if has_prompts else self._steps_waited + num_steps
        self._steps_without = 0 if has_decodes else self._steps_without + num_steps
