"""Seconds that the real part would take for one step: prices the work of work.py. Reads no clock.

`CostModel` is what the runner, pacing, planner and simulator ask. It says of every answer whether a measurement stands
behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from neuronserve.server.cost.calibration import Calibration, default_calibration
from neuronserve.server.cost.evidence import Phase, Point
from neuronserve.server.cost.shape import matrix_billions
from neuronserve.server.cost.terms import TERMS, Part
from neuronserve.server.cost.work import Runtime, StepWork, Work
from neuronserve.server.device.instances import Instance
from neuronserve.server.models.spec import ModelSpec

PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step on one tensor-parallel group.

    `flops`, `hbm_bytes` and `link_bytes` are sums over its cores, padding included. Seconds are those of the step:
    elapsed_s = compute_s + memory_s + activation_s + overhead_s.
    """

    flops: float
    hbm_bytes: float
    link_bytes: float
    compute_s: float  # matmuls and attention over prompts
    memory_s: float  # weights and cache on their way from device memory
    activation_s: float  # hidden states between the matmuls: norms, residuals, collectives
    overhead_s: float  # launches, and the host's part of a call
    elapsed_s: float
    extrapolated: str = ""  # why the prediction has no measurement behind it; empty when it has

    @property
    def is_extrapolated(self) -> bool:
        return bool(self.extrapolated)


class CostModel:
    """Times of the steps of one model on one tensor-parallel group. Same arguments, same answer; answers are kept."""

    def __init__(self, calibration: Calibration, step_work: StepWork, instance: Instance) -> None:
        self.calibration, self.step_work, self.instance = calibration, step_work, instance
        self._billions = matrix_billions(step_work.model)
        self._decoded: dict[tuple[int, int], StepCost] = {}
        self._prefilled: dict[tuple[int, int, bool], StepCost] = {}

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        instance: Instance,
        tp: int,
        runtime: Runtime | None = None,
        calibration: Calibration | None = None,
    ) -> CostModel:
        """A model on `tp` cores of `instance`, by the shipped calibration unless another is given.

        Raises DeviceError when the instance has fewer cores, SettingsError for an unknown weight dtype.
        """
        step_work = StepWork(model, instance, tp, runtime or Runtime())
        return cls(calibration or default_calibration(), step_work, instance)

    def decode(self, batch: int, bucket: int) -> StepCost:
        """One token for each slot of a graph compiled for `batch` slots and `bucket` positions.

        The graph reads its whole bucket for every slot, busy or not.
        """
        key = (batch, bucket)
        if key not in self._decoded:
            if not (batch >= 1 and bucket >= 1):
                raise ValueError(f"cannot decode {batch} slots over {bucket} positions")
            work = self.step_work.decode(batch, bucket)
            self._decoded[key] = self._price(work, batch, self.point("decode", batch, bucket))
        return self._decoded[key]

    def prefill(self, tokens: int, bucket: int, behind: int = 0, has_all_logits: bool = False) -> StepCost:
        """One prompt of `tokens` tokens in a graph compiled for `bucket`, which it costs whatever it fills.

        Prompts of a batch follow each other. What is `behind` `tokens` in the cache is read and attended to.
        `has_all_logits`: the graph gives those of every position, not of the last alone.
        """
        if not 1 <= tokens <= bucket:
            raise ValueError(f"cannot prefill {tokens} tokens in a bucket of {bucket}")
        key = (bucket, behind, has_all_logits)
        if key not in self._prefilled:
            work = self.step_work.prefill(bucket, behind=behind, has_all_logits=has_all_logits)
            self._prefilled[key] = self._price(work, bucket, self.point("prefill", 1, bucket))
        return self._prefilled[key]

    def encode(self, texts: int, bucket: int) -> StepCost:
        """One pass of `texts` texts of an encoder, each padded to `bucket` tokens.

        `prefill_call`, what a server's host adds to a prompt, is left out: no server stands around an encoder here.
        """
        if not (texts >= 1 and bucket >= 1):
            raise ValueError(f"cannot encode {texts} texts in a bucket of {bucket}")
        work = self.step_work.prefill(bucket, prompts=texts) | {"prefill_call": 0.0}
        return self._price(work, texts * bucket, self.point("prefill", texts, bucket))

    def point(self, phase: Phase, batch: int, positions: int) -> Point:
        """Where a step lies among the measured ones."""
        load = self.step_work
        return Point(
            phase,
            self.instance.chip.name,
            self._billions,
            load.core.tp,
            batch,
            positions,
            load.weight_bytes,
            bool(load.core.experts),
        )

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Why no step of it is like a measured one, whatever its batch and length."""
        part, reasons = self.instance, self.step_work.runtime.unmeasured
        if part.is_user_given:
            own = f"figures of {part.name} are from a catalogue file, not from the part that was measured"
            reasons = (own, *reasons)
        if part.chip.regrouped_from is not None:
            reasons = (*reasons, f"no measurement of {part.chip.name} with LNC {part.chip.lnc} is known")
        return reasons

    def _price(self, work: Work, tokens: int, point: Point) -> StepCost:
        load, tp = self.step_work, self.step_work.core.tp
        seconds = dict.fromkeys(PARTS, 0.0)
        for name, price in self.calibration.coefficients.items():
            seconds[TERMS[name].part] += work.get(name, 0.0) * price
        matmuls = work.get("decode_matmul", 0.0) + work.get("prefill_matmul", 0.0) + work.get("attention", 0.0)
        return StepCost(
            flops=matmuls / load.flop_s * tp,
            hbm_bytes=(work["weights"] + work["kv"]) / load.byte_s * tp,
            link_bytes=load.link_bytes(tokens) * tp,
            compute_s=seconds["compute"],
            memory_s=seconds["memory"],
            activation_s=seconds["activation"],
            overhead_s=seconds["overhead"],
            elapsed_s=sum(seconds.values()),
            extrapolated=self._why_extrapolated(point),
        )

    def _why_extrapolated(self, point: Point) -> str:
        return "; ".join((*self.unmeasured, *self.calibration.evidence.why_outside(point)))
