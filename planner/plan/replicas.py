"""The workload of a plan with its graphs, and a replica on a group of cores, as the queueing model takes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from ...server.cost.bucket_edges import ADDED_TOKENS, BucketEdge, PromptGraphs
from ...server.cost.calibration import default_calibration
from ...server.cost.evidence import Band, Phase
from ...server.cost.pairs import SpeculativeBands
from ...server.cost.pipeline import PipelineModel
from ...server.cost.speculation import SpeculativeModel, StepTimes, head_of
from ...server.cost.stacks import Stack
from ...server.cost.work import Runtime
from ...server.device.buckets import powers_of_two
from ...server.device.groups import Place, count_of, part_of
from ...server.device.instances import Instance
from ...server.errors import SettingsError
from ...server.models.spec import ModelSpec
from ...server.scheduler.batching import POLICIES
from ...server.workload.workload import Workload
from ..model_names import resolve_decoder
from ..simulate.load_bands import LOAD_FIGURES, LoadFigure, load_band
from .demand import Demand
from .options import Buckets, PlanOptions
from .parts import place_of
from .queueing import Replica
from .report import Candidate
from .weight_types import WeightDtype


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """A model, its demand, and the graphs that are compiled for it."""

    model: ModelSpec
    draft: ModelSpec | None  # of speculative decoding
    options: PlanOptions
    demand: Demand
    buckets: Buckets
    prompts: dict[Stack, tuple[tuple[int, float], ...]]  # compiled lengths, ascending, and shares of the requests
    bands: SpeculativeBands | None = None
    times: dict[tuple[object, ...], PipelineModel] = field(
        default_factory=dict, compare=False
    )  # by what they depend on

    @classmethod
    def of(cls, model: ModelSpec, options: PlanOptions, trace: Workload | None) -> PlannedLoad:
        """Return the workload. Raises SettingsError for too few positions or a draft with another vocabulary."""
        if trace is None:
            demand, buckets = Demand.fixed(options), Buckets.of(options, model)
        else:
            demand = Demand.of_trace(trace, min(options.max_model_len or model.max_position, model.max_position))
            buckets = Buckets.holding(options, model, demand.longest)
        prompts = {stack: _padded(demand, stack, buckets.decode) for stack in options.stacks}
        bands = None if options.speculation is None else SpeculativeBands(options.speculative_method)
        return cls(model, _draft(model, options), options, demand, buckets, prompts, bands)

    def times_on(self, place: Place, tp: int, stages: int, runtime: Runtime) -> PipelineModel:
        """Return the model's times on a place that holds it; instances with the same chips and links share them."""
        part = part_of(place)
        owner = place.name if part.is_user_given or count_of(place) > 1 else part.chip.name
        key = (owner, part.chip.lnc, part.link, tp, stages, runtime)
        if key not in self.times:
            self.times[key] = PipelineModel.of(self.model, place, tp, stages, runtime)
        return self.times[key]


def _padded(demand: Demand, stack: Stack, max_model_len: int) -> tuple[tuple[int, float], ...]:
    padded: Counter[int] = Counter()
    for length, count in demand.prompts:
        padded[stack.prompt_bucket(length, max_model_len)] += count
    return tuple((length, count / padded.total()) for length, count in sorted(padded.items()))


def _draft(model: ModelSpec, options: PlanOptions) -> ModelSpec | None:
    if options.speculation is None or options.speculation.method.is_lookup:
        return None
    if options.speculative_model is None:
        return head_of(model, options.speculation.method)
    draft = resolve_decoder(options.speculative_model)
    if draft.vocab_size != model.vocab_size:
        raise SettingsError(
            f"speculative_model {options.speculative_model} has {draft.vocab_size} tokens, {options.model} "
            f"{model.vocab_size}: a draft must have the vocabulary of the model"
        )
    return draft


@dataclass(frozen=True, slots=True)
class Group:
    """Replica on one instance or a group of it: `tp` cores for each pipeline stage, and the model's times on them."""

    place: Place
    tp: int
    dtype: WeightDtype
    stages: int  # on all instances together
    cost: StepTimes
    stack: Stack

    @classmethod
    def of(cls, planned: PlannedLoad, place: Place, tp: int, dtype: WeightDtype, stages: int) -> Group:
        """Return the group. Raises DeviceError for more stages than the model or its draft has layers."""
        options, part = planned.options, part_of(place)
        stack, speculation = options.stack_on(part), options.speculation
        checked = 1 if speculation is None else speculation.num_tokens + 1
        runtime = Runtime(
            dtype,
            stack.is_continuous,
            tokens_per_slot=checked,
            lora_rank=options.lora_rank,
            kv_bytes=options.kv_bytes,
        )
        own = planned.times_on(place, tp, stages, runtime)
        if speculation is None or planned.bands is None:
            return cls(place, tp, dtype, stages, own, stack)
        method, guesses = speculation.method, speculation.num_tokens
        beside = replace(runtime, weight_dtype="bfloat16", tokens_per_slot=method.tokens_per_run(guesses), lora_rank=0)
        draft = None if planned.draft is None else PipelineModel.of(planned.draft, place, tp, stages, beside)
        widened = partial(planned.bands.widened, chip=part.chip.name)
        return cls(place, tp, dtype, stages, SpeculativeModel(own, draft, method.runs(guesses), widened), stack)

    @property
    def part(self) -> Instance:
        return part_of(self.place)

    def load_bands(self, slots: int, positions: int) -> dict[LoadFigure, Band]:
        """Return the bands of what clients of a replica see."""
        return {each: load_band(each, self.cost, self.stack, slots, positions) for each in LOAD_FIGURES}

    @property
    def count(self) -> int:
        """Number of instances of a replica."""
        return count_of(self.place)

    @property
    def dp(self) -> int:
        """Number of replicas on the instance or group. Each has equally many stages on every instance."""
        return self.part.num_cores // (self.tp * self.stages // self.count)

    def prompts(self, planned: PlannedLoad) -> tuple[tuple[int, float], ...]:
        """Return the compiled lengths of prompts, ascending, each with its share of the requests."""
        return planned.prompts[self.stack]

    def bucket_edge(self, planned: PlannedLoad) -> BucketEdge | None:
        """Return the edge of a compiled length that costs the prompts most; None if none does."""
        stack, demand = self.stack, planned.demand
        buckets = stack.prompt_buckets(planned.buckets.decode)
        graphs = PromptGraphs(buckets, stack.prompt_margin, lambda length: self.cost.prefill(length, length).elapsed_s)
        return graphs.edge(dict(demand.prompts), ADDED_TOKENS if demand.trace is None else 0)

    def replica(self, planned: PlannedLoad, batch: int) -> tuple[Replica, float, str]:
        """Return the replica, the idle share of its stages in decode, and why no measurement supports its times."""
        decode, stack = self.cost.decode(batch, planned.buckets.decode), self.stack
        prefills = [(self.cost.prefill(length, length), share) for length, share in self.prompts(planned)]
        mean_s = sum(cost.interval_s * share for cost, share in prefills)
        later_s = sum((cost.elapsed_s - cost.interval_s) * share for cost, share in prefills)
        cv2 = max(0.0, sum(cost.interval_s**2 * share for cost, share in prefills) / mean_s**2 - 1)
        reasons = filter(None, (*(cost.extrapolated for cost, _ in prefills), decode.extrapolated))
        host, vocab = default_calibration().host(stack.host), 0 if stack.samples_on_device else planned.model.vocab_size
        speculation = planned.options.speculation
        replica = Replica(
            mean_s,
            decode.elapsed_s + host.step_s(1, batch, vocab),
            batch,
            planned.demand.output_tokens,
            cv2,
            planned.demand.steps_cv2,
            later_stages_s=later_s,
            shorter=self._shorter(planned, batch),
            policy=POLICIES[stack.batching],
            request_s=host.request_s,
            host_slot_s=host.slot_s + host.logit_s * vocab,
            padded=self._padded(planned, batch),
            tokens_per_step=1.0 if speculation is None else speculation.tokens_per_step,
        )
        return replica, decode.bubble, "; ".join(dict.fromkeys(reasons))

    def bands(self, planned: PlannedLoad, batch: int, is_monotone: bool = False) -> tuple[Band, Band]:
        """Return the bands of a prompt of the longest bucket and of a decode step.

        `is_monotone`: slow ends are at least those of all shorter graphs, which have less work. So a longer question is
        never sized for shorter steps because longer ones were measured.
        """
        longest, positions = self.prompts(planned)[-1][0], planned.buckets.decode
        prefill, decode = self.cost.band("prefill", 1, longest), self.cost.band("decode", batch, positions)
        if not is_monotone:
            return prefill, decode
        return (
            self._raised(prefill, "prefill", 1, longest, lambda size: self.cost.prefill(size, size).elapsed_s),
            self._raised(decode, "decode", batch, positions, lambda size: self.cost.decode(batch, size).elapsed_s),
        )

    def _raised(self, found: Band, phase: Phase, batch: int, length: int, seconds: Callable[[int], float]) -> Band:
        sizes = powers_of_two(1 << (length - 1).bit_length())
        slow_s = max(seconds(min(size, length)) * self.cost.band(phase, batch, size).high for size in sizes)
        return replace(found, high=max(found.high, slow_s / seconds(length)))

    def _shorter(self, planned: PlannedLoad, batch: int) -> tuple[tuple[float, float], ...]:
        """Return seconds on each decode bucket below the longest, with the share of contexts within it."""
        buckets = self.stack.step_buckets(planned.buckets.decode)[:-1]
        return tuple((self.cost.decode(batch, size).elapsed_s, planned.demand.share_within(size)) for size in buckets)

    def _padded(self, planned: PlannedLoad, batch: int) -> tuple[tuple[int, float], ...]:
        """Return the slots of graphs below the largest, with the seconds of their steps."""
        if not self.stack.pads_slots:
            return ()
        smaller = (1 << power for power in range(batch.bit_length() - 1))
        return tuple((slots, self.cost.decode(slots, planned.buckets.decode).elapsed_s) for slots in smaller)


def edge_notes(planned: PlannedLoad, row: Candidate, parts: tuple[Instance, ...]) -> Iterator[str]:
    """Yield what an edge between two compiled lengths costs the prompts of a row, and the length that avoids it."""
    part = next(part for part in parts if (part.name, part.chip.lnc) == (row.device, row.lnc))
    group = Group.of(planned, place_of(part, row.instances_per_replica), row.tp, row.dtype, row.pp)
    if (edge := group.bucket_edge(planned)) is not None:
        yield f"first row: {edge}"
