"""Seconds of steps, measured from the steps before: one model for what a step takes. Pure.

A step of decoding sequences, and of `n` prompts with `p` tokens together, is taken to last
step_s + n * prompt_s + p * token_s. The scheduler sizes steps by it, and forecasts of waits (forecast.py) are made from
the mean of a prompt token, prompt_token_s.
"""

from __future__ import annotations

# Assumed until steps are measured; slow, so that a server that has just started takes a full batch and little more.
FIRST_STEP_S, FIRST_PROMPT_TOKEN_S = 0.1, 0.001
NUM_STEPS_KEPT = 64  # steps of each kind that rates are measured over, the latest ones weighted most
SHORTEST_S = 1e-9  # of a prompt token
LEAST_SPREAD = 1e-3  # of the normal equations' determinant, below which all steps are alike and prompt_s is taken as 0


class StepRates:
    """Rates of one engine."""

    def __init__(self) -> None:
        self._decodes = self._decode_s = 0.0  # steps without prompts, and their seconds
        self._prompt_tokens = self._prompt_s = 0.0  # prompt tokens, and the seconds that they added to steps
        # Sums over steps with prompts: n n, n p, p p, n s, p s, for `n` prompts, `p` tokens and `s` seconds.
        self._nn = self._np = self._pp = self._ns = self._ps = 0.0

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

    @property
    def prompt_cost_s(self) -> tuple[float, float]:
        """Seconds that a prompt adds to a step, however short, and seconds of each of its tokens; least squares."""
        mean_s = max(self.prompt_token_s, SHORTEST_S)
        spread = self._nn * self._pp - self._np**2
        if spread <= LEAST_SPREAD * self._nn * self._pp:
            return 0.0, mean_s
        prompt_s = (self._ns * self._pp - self._ps * self._np) / spread
        token_s = (self._ps * self._nn - self._ns * self._np) / spread
        return (0.0, mean_s) if prompt_s < 0 or token_s <= 0 else (prompt_s, token_s)

    def record(self, prompts: int, num_prompt_tokens: int, num_decodes: int, seconds: float, steps: int = 1) -> None:
        """Measure a step with `prompts` prompts, or `steps` equal ones without any, of `seconds` each."""
        keep = (1 - 1 / NUM_STEPS_KEPT) ** steps
        if num_prompt_tokens:
            own_s = max(0.0, seconds - (self.step_s if num_decodes and self._decodes else 0.0))
            self._prompt_tokens = keep * self._prompt_tokens + num_prompt_tokens
            self._prompt_s = keep * self._prompt_s + own_s
            self._nn = keep * self._nn + prompts**2
            self._np = keep * self._np + prompts * num_prompt_tokens
            self._pp = keep * self._pp + num_prompt_tokens**2
            self._ns = keep * self._ns + prompts * own_s
            self._ps = keep * self._ps + num_prompt_tokens * own_s
        elif num_decodes:
            added = NUM_STEPS_KEPT * (1 - keep)  # as much as so many single steps would add; 1 for one
            self._decodes = keep * self._decodes + added
            self._decode_s = keep * self._decode_s + added * seconds
