"""Seconds that the real part would take for one step: prices the work of work.py. Reads no clock.

`CostModel` is what the runner, pacing, planner and simulator ask. It says of every answer whether it lies outside of
what the published measurements cover.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.cost.calibration import Calibration, default_calibration
from server.cost.shape import matrix_params
from server.cost.work import COMPUTE, LINKS, MEMORY, OVERHEAD, Runtime, StepWork, Term, Work, prices
from server.device.instances import Instance
from server.models.spec import ModelSpec

# What the usable published rows cover (docs/cost-model.md).
CALIBRATED_CHIPS = ("Inferentia2", "Trainium1")
MAX_TP = 32
MAX_BATCH = 256
MAX_CONTEXT = 16_512


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step on one tensor-parallel group.

    `flops`, `hbm_bytes` and `link_bytes` are sums over its cores, padding included. Seconds are those of the step:
    elapsed_s = max(compute_s, memory_s) + link_s + overhead_s.
    """

    flops: float
    hbm_bytes: float
    link_bytes: float
    compute_s: float
    memory_s: float
    link_s: float
    overhead_s: float
    elapsed_s: float
    extrapolated: str = ""  # why the prediction has no measurement behind it; empty when it has

    @property
    def is_extrapolated(self) -> bool:
        return bool(self.extrapolated)


class CostModel:
    """Times of the steps of one model on one tensor-parallel group. Same arguments, same answer; answers are kept."""

    def __init__(self, calibration: Calibration, step_work: StepWork, instance: Instance) -> None:
        self.calibration, self.step_work = calibration, step_work
        self._prices = prices(calibration.coefficients)
        self._extrapolated = _why_extrapolated(step_work, instance, calibration)
        self._decoded: dict[tuple[int, int], StepCost] = {}
        self._prefilled: dict[int, StepCost] = {}

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
            self._decoded[key] = self._price(work, batch, self._reason(batch, bucket))
        return self._decoded[key]

    def prefill(self, tokens: int, bucket: int) -> StepCost:
        """One prompt of `tokens` tokens in a graph compiled for `bucket`, which it costs whatever it fills.

        Prompts of a batch follow each other.
        """
        if not 1 <= tokens <= bucket:
            raise ValueError(f"cannot prefill {tokens} tokens in a bucket of {bucket}")
        if bucket not in self._prefilled:
            work = self.step_work.prefill(bucket)
            self._prefilled[bucket] = self._price(work, bucket, self._reason(1, bucket))
        return self._prefilled[bucket]

    def _reason(self, batch: int, bucket: int) -> str:
        reasons = [self._extrapolated] if self._extrapolated else []
        if batch > MAX_BATCH:
            reasons.append(f"batch {batch} is above the measured {MAX_BATCH}")
        if bucket > MAX_CONTEXT:
            reasons.append(f"bucket {bucket} is above the measured {MAX_CONTEXT}")
        return "; ".join(reasons)

    def _price(self, work: Work, tokens: int, reason: str) -> StepCost:
        cost = [amount * price for amount, price in zip(work, self._prices, strict=True)]
        load, tp = self.step_work, self.step_work.core.tp
        compute_s, memory_s, link_s, overhead_s = (sum(cost[part]) for part in (COMPUTE, MEMORY, LINKS, OVERHEAD))
        return StepCost(
            flops=sum(work[COMPUTE]) / load.flop_s * tp,
            hbm_bytes=work[Term.STREAM] / load.byte_s * tp,
            link_bytes=load.link_bytes(tokens) * tp,
            compute_s=compute_s,
            memory_s=memory_s,
            link_s=link_s,
            overhead_s=overhead_s,
            elapsed_s=max(compute_s, memory_s) + link_s + overhead_s,
            extrapolated=reason,
        )


def _why_extrapolated(load: StepWork, instance: Instance, calibration: Calibration) -> str:
    """What of the model and the part no usable measurement covers; empty when nothing."""
    reasons = []
    if instance.chip.name not in CALIBRATED_CHIPS:
        reasons.append(f"no LLM measurement on {instance.chip.name} was published")
    elif instance.is_user_given:
        reasons.append(f"figures of {instance.name} are from a catalogue file, not from the part that was measured")
    if load.model.num_experts:
        reasons.append("no usable mixture-of-experts measurement was published")
    elif calibration.seen is not None:
        reasons += calibration.seen.why_outside(matrix_params(load.model), load.model.hidden_size)
    if load.core.tp > MAX_TP:
        reasons.append(f"tensor parallelism {load.core.tp} is above the measured {MAX_TP}")
    return "; ".join(reasons)
