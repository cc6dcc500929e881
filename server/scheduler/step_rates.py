"""Seconds of steps, measured from the steps before: one model for what a step takes. Pure.

A step of `d` decoding sequences and `p` prompt tokens is taken to last step_s + p * prompt_token_s. The scheduler sizes
steps by it, and forecasts of waits (forecast.py) are made from it.
"""

from __future__ import annotations

# Assumed until steps are measured; slow, so that a server that has just started takes a full batch and little more.
FIRST_STEP_S, FIRST_PROMPT_TOKEN_S = 0.1, 0.001
NUM_STEPS_KEPT = 64  # steps of each kind that rates are measured over, the latest ones weighted most


class StepRates:
    """Rates of one engine."""

    def __init__(self) -> None:
        self._decodes = self._decode_s = 0.0  # steps without prompts, and their seconds
        self._prompt_tokens = self._prompt_s = 0.0  # prompt tokens, and the seconds that they added to steps

    @property
    def is_measured(self) -> bool:
        """True once steps of both kinds have been measured."""
        return self._decodes > 0 and self._prompt_tokens > 0

    @property
    def step_s(self) -> float:
        """Mean seconds of a step without prompts, in which each running sequence generates one token."""
        return self._decode_s / self._decodes if self._decodes else FIRST_STEP_S

    @property
    def prompt_token_s(self) -> float:
        """Mean seconds that a prompt token adds to the steps."""
        return self._prompt_s / self._prompt_tokens if self._prompt_tokens else FIRST_PROMPT_TOKEN_S

    def record(self, num_prompt_tokens: int, num_decodes: int, seconds: float, num_steps: int = 1) -> None:
        """Measure a step, or `num_steps` equal ones of `seconds` each."""
        keep = (1 - 1 / NUM_STEPS_KEPT) ** num_steps
        if num_prompt_tokens:
            own_s = seconds - (self.step_s if num_decodes and self._decodes else 0.0)
            self._prompt_tokens = keep * self._prompt_tokens + num_prompt_tokens
            self._prompt_s = keep * self._prompt_s + max(0.0, own_s)
        elif num_decodes:
            added = NUM_STEPS_KEPT * (1 - keep)  # num_steps single ones would add as much; 1 for one
            self._decodes = keep * self._decodes + added
            self._decode_s = keep * self._decode_s + added * seconds
