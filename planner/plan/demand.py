"""Demand on a deployment: one pair of lengths, or those of a trace. Counts only, without hardware or prices."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...server.errors import SettingsError
from ...workload.workload import IntArray, Workload
from .bounds import MAX_RATE, MIN_RATE
from .options import PlanOptions


@dataclass(frozen=True, slots=True)
class Demand:
    """Means over the requests, their extremes, and how many have which prompt."""

    input_tokens: float
    output_tokens: float
    longest_prompt: int
    longest: int  # prompt and output
    prompts: tuple[tuple[int, int], ...]  # prompt length and number of requests
    steps_cv2: float  # squared coefficient of variation of the decode steps
    trace: Workload | None = None
    left_out: int = 0  # requests of the trace longer than a slot can be

    @classmethod
    def fixed(cls, options: PlanOptions) -> Demand:
        """Return the demand of equal requests."""
        prompt, output = options.input_tokens, options.output_tokens
        return cls(prompt, output, prompt, prompt + output, ((prompt, 1),), 0.0)

    @classmethod
    def of_trace(cls, trace: Workload, longest: int) -> Demand:
        """Return the demand of the requests of at most `longest` tokens. Raises SettingsError if there is none."""
        fits = trace.input_len + trace.output_len <= longest
        if not fits.any():
            raise SettingsError(f"{trace.name}: each request is longer than the {longest} tokens of a slot")
        inputs, outputs = trace.input_len[fits], trace.output_len[fits]
        return cls(
            input_tokens=float(inputs.mean()),
            output_tokens=float(outputs.mean()),
            longest_prompt=int(inputs.max()),
            longest=int((inputs + outputs).max()),
            prompts=tuple(sorted(Counter(inputs.tolist()).items())),
            steps_cv2=_cv2(outputs - 1),
            trace=trace.only(fits),
            left_out=int((~fits).sum()),
        )

    @property
    def total_tokens(self) -> float:
        """Tokens of a mean request, in and out."""
        return self.input_tokens + self.output_tokens

    def share_within(self, positions: int) -> float:
        """Return the share of decode steps whose context, with the new token, has at most `positions` positions."""
        steps = self.output_tokens - 1
        if self.trace is None:
            return min(1.0, max(0.0, (positions - self.input_tokens) / steps)) if steps else 1.0
        lengths = self.trace.output_len - 1
        within = np.clip(positions - self.trace.input_len, 0, lengths).sum()
        return float(within / lengths.sum()) if steps else 1.0

    def as_json(self) -> dict[str, Any]:
        """Return plain values, without the requests."""
        return {
            "trace": self.trace.name if self.trace else None,
            "requests": len(self.trace) if self.trace else None,
            "left_out": self.left_out,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "longest_prompt": self.longest_prompt,
            "longest": self.longest,
        }


def with_trace(options: PlanOptions, trace: Workload, request_rate: float | None = None) -> PlanOptions:
    """Return `options` with the trace's mean lengths, and with its rate unless another is given.

    Raises SettingsError if the trace has no rate and none is given.
    """
    rate = trace.rate if request_rate is None else request_rate
    if not MIN_RATE <= rate <= MAX_RATE:
        raise SettingsError(f"{trace.name} comes at {rate:g} requests a second: give request_rate")
    means = (max(1, round(float(lengths.mean()))) for lengths in (trace.input_len, trace.output_len))
    return replace(options, input_tokens=next(means), output_tokens=next(means), request_rate=rate)


def _cv2(values: IntArray) -> float:
    mean = float(values.mean())
    return float(values.var()) / mean**2 if mean else 0.0
