"""Seconds that the real accelerator would take for one step: prices the work of work.py.

The runner, pacing, planner and simulator use `CostModel`. Every result states whether a measurement supports it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import get_args

from ..config.speculation import SpeculationConfig
from ..device.instances import Instance
from ..models.spec import ModelSpec
from .calibration import Calibration, default_calibration
from .evidence import Band, Phase, Point
from .shape import matrix_billions, source_weights, unfitted
from .terms import TERMS, Component
from .work import Runtime, StepWork, Work

COMPONENTS: tuple[Component, ...] = get_args(Component)
MATMULS = ("decode_matmul", "prefill_matmul", "expert_matmul", "attention", "encode_matmul")  # counted in operations
READS = ("weights", "prefill_weights", "kv", "encode_weights")  # terms counted in bytes of device memory
LABELS = 2  # scores of a text that a classifier returns; any number of this size takes the same time


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step on one tensor-parallel group.

    `flops`, `hbm_bytes` and `link_bytes` are sums over its cores, padding included. Seconds are of the whole step:
    elapsed_s = compute_s + memory_s + activation_s + overhead_s.
    """

    flops: float
    hbm_bytes: float
    link_bytes: float
    compute_s: float  # matmuls and attention over prompts
    memory_s: float  # reading weights and cache from device memory
    activation_s: float  # hidden states between the matmuls: norms, residuals, collectives
    overhead_s: float  # launches, and host time of a call
    elapsed_s: float
    extrapolated: str = ""  # why no measurement supports the prediction; empty when one does

    @property
    def is_extrapolated(self) -> bool:
        return bool(self.extrapolated)


class CostModel:
    """Times of the steps of one model on one tensor-parallel group. Results are cached."""

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
        """Return the cost model of `model` on `tp` cores of `instance`, by default with the calibration in force.

        Raises DeviceError when the instance has fewer cores, SettingsError for an unknown weight dtype.
        """
        step_work = StepWork(model, instance, tp, runtime or Runtime())
        return cls(calibration or default_calibration(), step_work, instance)

    def checking(self, drafts: SpeculationConfig | None) -> CostModel:
        """Return the cost model of graphs whose slots have room for `drafts` in a decode step; this one for none."""
        if drafts is None:
            return self
        work = self.step_work
        runtime = replace(work.runtime, tokens_per_slot=1 + drafts.num_speculative_tokens)
        return CostModel.of(work.model, self.instance, work.core.tp, runtime, self.calibration)

    @classmethod
    def of_source(cls, model: ModelSpec, instance: Instance, tp: int, runtime: Runtime) -> CostModel:
        """Return the cost model of the passes of a decoder's encoder, which end with the decoder's keys and values."""
        assert model.source is not None
        found = cls.of(model.source, instance, tp, runtime)
        found.step_work.source_weights = source_weights(model, tp)
        return found

    def decode(self, batch: int, bucket: int) -> StepCost:
        """Return the cost of one token for each slot of a graph compiled for `batch` slots and `bucket` positions.

        The graph reads its whole bucket for every slot, busy or idle.
        """
        key = (batch, bucket)
        if key not in self._decoded:
            if not (batch >= 1 and bucket >= 1):
                raise ValueError(f"cannot decode {batch} slots over {bucket} positions")
            work = self.step_work.decode(batch, bucket)
            self._decoded[key] = self._price(work, batch, self.point("decode", batch, bucket))
        return self._decoded[key]

    def prefill(self, tokens: int, bucket: int, behind: int = 0, has_all_logits: bool = False) -> StepCost:
        """Return the cost of one prompt of `tokens` tokens in a graph compiled for `bucket` tokens.

        The cost is the whole bucket's. Prompts of a batch run one after another. `behind`: cached positions before the
        tokens, which attention reads. `has_all_logits`: the graph returns logits of every position, not only the last.
        """
        if not 1 <= tokens <= bucket:
            raise ValueError(f"cannot prefill {tokens} tokens in a bucket of {bucket}")
        key = (bucket, behind, has_all_logits)
        if key not in self._prefilled:
            work = self.step_work.prefill(bucket, behind=behind, has_all_logits=has_all_logits)
            self._prefilled[key] = self._price(work, bucket, self.point("prefill", 1, bucket))
        return self._prefilled[key]

    def prompt_s(self, bucket: int) -> float:
        """Return the seconds of one prompt that fills a graph compiled for `bucket` tokens."""
        return self.prefill(bucket, bucket).elapsed_s

    def encode(self, texts: int, bucket: int, is_labelled: bool = False) -> StepCost:
        """Return the cost of one pass of an encoder over `texts` texts, each padded to `bucket` tokens.

        The host gets a vector of each token, as Neuron's software returns them, or with `is_labelled` two scores of
        each text; nothing where a decoder reads the result.
        """
        if not (texts >= 1 and bucket >= 1):
            raise ValueError(f"cannot encode {texts} texts in a bucket of {bucket}")
        values = LABELS if is_labelled else bucket * self.step_work.model.hidden_size
        values = 0 if self.step_work.source_weights else values
        work = self.step_work.encode(bucket, texts, texts * values)
        return self._price(work, texts * bucket, self.point("encode", texts, bucket))

    def point(self, phase: Phase, batch: int, positions: int) -> Point:
        """Return the coordinates of a step among the measured ones."""
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

    def band(self, phase: Phase, batch: int, positions: int) -> Band:
        """Return the band of a step, or of a figure of a server under load."""
        found = self.calibration.evidence.band(self.point(phase, batch, positions))
        return found.beyond(len(self.unmeasured))

    @cached_property
    def unfitted(self) -> str:
        """Why the fits saw no layers like some of the model's; empty if they did."""
        return unfitted(self.step_work.model)

    @cached_property
    def unmeasured(self) -> tuple[str, ...]:
        """Reasons why no measurement supports any step of this model, regardless of batch and length."""
        instance, reasons = self.instance, self.step_work.runtime.unmeasured
        reasons = tuple(filter(None, (*reasons, self.unfitted)))
        if instance.is_user_given:
            own = f"figures of {instance.name} are from a catalogue file, not from the accelerator that was measured"
            reasons = (own, *reasons)
        if instance.chip.regrouped_from is not None:
            reasons = (*reasons, f"no measurement of {instance.chip.name} with LNC {instance.chip.lnc} is known")
        return reasons

    def _price(self, work: Work, tokens: int, point: Point) -> StepCost:
        load, tp = self.step_work, self.step_work.core.tp
        seconds = dict.fromkeys(COMPONENTS, 0.0)
        for name, price in self.calibration.coefficients.items():
            seconds[TERMS[name].component] += work.get(name, 0.0) * price
        matmuls = sum(work.get(name, 0.0) for name in MATMULS)
        read = sum(work.get(name, 0.0) for name in READS)
        return StepCost(
            flops=matmuls / load.flop_s * tp,
            hbm_bytes=read / load.byte_s * tp,
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
