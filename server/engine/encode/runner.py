"""Runner for plans of texts: computes every text of a step at once, a row of float32 for each."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from ...kernels.program import Program
from ...types import PoolingParams, StepPlan, StepResult, TokenizedText
from ..loop import Pending
from ..runner import ModelRunner
from .encoder import StateRunner
from .head import Float32, HeadLayers

Timed = tuple[Program, npt.NDArray[np.float64]]


class PoolingRunner:
    """Implements neuronserve.server.engine.loop.Runner for plans with `is_pooled`. Not thread-safe."""

    def __init__(self, states: StateRunner, layers: HeadLayers) -> None:
        self._states, self._layers = states, layers

    def submit(self, plan: StepPlan) -> Pending:
        """Compute the rows of all texts whose states are finite, at once."""
        begin = time.perf_counter()
        wanted = [seq.pooling or PoolingParams() for seq in plan.prefill]
        texts = [
            TokenizedText(seq.token_ids, params.token_types) for seq, params in zip(plan.prefill, wanted, strict=True)
        ]
        rows: dict[str, bytes] = {}
        for seq, params, states in zip(plan.prefill, wanted, self._states.run(texts), strict=True):
            row = self._row(states, params)
            if np.isfinite(row).all():
                rows[seq.request_id] = row.astype("<f4", copy=False).tobytes()
        result = StepResult(plan.step_id, {}, time.perf_counter() - begin, rows=rows)
        return lambda: result

    def _row(self, states: Float32, params: PoolingParams) -> Float32:
        if params.is_token_wise:
            return states
        row = self._layers.apply(states, params.is_raw)
        return row if params.dimensions is None else self._layers.shortened(row, params.dimensions, params.is_raw)

    def time_instructions(self, is_on: bool) -> None:
        """Time every instruction from the next step on, or stop it."""
        self._states.time_instructions(is_on)

    @property
    def timed(self) -> Timed | None:
        """Program that ran last and its times, as in ModelRunner."""
        return self._states.timed

    def warm_up(self) -> None:
        """Run every kernel once, so that the first request is not slower."""
        self._states.run([TokenizedText((0,))])


class SharedRunner:
    """Runner of sequences and of texts, over the same weights and threads."""

    def __init__(self, generation: ModelRunner, pooling: PoolingRunner) -> None:
        self._generation, self._pooling = generation, pooling
        self._last: ModelRunner | PoolingRunner = generation

    def submit(self, plan: StepPlan) -> Pending:
        """Submit the plan to the runner of its kind."""
        self._last = self._pooling if plan.is_pooled else self._generation
        return self._last.submit(plan)

    def time_instructions(self, is_on: bool) -> None:
        """Time the instructions of both runners from the next step on, or stop it."""
        for each in (self._generation, self._pooling):
            each.time_instructions(is_on)

    @property
    def timed(self) -> Timed | None:
        """Program that ran last and its times, as in ModelRunner."""
        return self._last.timed
