"""Seconds of the steps of a model whose layers are divided into stages, each on a tensor-parallel group of its own.

The cost model prices stages; transfers between them take a share of the links' peak rate. No published measurement has
stages, so every result is marked as extrapolated. Between stages on different instances the group's link counts. The
messages by which hosts synchronize are not known and not charged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..device.groups import GROUP_REASON, InstanceGroup, Place, count_of, part_of
from ..errors import DeviceError
from ..models.spec import ModelSpec
from ..models.stages import stage_layers
from .calibration import Calibration
from .evidence import Band, Phase
from .links import far_hop, near_hop
from .model import CostModel, StepCost
from .shape import ACTIVATION_BYTES, matrix_billions
from .stand_ins import stand_in_band
from .work import Runtime

PIPELINE_REASON = "no measurement with pipeline stages was published"


@dataclass(frozen=True, slots=True)
class PipelineCost:
    """One step of all stages. `elapsed_s` is the latency of a request, `interval_s` the time of the slowest stage."""

    elapsed_s: float
    interval_s: float
    bubble: float  # idle share of the stages' time while steps follow each other, 0 to 1
    stages: tuple[StepCost, ...]
    extrapolated: str

    def as_step(self) -> StepCost:
        """Return the work of all stages, in the time after which the next step can follow: the slowest stage's."""
        slowest = max(self.stages, key=lambda cost: cost.elapsed_s)
        return replace(
            slowest,
            flops=sum(cost.flops for cost in self.stages),
            hbm_bytes=sum(cost.hbm_bytes for cost in self.stages),
            link_bytes=sum(cost.link_bytes for cost in self.stages),
            elapsed_s=self.interval_s,
            extrapolated=self.extrapolated,
        )


def _stage(model: ModelSpec, first: int, end: int) -> ModelSpec:
    """Return the layers from `first` to before `end`, with a vocabulary on the first stage alone."""
    stage = model.with_layers(model.layers[first:end])
    return stage.with_vocabulary(0) if first else stage


class PipelineModel:
    """Times of the steps of one model on `stages` groups of `tp` cores, spread evenly over one or several instances."""

    def __init__(self, stages: tuple[CostModel, ...], model: ModelSpec, place: Place) -> None:
        self.stages, self._billions = stages, matrix_billions(model)
        self._row_bytes = model.hidden_size * ACTIVATION_BYTES
        self._host_s = stages[0].calibration.coefficients["prefill_call"]
        near = near_hop(stages[0])
        self._hops = [near] * (len(stages) - 1)  # after each stage but the last: seconds a byte, and latency in seconds
        self._reason = PIPELINE_REASON if len(stages) > 1 else ""
        self._bands: dict[tuple[Phase, int, int], Band] = {}
        if isinstance(place, InstanceGroup):
            each = len(stages) // place.count
            self._hops[each - 1 :: each] = [far_hop(stages[0], place)] * (place.count - 1)
            self._reason = GROUP_REASON

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        place: Place,
        tp: int,
        stages: int,
        runtime: Runtime | None = None,
        calibration: Calibration | None = None,
    ) -> PipelineModel:
        """Return the model in `stages` stages on `place`.

        Raises DeviceError when the place has fewer than tp x stages cores, when the stages do not divide evenly among
        the instances of a group, or when the model has fewer layers than stages.
        """
        instance, count = part_of(place), count_of(place)
        if tp * stages > place.num_cores:
            raise DeviceError(
                f"tensor_parallel_size {tp} x pipeline_parallel_size {stages} needs {tp * stages} NeuronCores: "
                f"{place.name} has {place.num_cores}"
            )
        if stages % count or tp * (stages // count) > instance.num_cores:
            raise DeviceError(
                f"pipeline_parallel_size is {stages}: stages of {tp} cores do not divide evenly among {place.name}"
            )
        layers = stage_layers(model.num_layers, stages)
        starts = (sum(layers[:stage]) for stage in range(stages))
        models = [_stage(model, start, start + count) for start, count in zip(starts, layers, strict=True)]
        known = {each: CostModel.of(each, instance, tp, runtime, calibration) for each in models}
        return cls(tuple(known[each] for each in models), model, place)

    def decode(self, batch: int, bucket: int) -> PipelineCost:
        """Return the cost of one token for each of `batch` slots, in as many micro-batches as there are stages.

        A micro-batch starts again when its tokens have left the last stage and the first stage is free. A step takes
        the longer of one passage through all stages and all micro-batches through the slowest stage. Fewer slots than
        stages, and uneven stages, leave bubbles.
        """
        micro = min(batch, len(self.stages))
        slots = -(-batch // micro)
        tokens = slots * self.stages[0].step_work.runtime.tokens_per_slot
        return self._step([stage.decode(slots, bucket) for stage in self.stages], tokens, micro)

    def prefill(self, tokens: int, bucket: int) -> PipelineCost:
        """Return the cost of one prompt through all stages. The next follows a stage later; host time counts once."""
        costs = [stage.prefill(tokens, bucket) for stage in self.stages]
        later = [replace(cost, elapsed_s=cost.elapsed_s - self._host_s) for cost in costs[1:]]
        found = self._step([costs[0], *later], bucket, 1)
        return replace(found, bubble=self._bubble(found.stages, found.interval_s * len(self.stages), len(self.stages)))

    def steps(self) -> PipelineSteps:
        """Return the costs of steps that follow each other through the stages."""
        return PipelineSteps(self)

    def one(self, costs: list[StepCost], rows: int) -> PipelineCost:
        """Return the cost of one step with these costs of its stages, which sends `rows` vectors on."""
        return self._step(costs, rows, 1)

    def band(self, phase: Phase, batch: int, positions: int) -> Band:
        """Return the error band of a step: the whole model's, widened because no measurement has stages."""
        key = (phase, batch, positions)
        if key not in self._bands:
            self._bands[key] = self._band(phase, batch, positions)
        return self._bands[key]

    def _band(self, phase: Phase, batch: int, positions: int) -> Band:
        first = self.stages[0]
        found = first.calibration.evidence.band(replace(first.point(phase, batch, positions), billions=self._billions))
        reason = first.unfitted
        found = found.beyond(bool(self._reason) + len(first.unmeasured) - bool(reason))
        if reason:
            found = stand_in_band(found, reason, phase, first.calibration)
        if phase == "prefill" or first.step_work.runtime.kv_bytes == ACTIVATION_BYTES:
            return found
        return replace(found, high=found.high * self._unsaved(batch, positions), provenance="formula")

    def _unsaved(self, batch: int, positions: int) -> float:
        """Return how much longer a step takes if the bytes that the KV cache saves save no time.

        One deployment was published with and without an 8-bit cache (pairs.json). It gained a quarter of the formula's.
        """
        saved_s = 0.0
        for stage in self.stages:
            kv_s = stage.step_work.decode(batch, positions)["kv"] * stage.calibration.coefficients["kv"]
            saved_s += kv_s * (ACTIVATION_BYTES / stage.step_work.runtime.kv_bytes - 1)
        return 1 + saved_s / sum(stage.decode(batch, positions).elapsed_s for stage in self.stages)

    def _step(self, costs: list[StepCost], rows: int, micro: int) -> PipelineCost:
        sent_s = [rows * self._row_bytes * byte_s + hop_s for byte_s, hop_s in self._hops]
        times = [cost.elapsed_s + sent for cost, sent in zip(costs, (*sent_s, 0.0), strict=True)]
        elapsed_s = max(sum(times), micro * max(times))
        bubble = self._bubble(tuple(costs), elapsed_s, micro)
        return PipelineCost(elapsed_s, max(times), bubble, tuple(costs), self._reason or costs[0].extrapolated)

    def _bubble(self, costs: tuple[StepCost, ...], period_s: float, passes: int) -> float:
        return max(0.0, 1 - passes * sum(cost.elapsed_s for cost in costs) / (len(costs) * period_s))


class PipelineSteps:
    """A pipeline as a pricer of steps sees it: each step takes the time of the slowest stage."""

    def __init__(self, pipeline: PipelineModel) -> None:
        self._pipeline = pipeline
        first = pipeline.stages[0]
        self.calibration, self.step_work = first.calibration, first.step_work

    def decode(self, slots: int, bucket: int) -> StepCost:
        """Return the cost of a step with one token for each of `slots`."""
        pipeline = self._pipeline
        return pipeline.one([stage.decode(slots, bucket) for stage in pipeline.stages], slots).as_step()

    def prefill(self, tokens: int, bucket: int, behind: int = 0, has_all_logits: bool = False) -> StepCost:
        """Return the cost of a prompt, as CostModel.prefill does; logits are the first stage's."""
        first, *others = self._pipeline.stages
        costs = [first.prefill(tokens, bucket, behind, has_all_logits)]
        costs += [stage.prefill(tokens, bucket, behind) for stage in others]
        return self._pipeline.one(costs, bucket).as_step()

    def prompt_s(self, bucket: int) -> float:
        """Return the seconds of one prompt that fills a graph compiled for `bucket` tokens."""
        return self.prefill(bucket, bucket).elapsed_s
