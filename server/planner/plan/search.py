"""`neuronserve plan`: every instance, degree, weight type and batch for a workload, with times, counts and cost.

Memory is by the ledger's arithmetic and times are by the cost model: there are no coefficients here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from server.cost.calibration import default_calibration
from server.cost.pipeline import PipelineModel, stage_layers
from server.cost.stacks import Stack
from server.cost.work import Runtime
from server.device.buckets import powers_of_two
from server.device.catalog import instance, instances
from server.device.instances import Instance
from server.device.ledger import GIB
from server.device.prices import PRICE_BASES, PriceBasis
from server.models.spec import ModelSpec
from server.placement.fit import budget_bytes
from server.planner.model_names import resolve_decoder
from server.planner.plan.demand import Demand
from server.planner.plan.known import Known, Load, fewest_instances
from server.planner.plan.memory import Memory
from server.planner.plan.options import LIMITS, Buckets, PlanOptions, WeightDtype, bucket
from server.planner.plan.queueing import MAX_LOAD, Replica
from server.planner.plan.report import Candidate, Excluded, PlanReport, TokenPrice, price_notes
from server.planner.plan.words import allowed, check_degrees, demand_notes, misses, nothing_fits, over_budget, slo_notes
from server.scheduler.batching import POLICIES
from server.workload.workload import Workload


def plan(options: PlanOptions, trace: Workload | None = None) -> PlanReport:
    """Plan over the catalogue's parts. With a trace, its lengths take the place of those of `options`.

    Raises SettingsError for an unknown model or more tokens than it has positions, CheckpointError for a configuration
    that cannot be served, DeviceError for an unknown instance, a degree that no part in question allows or a price
    basis that no instance has a price by, and
    DeviceMemoryError, with the least that is lacking, when no part in question holds the model.
    """
    parts = tuple(instance(name) for name in dict.fromkeys(options.devices)) or instances()
    if all(part.usd(options.price_basis) is None for part in instances()):
        parts[0].price(options.price_basis)  # raises: not a price of one part is missing, but all
    return plan_model(resolve_decoder(options.model), options, parts, trace)


def plan_model(
    model: ModelSpec, options: PlanOptions, parts: tuple[Instance, ...], trace: Workload | None = None
) -> PlanReport:
    """Plan for a model and parts that have been looked up. Raises as `plan`."""
    check_degrees(options, parts)
    for stages in options.pipeline_parallel_sizes:
        stage_layers(model.num_layers, stages)  # refuses more stages than layers
    search = _Search.of(model, options, trace)
    candidates: list[Candidate] = []
    excluded: list[Excluded] = []
    for found in (entry for part in parts for entry in search.part(part)):
        if isinstance(found, Candidate):
            candidates.append(found)
        else:
            excluded.append(found)
    if not candidates:
        raise nothing_fits(model, options, excluded)
    candidates.sort(key=lambda candidate: candidate.order(options.price_basis))
    notes = (*demand_notes(search.demand), *slo_notes(options, candidates), *price_notes(parts, options.chip_watts))
    version = default_calibration().version
    found_all = tuple(candidates), tuple(excluded)
    return PlanReport(options, model, search.demand, search.buckets, version, *found_all, notes, parts)


@dataclass(frozen=True, slots=True)
class _Group:
    """Replica on one part: a tensor-parallel group for each pipeline stage, and the model's times on it."""

    part: Instance
    tp: int
    dtype: WeightDtype
    stages: int
    cost: PipelineModel
    stack: Stack

    @property
    def dp(self) -> int:
        return self.part.num_cores // (self.tp * self.stages)


@dataclass(frozen=True, slots=True)
class _Search:
    model: ModelSpec
    options: PlanOptions
    demand: Demand
    buckets: Buckets
    memory: Memory
    prompts: tuple[tuple[int, float], ...]  # compiled length, share of the requests

    @classmethod
    def of(cls, model: ModelSpec, options: PlanOptions, trace: Workload | None) -> _Search:
        if trace is None:
            demand, buckets = Demand.fixed(options), Buckets.of(options, model)
        else:
            demand = Demand.of_trace(trace, min(options.max_model_len or model.max_position, model.max_position))
            buckets = Buckets.holding(options, model, demand.longest_prompt, demand.longest)
        padded: Counter[int] = Counter()
        for length, count in demand.prompts:
            padded[bucket(length, buckets.decode) if options.pads_prompts_to_buckets else buckets.decode] += count
        shares = tuple((length, count / padded.total()) for length, count in sorted(padded.items()))
        return cls(model, options, demand, buckets, Memory(model, buckets), shares)

    def part(self, part: Instance) -> Iterator[Candidate | Excluded]:
        """Candidates and exclusions of one part."""
        for tp in self.options.tensor_parallel_sizes or part.allowed_tp:
            if tp not in part.allowed_tp:
                yield Excluded(part.name, tp, None, allowed(part))
                continue
            for dtype in self.options.dtypes:
                if dtype == "fp8" and not any(name.endswith("fp8") for name in part.chip.dtypes):
                    yield Excluded(part.name, tp, dtype, f"{part.chip.name} has no 8-bit float type")
                    continue
                for stages in self.options.pipeline_parallel_sizes:
                    yield from self._batches(part, tp, dtype, stages)

    def _batches(self, part: Instance, tp: int, dtype: WeightDtype, stages: int) -> Iterator[Candidate | Excluded]:
        """Candidates with batches of powers of two, as long as they fit."""
        if tp * stages > part.num_cores:
            reason = f"{stages} stages of {tp} NeuronCores are more than its {part.num_cores}"
            yield Excluded(part.name, tp, dtype, reason, pp=stages)
            return
        budget = budget_bytes(part, self.options.device_memory_utilization)
        lacks = self.memory.needed_bytes(tp, dtype, 1, stages, part.chip.lnc) - budget
        if lacks > 0:
            reason = f"one slot of {self.buckets.decode} positions lacks {lacks / GIB:.2f} GiB on each core"
            yield Excluded(part.name, tp, dtype, reason, lacks, stages)
            return
        stack = self.options.stack_on(part)
        runtime = Runtime(dtype, is_continuous=stack.is_continuous)
        group = _Group(part, tp, dtype, stages, PipelineModel.of(self.model, part, tp, stages, runtime), stack)
        batch = 1
        most, lnc = self.options.max_batch, part.chip.lnc
        while batch <= most and self.memory.needed_bytes(tp, dtype, batch, stages, lnc) <= budget:
            yield self._candidate(group, batch)
            batch *= 2

    def _candidate(self, group: _Group, batch: int) -> Candidate:
        options, part, dp = self.options, group.part, group.dp
        replica, bubble, extrapolated = self._replica(group, batch)
        within = replace(replica, peers=dp).rate_within(options.limits)
        carried = dp * (within or MAX_LOAD * replica.saturation)  # by one instance, requests a second
        fewest = fewest_instances(replica, dp, options) if within else None
        count = fewest or ceil(options.request_rate / carried)
        rate = options.request_rate / (count * dp)  # of one replica
        service = replace(replica, peers=count * dp).at(rate)
        share = _prefill_share(replica)
        at_rate = _prices(part, count, options.request_rate, share, self.demand)
        return Candidate(
            device=part.name,
            tp=group.tp,
            pp=group.stages,
            dp=dp,
            dtype=group.dtype,
            batch=batch,
            stack=group.stack.name,
            memory_bytes=self.memory.needed_bytes(group.tp, group.dtype, batch, group.stages, part.chip.lnc),
            memory_budget_bytes=budget_bytes(part, options.device_memory_utilization),
            prefill_s=replica.prefill_s + replica.later_stages_s,
            decode_s=replica.step_s(batch),
            ttft_s=service.ttft_s,
            tpot_s=service.tpot_s,
            quantiles_s={limit.name: limit.of(service) for limit in LIMITS.values() if limit.share is not None},
            load=rate / replica.saturation,
            saturated_output_tokens_s=dp * replica.saturation * self.demand.output_tokens,
            slo_request_rate=dp * within,
            output_tokens_s=dp * rate * self.demand.output_tokens,
            instances=count,
            at_rate=at_rate,
            at_capacity=_prices(part, 1, carried, share, self.demand),
            known=self._known(group, batch, replica, count),
            misses=(
                *(() if within else misses(replica.at(0), service, options)),
                *over_budget(at_rate[options.price_basis], options),
            ),
            bubble=bubble,
            extrapolated=extrapolated,
            tokens_per_joule=_per_joule(dp * rate * self.demand.output_tokens, part, options.chip_watts),
        )

    def _known(self, group: _Group, batch: int, replica: Replica, count: int) -> Known:
        """What stands behind the figures of a row, and how far they may be off."""
        decode = group.cost.band("decode", batch, self.buckets.decode)
        prefill = group.cost.band("prefill", 1, self.prompts[-1][0])
        return Known.of(replica, prefill, decode, Load(self.options, self.demand, group.dp, count))

    def _replica(self, group: _Group, batch: int) -> tuple[Replica, float, str]:
        """Replica under this demand, the bubble of its decode, and why no measurement stands behind its times."""
        decode, stack = group.cost.decode(batch, self.buckets.decode), group.stack
        prefills = [(group.cost.prefill(length, length), share) for length, share in self.prompts]
        mean_s = sum(cost.interval_s * share for cost, share in prefills)
        later_s = sum((cost.elapsed_s - cost.interval_s) * share for cost, share in prefills)
        cv2 = max(0.0, sum(cost.interval_s**2 * share for cost, share in prefills) / mean_s**2 - 1)
        reasons = filter(None, (*(cost.extrapolated for cost, _ in prefills), decode.extrapolated))
        host, vocab = default_calibration().host(stack.name), 0 if stack.samples_on_device else self.model.vocab_size
        replica = Replica(
            mean_s,
            decode.elapsed_s + host.step_s(1, batch, vocab),
            batch,
            self.demand.output_tokens,
            cv2,
            self.demand.steps_cv2,
            later_stages_s=later_s,
            shorter=self._shorter(group, batch),
            mixes_phases=POLICIES[stack.batching].mixes_phases,
            request_s=host.request_s,
            host_slot_s=host.slot_s + host.logit_s * vocab,
            padded=self._padded(group, batch),
        )
        return replica, decode.bubble, "; ".join(dict.fromkeys(reasons))

    def _shorter(self, group: _Group, batch: int) -> tuple[tuple[float, float], ...]:
        """Seconds on each decode bucket below the longest, and the share of contexts within it."""
        if group.stack.steps_read == "model length":
            return ()
        buckets = powers_of_two(self.buckets.decode)[:-1]
        return tuple((group.cost.decode(batch, size).elapsed_s, self.demand.share_within(size)) for size in buckets)

    def _padded(self, group: _Group, batch: int) -> tuple[tuple[int, float], ...]:
        """Slots of the graphs below the largest, and seconds of their steps."""
        if not group.stack.pads_slots:
            return ()
        smaller = (1 << power for power in range(batch.bit_length() - 1))
        return tuple((slots, group.cost.decode(slots, self.buckets.decode).elapsed_s) for slots in smaller)


def _per_joule(tokens_s: float, part: Instance, chip_watts: float | None) -> float | None:
    return None if chip_watts is None else tokens_s / (chip_watts * part.num_chips)


def _prefill_share(replica: Replica) -> float:
    """Share of a request in the device's time that its prefill takes, every slot busy."""
    return replica.prefill_s * replica.saturation


def _prices(
    part: Instance, count: int, request_rate: float, share: float, demand: Demand
) -> dict[PriceBasis, TokenPrice | None]:
    """Prices on every basis for `count` instances that together serve `request_rate`."""
    hourly = {basis: part.usd(basis) for basis in PRICE_BASES}
    return {
        basis: None if price is None else TokenPrice.of(count * price, request_rate, share, demand)
        for basis, price in hourly.items()
    }
