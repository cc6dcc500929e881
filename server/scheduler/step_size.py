"""How many prompt tokens a step takes beside sequences that decode: by the time that these may wait. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Literal

from .sequence import Sequence
from .step import StepDraft
from .step_rates import StepRates

LEAST_TOKENS = 16  # prompts advance by so many, however little time there is
# With target auto, a step's prompts may take this many times the time of its decodes, times the prompts that wait
# for each sequence that decodes.
PROMPT_SHARE = 4.0


class StepSize:
    """Bounds the prompt tokens of mixed steps by a target and by the objectives of the sequences that decode."""

    def __init__(self, target_ms: float | Literal["auto"] | None, rates: StepRates) -> None:
        self._target_ms, self._rates = target_ms, rates

    def limit(self, step: StepDraft, running: Iterable[Sequence], num_waiting: int) -> None:
        """Reduce the step's budget to the prompt tokens that it has time for. A step without decodes is not bounded."""
        if not step.decode or not self._rates.is_measured:
            return
        spare_s = self._most_s(step, running, num_waiting) - self._rates.step_s
        if spare_s < inf:
            step.budget = min(step.budget, max(LEAST_TOKENS, int(spare_s / max(self._rates.prompt_token_s, 1e-9))))

    def _most_s(self, step: StepDraft, running: Iterable[Sequence], num_waiting: int) -> float:
        objective_s = min((seq.request.token_interval_s for seq in running if seq.num_generated), default=inf)
        if self._target_ms is None:
            return objective_s
        if self._target_ms != "auto":
            return min(objective_s, self._target_ms / 1e3)
        num_prompts = num_waiting + sum(seq.is_prefill for seq in running)
        share = PROMPT_SHARE * num_prompts / len(step.decode)
        return min(objective_s, self._rates.step_s * (1 + share))
