"""Encodings (scheduler/encodings.py) of an engine: its encoder, and the runner of steps that encode."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..cost.encoding_pricer import EncodingPricer
from ..scheduler.encodings import EncodingLimits
from ..types import Encoding, StepPlan, StepResult
from .encode.runner import Timed
from .loop import Pending


class Encoder(Protocol):
    """Computes encodings."""

    def encode(self, encodings: Sequence[Encoding]) -> None:
        """Compute the encodings of one step, which have passed the checks, and leave their results in their blocks."""
        ...


class TimedRunner(Protocol):
    """Runner of all other steps."""

    def submit(self, plan: StepPlan) -> Pending: ...
    def time_instructions(self, is_on: bool) -> None: ...
    @property
    def timed(self) -> Timed | None: ...


@dataclass(frozen=True, slots=True)
class Encodings:
    """A loaded encoder, the budget of its results, and the price of its passes."""

    encoder: Encoder
    limits: EncodingLimits
    pricer: EncodingPricer


class EncodingRunner:
    """Runner of steps that encode, and of all others by `runner`."""

    def __init__(self, runner: TimedRunner, encoder: Encoder) -> None:
        self._runner, self._encoder = runner, encoder

    def submit(self, plan: StepPlan) -> Pending:
        """Compute the encodings at once, or submit the plan to the other runner."""
        if not plan.encodings:
            return self._runner.submit(plan)
        begin = time.perf_counter()
        self._encoder.encode(plan.encodings)
        result = StepResult(plan.step_id, {}, time.perf_counter() - begin)
        return lambda: result

    def time_instructions(self, is_on: bool) -> None:
        """Time the instructions of the other runner from the next step on, or stop it."""
        self._runner.time_instructions(is_on)

    @property
    def timed(self) -> Timed | None:
        """Program of the other runner that ran last and its times, as in ModelRunner."""
        return self._runner.timed
