"""Seconds of the steps of a model whose layers lie on several tensor-parallel groups, one behind the other.

Stages are priced by the cost model, what passes between them by a share of the links' peak. No published measurement
has stages, so every answer is marked as extrapolated. Over several instances, neighbouring stages of different ones are
apart by the group's link; what their hosts exchange to keep in step is not known and not charged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from neuronserve.server.cost.calibration import Calibration
from neuronserve.server.cost.evidence import Band, Phase
from neuronserve.server.cost.model import CostModel, StepCost
from neuronserve.server.cost.shape import ACTIVATION_BYTES, matrix_billions
from neuronserve.server.cost.work import Runtime
from neuronserve.server.device.groups import GROUP_REASON, InstanceGroup, Place, count_of, part_of
from neuronserve.server.device.parts import GB
from neuronserve.server.errors import DeviceError
from neuronserve.server.host.memory import GIB
from neuronserve.server.models.spec import ModelSpec

PIPELINE_REASON = "no measurement with pipeline stages was published"
# SDK nccom-test.rst: all-reduces of 32 MB over two ranks reach 40.7 GB/s, a fifth of an Inf2 chip's links.
LINK_SHARE = 0.2
HOP_S = 1.5e-6  # SDK intranode-collective-comm.rst: 1 to 2 us


@dataclass(frozen=True, slots=True)
class PipelineCost:
    """One step of all stages: `elapsed_s` is what a request waits for it, `interval_s` the slowest stage's part."""

    elapsed_s: float
    interval_s: float
    bubble: float  # share of the stages' time that nothing runs on them while steps follow each other, 0 to 1
    stages: tuple[StepCost, ...]
    extrapolated: str


def stage_layers(num_layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage: as even as can be, the longer ones first, since the last has the output layer too.

    Raises DeviceError when there are more stages than layers.
    """
    if not 1 <= stages <= num_layers:
        raise DeviceError(f"pipeline_parallel_size is {stages}: from 1 to the model's {num_layers} layers is possible")
    least, more = divmod(num_layers, stages)
    return tuple(least + (stage < more) for stage in range(stages))


class PipelineModel:
    """Times of the steps of one model on `stages` groups of `tp` cores, spread evenly over one or several instances."""

    def __init__(self, stages: tuple[CostModel, ...], model: ModelSpec, place: Place) -> None:
        self.stages, self._billions = stages, matrix_billions(model)
        self._row_bytes = model.hidden_size * ACTIVATION_BYTES
        self._host_s = stages[0].calibration.coefficients["prefill_call"]
        near = _link(stages[0])
        self._hops = [near] * (len(stages) - 1)  # seconds a byte, and before the first, behind each stage but the last
        self._reason = PIPELINE_REASON if len(stages) > 1 else ""  # a stage is no model of its size
        if isinstance(place, InstanceGroup):
            each = len(stages) // place.count
            self._hops[each - 1 :: each] = [_group_link(stages[0], place)] * (place.count - 1)
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
        """Raises DeviceError when the place has fewer cores than tp x stages, a group's instances cannot have as many
        stages each, or the model has fewer layers."""
        instance, count = part_of(place), count_of(place)
        if tp * stages > place.num_cores:
            raise DeviceError(
                f"tensor_parallel_size {tp} x pipeline_parallel_size {stages} needs {tp * stages} NeuronCores: "
                f"{place.name} has {place.num_cores}"
            )
        if stages % count or tp * (stages // count) > instance.num_cores:
            raise DeviceError(
                f"pipeline_parallel_size is {stages}: {place.name} take as many stages of {tp} cores each"
            )
        layers = stage_layers(model.num_layers, stages)
        uniform = replace(model, windows=(), ropes=())  # nothing that the cost model knows of
        starts = (sum(layers[:stage]) for stage in range(stages))
        parts = [
            replace(
                uniform,
                num_layers=count,
                expert_layers=model.expert_layers[start : start + count],
                vocab_size=model.vocab_size if start + count == model.num_layers else 0,
            )
            for start, count in zip(starts, layers, strict=True)
        ]
        known = {part: CostModel.of(part, instance, tp, runtime, calibration) for part in parts}
        return cls(tuple(known[part] for part in parts), model, place)

    def decode(self, batch: int, bucket: int) -> PipelineCost:
        """One token for each of `batch` slots, in as many micro-batches as there are stages.

        A micro-batch can start again when its tokens have come out of the last stage and the first is free: a step
        takes the longer of one passage and all micro-batches through the slowest stage. Fewer slots than stages, and
        uneven stages, leave bubbles.
        """
        micro = min(batch, len(self.stages))
        slots = -(-batch // micro)
        tokens = slots * self.stages[0].step_work.runtime.tokens_per_slot
        return self._step([stage.decode(slots, bucket) for stage in self.stages], tokens, micro)

    def prefill(self, tokens: int, bucket: int) -> PipelineCost:
        """One prompt through all stages; the next follows a stage behind. The host's work around it counts once."""
        costs = [stage.prefill(tokens, bucket) for stage in self.stages]
        later = [replace(cost, elapsed_s=cost.elapsed_s - self._host_s) for cost in costs[1:]]
        found = self._step([costs[0], *later], bucket, 1)
        return replace(found, bubble=self._bubble(found.stages, found.interval_s * len(self.stages), len(self.stages)))

    def band(self, phase: Phase, batch: int, positions: int) -> Band:
        """How far a step may be from the truth: that of the whole model, as far as stages change nothing of it."""
        first = self.stages[0]
        found = first.calibration.evidence.band(replace(first.point(phase, batch, positions), billions=self._billions))
        return found.beyond(bool(self._reason) + len(first.unmeasured))

    def _step(self, costs: list[StepCost], rows: int, micro: int) -> PipelineCost:
        sent_s = [rows * self._row_bytes * byte_s + hop_s for byte_s, hop_s in self._hops]
        times = [cost.elapsed_s + sent for cost, sent in zip(costs, (*sent_s, 0.0), strict=True)]
        elapsed_s = max(sum(times), micro * max(times))
        bubble = self._bubble(tuple(costs), elapsed_s, micro)
        return PipelineCost(elapsed_s, max(times), bubble, tuple(costs), self._reason or costs[0].extrapolated)

    def _bubble(self, costs: tuple[StepCost, ...], period_s: float, passes: int) -> float:
        return max(0.0, 1 - passes * sum(cost.elapsed_s for cost in costs) / (len(costs) * period_s))


def _link(model: CostModel) -> tuple[float, float]:
    """Seconds a byte, and before the first, between neighbouring groups: NeuronLink, or the memory of one chip."""
    instance = model.instance
    if instance.link is None:
        return model.calibration.coefficients["weights"] / (instance.chip.bandwidth_gb_s * GB), 0.0
    return 1 / (instance.link.gib_s_per_chip * GIB * LINK_SHARE), HOP_S


def _group_link(model: CostModel, group: InstanceGroup) -> tuple[float, float]:
    """The same between instances: a stage has its cores' share of what its instance can send; of that LINK_SHARE."""
    share = model.step_work.core.tp / group.instance.num_cores
    latency_s = HOP_S if group.link.latency_s is None else group.link.latency_s
    return 1 / (group.link.gb_s * GB * share * LINK_SHARE), latency_s
