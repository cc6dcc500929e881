"""How many prompt tokens a step takes beside sequences that decode: by the time that these may wait. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Literal

from ..types import StepPlan
from .fair_queue import FairQueue
from .sequence import Sequence
from .step import StepDraft
from .step_rates import StepRates

LEAST_TOKENS = 16  # prompts advance by so many, and by so many that what a prompt costs by itself is half of its time
CATCH_UP = 32  # tokens after which a sequence's mean interval must be within its objective again
MOST_SKIPPED = 32  # steps in a row that objectives keep prompts out of
# With target auto, a step's prompts may take this many times the time of its decodes, times the prompts that wait
# for each sequence that decodes.
PROMPT_SHARE = 2.0


class StepSize:
    """Bounds the prompt tokens of mixed steps.

    A target divides prompts: a step takes as many of their tokens as it has time for. Objectives of the sequences that
    decode divide none, since parts of a prompt may cost more than the whole: they put it off until they have the time.
    """

    def __init__(self, target_ms: float | Literal["auto"] | None, *, by_objectives: bool) -> None:
        self._target_ms, self._by_objectives = target_ms, by_objectives
        self._is_on = by_objectives or target_ms is not None
        self.rates = StepRates()
        self._num_skipped = 0  # steps since prompts were let in

    def record(self, plan: StepPlan, step_s: float, num_steps: int = 1) -> None:
        """Measure a step that was computed, or `num_steps` equal ones of `step_s` each."""
        if self._is_on:
            num_tokens = sum(len(seq.token_ids) for seq in plan.prefill)
            self.rates.record(len(plan.prefill), num_tokens, len(plan.decode), step_s, num_steps)

    def limit(self, step: StepDraft, running: Iterable[Sequence], waiting: FairQueue) -> None:
        """Reduce the step's budget to the prompt tokens that it has time for. A step without decodes is not bounded."""
        if not self._is_on or not step.decode or not self.rates.is_measured:
            return
        prompts = [seq for seq in running if seq.is_prefill]
        if self._target_ms is not None:
            self._divide(step, len(prompts) + len(waiting))
        if self._by_objectives and (prompts or waiting):
            num_tokens = min(step.budget, (prompts[0] if prompts else waiting.first).num_pending)
            is_late = self._seconds_of(num_tokens) > self._slack_s(running, step.time) - self.rates.step_s
            self._num_skipped = self._num_skipped + 1 if is_late and self._num_skipped < MOST_SKIPPED else 0
            if self._num_skipped:
                step.budget = 0

    def _divide(self, step: StepDraft, num_prompts: int) -> None:
        prompt_s, token_s = self.rates.prompt_cost_s
        if self._target_ms == "auto":
            spare_s = PROMPT_SHARE * (self.rates.step_s + prompt_s) * max(1.0, num_prompts / len(step.decode))
        else:
            spare_s = (self._target_ms or 0.0) / 1e3 - self.rates.step_s
        least = max(LEAST_TOKENS, prompt_s / token_s)
        step.budget = min(step.budget, int(max(least, (spare_s - prompt_s) / token_s)))
        if prompt_s > 0:
            step.max_prompts = max(1, int(spare_s / prompt_s))

    def _seconds_of(self, num_tokens: int) -> float:
        prompt_s, token_s = self.rates.prompt_cost_s
        return prompt_s + num_tokens * token_s

    def _slack_s(self, running: Iterable[Sequence], now: float) -> float:
        """Return the longest step after which all sequences can still keep their objectives by steps without prompts.

        Objectives that such steps cannot keep do not count.
        """
        return min((_slack_s(seq, self.rates.step_s, now) for seq in running), default=inf)


def _slack_s(seq: Sequence, step_s: float, now: float) -> float:
    """Return the seconds that a sequence can wait for its next token, and catch up in at most CATCH_UP tokens.

    It is inf without a token yet, without an objective, and for an objective that cannot be kept any more.
    """
    interval_s, num_left = seq.request.token_interval_s, seq.most_tokens - len(seq.token_ids)
    if seq.first_token_time is None or interval_s == inf:
        return inf
    due_s, gain_s = seq.first_token_time + seq.num_generated * interval_s - now, interval_s - step_s
    is_lost = due_s + num_left * gain_s < step_s
    return inf if is_lost else due_s + min(CATCH_UP, num_left) * gain_s
