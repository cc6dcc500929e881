"""Seconds that the real part would take for one step: prices the work of work.py. Reads no clock.

`CostModel` is what the runner, pacing, planner and simulator ask. It says of every answer whether it lies outside of
what the published measurements cover.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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

# Share of the tensor-engine peak that encoders reach, all overheads included: SDK inf2-performance.rst, inf2.xlarge at
# 128 tokens, BERT-base 2,900 texts/s (34 %) and BERT-large 850 texts/s (35 %).
ENCODER_EFFICIENCY = 0.345
ENCODER_REASON = "encoders are priced by two published figures, of BERT-base and BERT-large at 128 tokens"


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
    padding: float  # share of the step's tokens that nobody asked for, 0 to 1
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
        self._decoded: dict[tuple[int, int, int], StepCost] = {}
        self._prefilled: dict[tuple[int, int], StepCost] = {}

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

    def decode(self, batch: int, bucket: int, active: int | None = None) -> StepCost:
        """One token for each slot of a graph compiled for `batch` slots and `bucket` positions, `active` of them busy.

        The graph reads its whole bucket for every slot: busy slots and live contexts change padding, not time.
        """
        busy = batch if active is None else active
        key = (batch, bucket, busy)
        if key not in self._decoded:
            if not (batch >= 1 and bucket >= 1 and 0 <= busy <= batch):
                raise ValueError(f"cannot decode {busy} active of {batch} slots over {bucket} positions")
            work = self.step_work.decode(batch, bucket)
            self._decoded[key] = self._price(work, batch, 1 - busy / batch, self._reason(batch, bucket))
        return self._decoded[key]

    def prefill(self, tokens: int, bucket: int) -> StepCost:
        """One prompt of `tokens` tokens in a graph compiled for `bucket`; prompts of a batch follow each other."""
        key = (tokens, bucket)
        if key not in self._prefilled:
            if not 1 <= tokens <= bucket:
                raise ValueError(f"cannot prefill {tokens} tokens in a bucket of {bucket}")
            work = self.step_work.prefill(bucket)
            self._prefilled[key] = self._price(work, bucket, 1 - tokens / bucket, self._reason(1, bucket))
        return self._prefilled[key]

    def encode(self, batch: int, bucket: int) -> StepCost:
        """One forward pass of an encoder (BERT class) over `batch` texts padded to `bucket` tokens, under full load."""
        if batch < 1 or bucket < 1:
            raise ValueError(f"cannot encode {batch} texts of {bucket} tokens")
        cost = self._price(self.step_work.prefill(bucket, batch), batch * bucket, 0.0, ENCODER_REASON)
        compute_s = cost.flops / self.step_work.core.tp * self.step_work.flop_s / ENCODER_EFFICIENCY
        elapsed_s = max(compute_s, cost.memory_s) + cost.link_s
        return replace(cost, compute_s=compute_s, overhead_s=0.0, elapsed_s=elapsed_s)

    def _reason(self, batch: int, bucket: int) -> str:
        reasons = [self._extrapolated] if self._extrapolated else []
        if batch > MAX_BATCH:
            reasons.append(f"batch {batch} is above the measured {MAX_BATCH}")
        if bucket > MAX_CONTEXT:
            reasons.append(f"bucket {bucket} is above the measured {MAX_CONTEXT}")
        return "; ".join(reasons)

    def _price(self, work: Work, tokens: int, padding: float, reason: str) -> StepCost:
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
            padding=padding,
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
